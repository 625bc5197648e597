// What was raised where it cannot go on: C++ that is called by a framework's, and knows none of its exceptions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// Takes the exception that is set, which is the program's (a signal handler of its own raised it), and has it raised at
// the next line of Python that the main thread runs, where handlers run too; on another thread its type is. Under the GIL.
void raise_later();

}  // namespace adbg
