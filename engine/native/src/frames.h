// The Python stack of the calling thread, as the number of a stack that is kept once.
//
// `capture` takes no lock and needs no GIL where the stack was seen before: a thread's own frames cannot change while it
// is inside a call. A stack that is new takes the GIL once, to hold on to its code objects.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace adbg {

// Once, under the GIL. False with a Python exception set.
bool frames_begin();

// `call`: the code of the method through which modules are called (its first argument is the module), or None;
// `children`: the attribute that holds a module's parts by their names, "_modules" or "_sub_layers". Under the GIL.
bool frames_modules(PyObject* call, PyObject* children);

// The number of this thread's stack; 0 where there is none (no Python below, Python is ending, out of memory).
uint32_t capture();

// A stack by its number, innermost frame first, as a new object: (((code, lasti), ...), path, outermost), or None where
// it is not kept any more. `path`: of the innermost module in the outermost that ran it, None outside of modules;
// `outermost`: a weak reference to that one, or None. lasti is in bytes, as frame.f_lasti.
PyObject* stack_of(uint32_t number);

// (stacks kept, captures that were new, modules known): for tests and the doctor.
PyObject* frames_counts();

// The modules that ran as the outermost ones and are alive: a new list of them. Under the GIL.
PyObject* frames_roots();

// Let go of all stacks and modules. Under the GIL.
void frames_clear();

}  // namespace adbg
