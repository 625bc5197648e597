// Who listens to calls that run without Python, as far as C++ must know: what forbids that, what is to be woken, and
// where the last call is noted. All of it under the GIL, which an engine gives up while a call runs: other threads set and
// clear these meanwhile.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace adbg {

class Listeners {
 public:
  Listeners() = default;
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;
  ~Listeners() { clear(); }

  // asks: a tuple of functions, one of which says True where a call must be told at once; zeros: a tuple of int32
  // numbers, one of which is not 0 then; wake: is called behind the first call that waits to be told; cell: 24 writable
  // bytes, or None. False with an exception set, and nothing changed.
  bool set(PyObject* asks, PyObject* zeros, PyObject* wake, PyObject* cell);
  // Nobody listens.
  void clear();
  bool any() const { return asks_ != nullptr; }

  // 1: a call must be told at once, or nobody listens; -1 with an exception set.
  int hurried() const;
  // False with an exception set. Where nobody listens any more nothing is called.
  bool woken() const;
  // Number, begin and end (epoch; 0: it runs) of the last call, for a crash report.
  void note(uint64_t number, double begin, double end) const;

 private:
  PyObject *asks_ = nullptr, *wake_ = nullptr;
  std::vector<Py_buffer> zeros_;
  Py_buffer cell_{};
};

}  // namespace adbg
