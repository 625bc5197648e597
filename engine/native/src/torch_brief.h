// Backward calls that are passed over without Python: those just like one in which nothing was of interest, from the
// same line of the program. What ran is written down, and told to Python when it asks.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// Adds the types BriefCalls and BriefCall to the module. -1 with an exception set.
int add_brief_types(PyObject* module);

}  // namespace adbg
