// One backward call that runs without Python: what is written down at its begin, as an object that its end takes.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>

#include "torch_engine.h"
#include "torch_events.h"

namespace adbg {

// What is written down of a call whose nodes are recorded.
struct Record {
  Follow events;
  Keys keys;
  PyObject* order;  // see `Known`
  uint64_t known;

  Record(Follow by, Keys&& its, PyObject* places, uint64_t id)
      : events(std::move(by)), keys(std::move(its)), order(places), known(id) {
    Py_INCREF(order);
  }
  ~Record() { Py_DECREF(order); }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
};

struct Call {
  PyObject_HEAD
  unsigned long long number, iteration, thread, age;
  long long last;  // the highest number of a root, -1: none, or the graph was retained
  double began;    // epoch
  long long since;
  char grad_mode;
  PyObject* facts;  // of the graph it is like; None: nothing is of interest in any call
  PyObject* begun;  // what Python made of it, None while nobody asked
  Record* record;   // where each of its nodes is recorded
};

// Read-only for Python, but `begun`. nullptr before `add_call_type`.
extern PyTypeObject* call_type;

// Adds the type BriefCall to the module. -1 with an exception set.
int add_call_type(PyObject* module);

}  // namespace adbg
