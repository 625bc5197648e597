#include "raised_later.h"

#include "layouts.h"

namespace adbg {
namespace {

int raise(void* held) {
  PyObject* error = static_cast<PyObject*>(held);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
  return -1;
}

bool on_main_thread() {
  PyObject* name = PyUnicode_FromString("threading");
  PyObject* threading = name ? PyImport_GetModule(name) : nullptr;
  PyObject* main = threading ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
  PyObject* ident = main ? PyObject_GetAttrString(main, "ident") : nullptr;
  const bool is = ident && PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
  PyErr_Clear();
  Py_XDECREF(ident);
  Py_XDECREF(main);
  Py_XDECREF(threading);
  Py_XDECREF(name);
  return is;
}

}  // namespace

void raise_later() {
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  if (!type) return;
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace && error) PyException_SetTraceback(error, trace);
  if (!on_main_thread()) {
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type);
  } else if (error && Py_AddPendingCall(raise, error) == 0) {
    error = nullptr;  // `raise` gives it back
  } else {  // 32 wait already: it is said, at least
    PyErr_Restore(type, error, trace);
    PyErr_WriteUnraisable(nullptr);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
}

}  // namespace adbg
