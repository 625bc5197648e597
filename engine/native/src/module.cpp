// adbg._native as Python sees it. Every function takes plain values and addresses of the caller's own making; what it
// cannot trust it checks. Used by adbg.engine.native alone.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <vector>

#include "frames.h"
#include "guarded.h"
#include "numbers.h"
#include "paddle.h"
#include "slots.h"
#include "ticks.h"
#include "torch.h"
#include "torch_brief.h"
#include "torch_walk.h"

namespace {

PyObject* slots(PyObject*, PyObject* arguments) {
  const char *symbol, *library;
  if (!PyArg_ParseTuple(arguments, "ss", &symbol, &library)) return nullptr;
  const char* const libraries[] = {library, nullptr};
  PyObject* list = PyList_New(0);
  for (const adbg::Slot& slot : adbg::find_slots(symbol, libraries)) {
    PyObject* entry = list ? Py_BuildValue("(sKN)", slot.library.c_str(), reinterpret_cast<unsigned long long>(slot.at),
                                           PyBool_FromLong(slot.relro))
                           : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

PyObject* symbol(PyObject*, PyObject* arguments) {
  const char *name, *library;
  if (!PyArg_ParseTuple(arguments, "ss", &name, &library)) return nullptr;
  const char* const libraries[] = {library, nullptr};
  return PyLong_FromVoidPtr(adbg::find_symbol(name, libraries));
}

PyObject* numbers(PyObject*, PyObject* arguments) {
  Py_buffer data;
  int kind;
  if (!PyArg_ParseTuple(arguments, "y*i", &data, &kind)) return nullptr;
  PyObject* answer = nullptr;
  if (kind < 0 || kind > 3) {
    PyErr_SetString(PyExc_ValueError, "0: float32, 1: float64, 2: float16, 3: bfloat16");
  } else {
    const auto type = static_cast<adbg::Kind>(kind);
    const int64_t count = data.len / adbg::bytes_of(type);
    const adbg::Numbers found = adbg::numbers_of(type, data.buf, count);
    answer = Py_BuildValue("(NLd)", PyBool_FromLong(adbg::any_nonfinite(type, data.buf, count)),
                           static_cast<long long>(found.nonfinite), found.squares);
  }
  PyBuffer_Release(&data);
  return answer;
}

PyObject* begin(PyObject*, PyObject*) {
  if (!adbg::frames_begin()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* modules(PyObject*, PyObject* arguments) {
  PyObject *call, *children;
  if (!PyArg_ParseTuple(arguments, "OO", &call, &children)) return nullptr;
  if (!adbg::frames_modules(call, children)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* capture(PyObject*, PyObject*) { return PyLong_FromUnsignedLong(adbg::capture()); }

PyObject* stack(PyObject*, PyObject* number) {
  const unsigned long value = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred()) return nullptr;
  if (value > UINT32_MAX) Py_RETURN_NONE;
  return adbg::stack_of(static_cast<uint32_t>(value));
}

PyObject* roots(PyObject*, PyObject*) { return adbg::frames_roots(); }

PyObject* counts(PyObject*, PyObject*) { return adbg::frames_counts(); }

PyObject* clear(PyObject*, PyObject*) {
  adbg::frames_clear();
  Py_RETURN_NONE;
}

void restore_all() {
  adbg::torch_restore();
  adbg::paddle_restore();
}

PyObject* restore(PyObject*, PyObject*) {
  restore_all();
  Py_RETURN_NONE;
}

PyObject* stood(PyObject*, PyObject* ns) {
  const unsigned long long told = PyLong_AsUnsignedLongLong(ns);
  if (told == ~0ull && PyErr_Occurred()) return nullptr;
  adbg::note_stood(told);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"slots", adbg::guarded<slots>, METH_VARARGS, "(symbol, library) -> [(library, address, read-only after relocation)]"},
    {"symbol", adbg::guarded<symbol>, METH_VARARGS, "(symbol, library) -> its address, 0 where there is none"},
    {"numbers", adbg::guarded<numbers>, METH_VARARGS, "(buffer, kind) -> (any non-finite, how many, sum of squares)"},
    {"begin", adbg::guarded<begin>, METH_NOARGS, "allocate the tables of stacks; once before `capture`"},
    {"modules", adbg::guarded<modules>, METH_VARARGS, "(code of the modules' call or None, name of the attribute with their parts)"},
    {"capture", adbg::guarded<capture>, METH_NOARGS, "() -> the number of the calling stack"},
    {"stack", adbg::guarded<stack>, METH_O, "(number) -> (((code, lasti), ...), path, outermost) or None"},
    {"roots", adbg::guarded<roots>, METH_NOARGS, "() -> modules that ran as the outermost ones"},
    {"counts", adbg::guarded<counts>, METH_NOARGS, "() -> (stacks kept, captures that were new, modules known)"},
    {"clear", adbg::guarded<clear>, METH_NOARGS, "let go of all stacks"},
    {"stood", adbg::guarded<stood>, METH_O, "(nanoseconds): this thread stood so long at a stop, which is no work of the node that runs"},
    {"restore", adbg::guarded<restore>, METH_NOARGS, "put back everything that stands in for a framework's functions"},
    {nullptr, nullptr, 0, nullptr}};

constexpr long kInterface = 9;  // as INTERFACE in load.py: one more with each change of a function's

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "adbg._native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  if (PyModule_AddIntConstant(module, "INTERFACE", kInterface) != 0 ||
      PyModule_AddFunctions(module, adbg::torch_methods) != 0 ||
      PyModule_AddFunctions(module, adbg::paddle_methods) != 0 || adbg::add_walk_type(module) != 0 || adbg::add_brief_types(module) != 0 ||
      Py_AtExit(restore_all) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
