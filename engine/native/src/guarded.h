// Where Python calls in: what is above are frames of C, which no exception of C++ may pass.
#pragma once

#include <Python.h>

#include <new>

namespace adbg {

// `function` as a method of the module; MemoryError where there was no memory. Nothing else is caught: a thread that is
// being ended is unwound through here.
template <PyCFunction function>
PyObject* guarded(PyObject* self, PyObject* arguments) {
  try {
    return function(self, arguments);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace adbg
