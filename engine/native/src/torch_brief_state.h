// What is known of backward calls that may run without Python, and those that ran so. All of it under the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "layouts.h"
#include "listeners.h"
#include "torch_events.h"
#include "torch_walk.h"

namespace adbg {

constexpr size_t kMostRuns = 1024;        // that wait to be told
constexpr double kLong = 20000;           // us: calls behind one that took as long are told at once
constexpr double kLongRecorded = 100000;  // the same where every node is recorded

// A graph in which nothing is of interest, and the line that its backward is called from.
struct Known {
  std::vector<uint64_t> places;  // of the frames from the one above the engine's entry out to the user's
  std::vector<PyObject*> codes;  // strong: no other code comes to lie there
  Survey survey;
  bool accumulate;
  bool watched;  // but gradients that are not finite
  PyObject* facts;
  // Where every node is recorded:
  PyObject* order;     // strong: bytes, a uint32 for each key, its place in the order; nullptr: none is recorded
  uint64_t alike, id;  // see `Alike`
  struct Shapes {      // of gradients that the record has seen: the graphs that it has rows of
    uint64_t shapes;
    size_t count;
    PyObject* facts;
  };
  std::vector<Shapes> shapes;
};

struct Run {
  unsigned long long number, iteration, thread;
  double began, us;
  PyObject *facts, *rows;  // rows: bytes, or nullptr
};

struct State {
  bool all = false;      // nothing is of interest in any call
  std::vector<Known> known;
  std::vector<Run> runs;
  std::vector<std::pair<unsigned long, long long>> lasts;  // by thread, the highest number of a root that is used up
  uint64_t age = 1;      // of what `known` was learnt under
  Listeners listeners;
  int64_t asked = 0;     // when Python was asked about a call
  bool was_long = false;
  uint64_t ids = 0;
  size_t bytes = 0;      // of rows in `runs`
  std::vector<Keys> spare;
};

struct Calls {
  PyObject_HEAD
  PyObject *begin, *end, *late, *parts;  // parts: a tuple, see `Part`
  unsigned long long count, iteration;
  long aside;  // adbg itself runs a backward
  State* state;
};

enum Part { kTensor, kParameter, kTaskId, kGradMode, kDispatchDepth, kFunctionDepth, kTracing, kParts };
inline PyObject* part(Calls* calls, Part which) { return PyTuple_GET_ITEM(calls->parts, which); }

bool same(const Survey& one, const Survey& other);
// Whether the frames from this one outwards are those of the known line.
bool from(const Known& known, Frame* frame);
// Nothing is known any more, and nobody listens. May run code of the program's.
void forget(Calls* calls);
// A backward on this thread used up the graph of the root with this number (-1: none).
void spend(State& state, unsigned long thread, long long last);
// A table of keys may be used for another call.
void give_back(State& state, Keys&& keys);
// Calls like this one are passed over from now on, made by the frames above that of `entry` out to the first one of `code`:
// True or False, or nullptr with an exception set. `known`: all but its frames; references are taken here. std::bad_alloc.
PyObject* learn(State& state, Known known, const Known::Shapes& these, PyObject* entry, PyObject* code);
// What time.perf_counter_ns reads.
int64_t monotonic();
// Seconds since 1970.
double epoch();

}  // namespace adbg
