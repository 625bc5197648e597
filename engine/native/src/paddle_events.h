// What every node of a backward did, written down without Python: when it began and ended, and the norm of what flowed
// into it.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace adbg {

// Around a node's call, while its backward is written down; nothing otherwise.
class PaddleVisit {
 public:
  PaddleVisit(void* node, const void* gradients);
  ~PaddleVisit();
  PaddleVisit(const PaddleVisit&) = delete;
  PaddleVisit& operator=(const PaddleVisit&) = delete;
  void* done(void* result) {  // it made its gradients
    made_ = true;
    return result;
  }
  bool on() const { return events_; }

 private:
  void* events_ = nullptr;
  uint32_t key_ = 0, shape_ = 0;
  uint16_t flags_ = 0;
  bool made_ = false;
  uint64_t begin_ = 0, stood_ = 0;  // see ticks.h
  double norm_ = 0;
};

// A node that ran in the call of the engine that is watched on this thread.
struct PaddleRan {
  void* node;
  uint64_t begin, end;  // ticks
  double norm;
  uint16_t flags;
};
// Those of a call at this depth, in order; none where another call is watched.
const std::vector<PaddleRan>& paddle_watched(int depth);

PyObject* paddle_events_begin(PyObject*, PyObject* arguments);
PyObject* paddle_events_take(PyObject*, PyObject* arguments);
PyObject* paddle_events_since(PyObject*, PyObject* arguments);
PyObject* paddle_events_nodes(PyObject*, PyObject* capsule);
PyObject* paddle_events_end(PyObject*, PyObject* capsule);

}  // namespace adbg
