// The question of each backward call: whether it runs without Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "torch_brief_call.h"
#include "torch_brief_state.h"

namespace adbg {

// Before the first call. -1 with an exception set.
int learn_names();
// What is written down of a call that is passed over; nullptr, perhaps with an exception set: it is not. `foreign`: that
// exception is the program's, which a signal handler raised in one of the questions. std::bad_alloc.
Call* pass(Calls* calls, PyObject* arguments, PyObject* keywords, bool& foreign);

}  // namespace adbg
