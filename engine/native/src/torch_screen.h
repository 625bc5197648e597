// Every gradient of a graph looked at as it passes, without Python: it is entered only for one that is not finite, or of
// a kind that is not read here.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "torch_tensors.h"

namespace adbg {

// torch_donor(node, pre hooks, post hooks): takes over how torch calls Python hooks from a node that has one of each;
// the arguments are the dicts that hold them. True where the lists of hooks were found in the node. Kept for good.
PyObject* torch_donor(PyObject*, PyObject* arguments);
// torch_screening(change): +1 as a screened backward begins, -1 as it ends. Returns how many there are.
PyObject* torch_screening(PyObject*, PyObject* change);

// Into and out of the lists of hooks of a node. Under the GIL. False where it cannot be done.
bool screen_ready();
void screen_put(void* node, bool before, bool after);
void screen_take(void* node);
// Into a list of hooks, where it is not there yet. The engine may be inside one of them, and goes on with the list as it
// was then: what it goes on to read is never freed here.
void list_put(Tensors& hooks, void* hook);
// The same of a hook in front of a node, which must have the virtual functions that torch's hooks have.
void front_put(void* node, void* hook);
bool front_has(void* node, void* hook);
void front_take(void* node, void* hook);
// Whether hooks of the script's, in Python or C++, may run around this node: others than `hook` and those put above.
// True where it cannot be told.
bool others_hook(void* node, void* hook);

// Whether a hook stands behind a node that was put there by `screen_put`.
bool screened_after(void* node);
// What that hook's Python answers to these gradients, of which one is not finite: a reference each.
Tensors ask_after(const Tensors& outputs, const Tensors& inputs);

// torch_events_donor(node, pre hooks): whose Python hook `ask_python` calls.
PyObject* torch_events_donor(PyObject*, PyObject* arguments);
Tensors ask_python(const Tensors& gradients);

// Where in `node` a list of one hook lies whose dict is `dict`, and the hook; -1 where there is none.
int find_hook(void* node, PyObject* dict, void*& hook);
// What torch calls a hook by.
bool called_of_hook(void* hook, void*& function);

}  // namespace adbg
