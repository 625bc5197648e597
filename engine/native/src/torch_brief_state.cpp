#include "torch_brief_state.h"

#include <time.h>

#include <algorithm>

namespace adbg {
namespace {

constexpr size_t kMostKnown = 16;    // graphs and lines
constexpr size_t kMostFrames = 64;   // between the engine's entry and the user's line
constexpr size_t kMostThreads = 256;
constexpr size_t kMostSpare = 4;     // tables of keys that wait to be used again
constexpr size_t kMostShapes = 256;  // of one graph

void let_go(Known& known) {
  for (PyObject* code : known.codes) Py_DECREF(code);
  Py_DECREF(known.facts);
  Py_XDECREF(known.order);
  for (const Known::Shapes& each : known.shapes) Py_DECREF(each.facts);
}

// The record has a graph's rows with these shapes too, or under another call.
PyObject* add_shapes(Known& known, const Known::Shapes& these) {
  PyObject* gone = nullptr;
  const auto same = [&](const Known::Shapes& each) { return each.shapes == these.shapes && each.count == these.count; };
  const auto present = std::find_if(known.shapes.begin(), known.shapes.end(), same);
  Py_INCREF(these.facts);
  if (present != known.shapes.end()) {
    gone = std::exchange(present->facts, these.facts);
  } else if (known.shapes.size() < kMostShapes) {
    known.shapes.reserve(kMostShapes);
    known.shapes.push_back(these);
  } else {
    gone = std::exchange(known.shapes.front(), these).facts;
  }
  Py_XDECREF(gone);
  Py_RETURN_TRUE;
}

}  // namespace

double epoch() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int64_t monotonic() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

void forget(Calls* calls) {
  State& state = *calls->state;
  state.age++;
  state.all = false;
  std::vector<Known> gone;
  gone.swap(state.known);
  state.listeners.clear();
  for (Known& each : gone) let_go(each);
}

bool from(const Known& known, Frame* frame) {
  for (uint64_t place : known.places) {
    while (frame && !counts(frame)) frame = caller(frame);
    if (!frame || place_of(frame) != place) return false;
    frame = caller(frame);
  }
  return true;
}

bool same(const Survey& one, const Survey& other) {
  return one.nodes == other.nodes && one.types == other.types && one.one == other.one && one.other == other.other;
}

void give_back(State& state, Keys&& keys) {
  if (state.spare.size() >= kMostSpare) return;
  keys.clear();
  state.spare.push_back(std::move(keys));
}

void spend(State& state, unsigned long thread, long long last) {
  if (last < 0) return;
  for (auto& each : state.lasts)
    if (each.first == thread) {
      each.second = std::max(each.second, last);
      return;
    }
  if (state.lasts.size() >= kMostThreads) state.lasts.clear();
  state.lasts.emplace_back(thread, last);
}

PyObject* learn(State& state, Known known, const Known::Shapes& these, PyObject* entry, PyObject* code) {
  Frame* frame = innermost(PyThreadState_Get());
  const auto is = [](Frame* each, PyObject* wanted) { return reinterpret_cast<PyObject*>(code_of(each)) == wanted; };
  while (frame && (!counts(frame) || !is(frame, entry))) frame = caller(frame);
  if (!frame) Py_RETURN_FALSE;
  bool found = false;
  while (!found && (frame = caller(frame)) && known.places.size() < kMostFrames) {
    if (!counts(frame)) continue;
    known.places.push_back(place_of(frame));
    known.codes.push_back(reinterpret_cast<PyObject*>(code_of(frame)));
    found = is(frame, code);
  }
  if (!found) Py_RETURN_FALSE;
  const auto as = [&](const Known& each) {
    return each.places == known.places && same(each.survey, known.survey) && each.accumulate == known.accumulate &&
           each.watched == known.watched && !each.order == !known.order && each.alike == known.alike;
  };
  const auto present = std::find_if(state.known.begin(), state.known.end(), as);
  if (present != state.known.end()) {
    if (known.order) return add_shapes(*present, these);
    Py_RETURN_TRUE;
  }
  if (known.order) known.shapes.push_back(these);
  known.id = ++state.ids;
  state.known.push_back(known);
  for (PyObject* each : known.codes) Py_INCREF(each);
  Py_INCREF(known.facts);
  Py_XINCREF(known.order);
  if (known.order) Py_INCREF(known.facts);
  if (state.known.size() > kMostKnown) {
    Known oldest = std::move(state.known.front());
    state.known.erase(state.known.begin());
    let_go(oldest);  // last: it may run code of the program's
  }
  Py_RETURN_TRUE;
}

}  // namespace adbg
