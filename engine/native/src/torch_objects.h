// The Python objects of torch's nodes: made where one is asked for, and taken back.
//
// torch 2.13 keeps the Python object of a node as long as the node lives, and frees a chain of such nodes by recursion:
// 45,000 of them overflow a stack of 8 MB. Once an object is taken back its node is freed as those that never had one.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// Whether torch tells the Python object of a node.
bool objects_ready();

// The Python object of a node, made where there was none. nullptr with an exception set.
PyObject* object_of(void* node);

// Whether a node has one, as far as that can be told (`objects_returnable`).
bool has_object(void* node);
bool objects_returnable();

// Takes the object of a node back: as if nobody had asked for it. The caller keeps the node alive without it. False
// where Python still refers to the object, or nothing else to the node. Under the GIL.
bool take_back(void* node);

// torch_objects(type) -> whether objects can be taken back, tried on a node of this type, which is made for it.
PyObject* torch_objects(PyObject*, PyObject* type);

}  // namespace adbg
