// What stands in for functions of libtorch, and what reads its nodes.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// Functions of the extension that are torch's; ends with an empty one.
extern PyMethodDef torch_methods[];
// Puts everything back that stands in for functions of libtorch. Any thread, also without Python.
void torch_restore();

}  // namespace adbg
