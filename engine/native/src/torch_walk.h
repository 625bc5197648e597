// A graph of torch's nodes, walked in C++: no Python object is made for a node that nobody asks for, so that graphs of
// any depth are freed as torch frees them.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// torch_walk(roots) -> Walk, or None where nodes cannot be read. The Walk holds the roots, and so all nodes below.
PyObject* torch_walk(PyObject*, PyObject* roots);

// Adds the type Walk to the module. -1 with an exception set.
int add_walk_type(PyObject* module);

}  // namespace adbg
