#include "paddle_runs.h"

#include <deque>
#include <new>
#include <vector>

#include "paddle_graph.h"

namespace adbg {
namespace {

constexpr size_t kMostRuns = 4096, kMostSpent = 256;

std::vector<PaddleRun> runs;

struct Spent {
  PyObject* tensor;  // weak
  void* node;
};
std::deque<Spent> spent;

}  // namespace

bool runs_full() { return runs.size() >= kMostRuns; }

bool runs_empty() { return runs.empty(); }

void add_run(const PaddleRun& run) { runs.push_back(run); }

void drop_runs() {
  std::vector<PaddleRun> dropped;
  dropped.reserve(kMostRuns);
  dropped.swap(runs);
  for (const PaddleRun& run : dropped) {
    Py_DECREF(run.roots);
    Py_DECREF(run.place);
  }
}

void add_spent(PyObject* tensor, void* node) {
  PyObject* reference = PyWeakref_NewRef(tensor, nullptr);
  if (!reference) {
    PyErr_Clear();
    return;
  }
  while (!spent.empty() && (spent.size() >= kMostSpent || PyWeakref_GetObject(spent.front().tensor) == Py_None)) {
    PyObject* gone = spent.front().tensor;
    spent.pop_front();
    Py_DECREF(gone);
  }
  try {
    spent.push_back({reference, node});
  } catch (const std::bad_alloc&) {  // above are frames of C
    Py_DECREF(reference);
  }
}

PyObject* paddle_entry_take(PyObject*, PyObject*) {
  std::vector<PaddleRun> taken;
  taken.reserve(kMostRuns);
  taken.swap(runs);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; i < taken.size();) {
    const PaddleRun& first = taken[i];
    size_t end = i + 1;
    for (; end < taken.size(); end++) {
      const PaddleRun &one = taken[end], &before = taken[end - 1];
      if (one.number != before.number + 1 || one.iteration != before.iteration + 1 || one.thread != first.thread ||
          one.nodes != first.nodes || one.roots != first.roots || one.place != first.place)
        break;
    }
    const Py_ssize_t count = static_cast<Py_ssize_t>(end - i);
    PyObject *began = PyTuple_New(count), *us = PyTuple_New(count);
    bool good = began && us;
    for (Py_ssize_t j = 0; good && j < count; j++) {
      PyObject *begin = PyFloat_FromDouble(taken[i + static_cast<size_t>(j)].began),
               *took = PyFloat_FromDouble(taken[i + static_cast<size_t>(j)].us);
      good = begin && took;
      PyTuple_SET_ITEM(began, j, begin);
      PyTuple_SET_ITEM(us, j, took);
    }
    PyObject* entry = list && good ? Py_BuildValue("(KIOKKONN)", static_cast<unsigned long long>(first.number), first.nodes,
                                                   first.roots, static_cast<unsigned long long>(first.iteration),
                                                   static_cast<unsigned long long>(first.thread), first.place, began, us)
                                   : nullptr;
    if (!list || !good) {
      Py_XDECREF(began);
      Py_XDECREF(us);
    }
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
    i = end;
  }
  for (const PaddleRun& run : taken) {
    Py_DECREF(run.roots);
    Py_DECREF(run.place);
  }
  return list;
}

PyObject* paddle_entry_spent(PyObject*, PyObject*) {
  std::deque<Spent> taken;
  taken.swap(spent);
  PyObject* list = PyList_New(0);
  for (const Spent& each : taken) {
    PyObject* entry = list ? Py_BuildValue("(OK)", each.tensor, reinterpret_cast<unsigned long long>(each.node)) : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  for (const Spent& each : taken) Py_DECREF(each.tensor);
  return list;
}

}  // namespace adbg
