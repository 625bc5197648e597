#include "listeners.h"

#include <cstring>
#include <utility>

namespace adbg {

bool Listeners::set(PyObject* asks, PyObject* zeros, PyObject* wake, PyObject* cell) {
  if (!PyTuple_Check(asks) || !PyTuple_Check(zeros) || !PyCallable_Check(wake)) {
    PyErr_SetString(PyExc_TypeError, "two tuples and a function");
    return false;
  }
  Py_buffer given{};
  if (cell != Py_None) {
    if (PyObject_GetBuffer(cell, &given, PyBUF_WRITABLE) != 0) return false;
    if (given.len != 24) {
      PyBuffer_Release(&given);
      PyErr_SetString(PyExc_ValueError, "24 bytes");
      return false;
    }
  }
  std::vector<Py_buffer> words;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(zeros); i++) {
    Py_buffer word{};
    const bool got = PyObject_GetBuffer(PyTuple_GET_ITEM(zeros, i), &word, PyBUF_SIMPLE) == 0;
    if (got) words.push_back(word);
    if (got && word.len == 4) continue;
    if (got) PyErr_SetString(PyExc_ValueError, "four bytes each");
    for (Py_buffer& each : words) PyBuffer_Release(&each);
    if (given.obj) PyBuffer_Release(&given);
    return false;
  }
  clear();
  Py_INCREF(asks);
  Py_INCREF(wake);
  asks_ = asks;
  wake_ = wake;
  zeros_.swap(words);
  cell_ = given;
  return true;
}

void Listeners::clear() {
  std::vector<Py_buffer> words;
  words.swap(zeros_);
  for (Py_buffer& each : words) PyBuffer_Release(&each);
  Py_buffer cell = std::exchange(cell_, Py_buffer{});
  if (cell.obj) PyBuffer_Release(&cell);
  Py_CLEAR(asks_);
  Py_CLEAR(wake_);
}

int Listeners::hurried() const {
  if (!asks_) return 1;
  for (const Py_buffer& each : zeros_) {
    int32_t value;
    memcpy(&value, each.buf, sizeof value);
    if (value) return 1;
  }
  PyObject* held = asks_;
  Py_INCREF(held);
  int found = 0;
  for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(held); i++) {
    PyObject* answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(held, i));
    found = !answer ? -1 : answer != Py_False;
    Py_XDECREF(answer);
  }
  Py_DECREF(held);
  return found;
}

bool Listeners::woken() const {
  PyObject* wake = wake_;
  if (!wake) return true;  // it was cleared while the call ran
  Py_INCREF(wake);
  PyObject* answer = PyObject_CallNoArgs(wake);
  Py_DECREF(wake);
  Py_XDECREF(answer);
  return answer != nullptr;
}

void Listeners::note(uint64_t number, double begin, double end) const {
  if (!cell_.buf) return;
  char* at = static_cast<char*>(cell_.buf);
  memcpy(at, &number, 8);
  memcpy(at + 8, &begin, 8);
  memcpy(at + 16, &end, 8);
}

}  // namespace adbg
