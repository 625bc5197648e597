// A graph of torch's nodes, walked in C++: no Python object is made for a node that nobody asks for, so that graphs of
// any depth are freed as torch frees them.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace adbg {

// torch_walk(roots) -> Walk, or None where nodes cannot be read. The Walk holds the roots, and so all nodes below.
PyObject* torch_walk(PyObject*, PyObject* roots);

// What other parts ask of a Walk; nullptr with an exception set where the object is none, or was released.
struct Walked {
  std::vector<void*> nodes;  // by key, in breadth-first order
  virtual ~Walked() {}
  virtual uint32_t find(void* node) const = 0;  // its key; UINT32_MAX for a node that is not in the graph
};
const Walked* walked_of(PyObject* walk);

// The Python object of a node, made where there was none. nullptr with an exception set.
PyObject* object_of(void* node);

// Adds the type Walk to the module. -1 with an exception set.
int add_walk_type(PyObject* module);

}  // namespace adbg
