// Hooks in Python on nodes that have no Python object: any number of them, at the price of a word each.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// torch_hooking(node, pre hooks, post hooks) -> whether nodes can be hooked. `node` has one hook of Python's of each
// kind, the dicts are what holds them: they are what hooked nodes call, of which they learn nothing but the gradients
// (see torch_current). Kept for good.
PyObject* torch_hooking(PyObject*, PyObject* arguments);
// torch_hooked(change): +1 as a call with hooked nodes begins, -1 as it ends. While there is none, hooks that are left
// do nothing. Returns how many there are.
PyObject* torch_hooked(PyObject*, PyObject* change);

// Into and out of the lists of hooks of a node. Under the GIL.
bool hooks_ready();
void hook_put(void* node, bool before, bool after);
void hook_take(void* node);

// The node that the engine runs on this thread; nullptr outside of a backward. It is alive while it runs.
void* running_node();

}  // namespace adbg
