// What stands in for functions of libpaddle, and what reads its nodes.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// Functions of the extension that are paddle's; ends with an empty one.
extern PyMethodDef paddle_methods[];
// Puts everything back that stands in for functions of libpaddle. Any thread, also without Python.
void paddle_restore();

}  // namespace adbg
