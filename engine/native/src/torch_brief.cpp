#include "torch_brief.h"

#include <structmember.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "layouts.h"
#include "listeners.h"
#include "torch_graph.h"
#include "torch_engine.h"
#include "torch_events.h"
#include "torch_nodes.h"
#include "torch_tensors.h"
#include "torch_watch.h"

namespace adbg {
namespace {

constexpr size_t kMostKnown = 16;   // graphs and lines
constexpr size_t kMostFrames = 64;  // between the engine's entry and the user's line
constexpr size_t kMostRuns = 1024;  // that wait to be told
constexpr size_t kMostThreads = 256;
constexpr uint64_t kFirst = 100;            // calls of a process that Python is told of at once
constexpr int64_t kBetween = 250000000;     // ns: so often it is asked about a call all the same
constexpr double kLong = 20000;             // us: calls behind one that took as long are told at once
constexpr double kLongRecorded = 100000;    // the same where every node is recorded
constexpr size_t kMostSpare = 4;            // tables of keys that wait to be used again
constexpr size_t kMostShapes = 256;         // of one graph
constexpr size_t kMostBytes = 16 << 20;     // of nodes that wait to be told
constexpr size_t kMostNodes = 1 << 16;      // of a call whose nodes may wait

double epoch() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int64_t monotonic() {  // what time.perf_counter_ns reads
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// ---- one call under way

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

void call_free(PyObject* self) {
  Call* call = reinterpret_cast<Call*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(call->facts);
  Py_CLEAR(call->begun);
  delete std::exchange(call->record, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef call_members[] = {
    {"number", T_ULONGLONG, offsetof(Call, number), READONLY, nullptr},
    {"iteration", T_ULONGLONG, offsetof(Call, iteration), READONLY, nullptr},
    {"thread", T_ULONGLONG, offsetof(Call, thread), READONLY, nullptr},
    {"age", T_ULONGLONG, offsetof(Call, age), READONLY, "`BriefCalls.age` at its begin"},
    {"began", T_DOUBLE, offsetof(Call, began), READONLY, "seconds since the epoch"},
    {"since", T_LONGLONG, offsetof(Call, since), READONLY, "time.perf_counter_ns of its begin"},
    {"grad_mode", T_BOOL, offsetof(Call, grad_mode), READONLY, nullptr},
    {"facts", T_OBJECT, offsetof(Call, facts), READONLY, "what `allow` was given, or None"},
    {"begun", T_OBJECT, offsetof(Call, begun), 0, "for the caller's use"},
    {nullptr, 0, 0, 0, nullptr}};
PyObject* call_events(PyObject* self, void*) {
  const Record* record = reinterpret_cast<Call*>(self)->record;
  if (record) return events_capsule(record->events);
  Py_RETURN_NONE;
}

PyGetSetDef call_getset[] = {{"events", call_events, nullptr, "as of `torch_events_begin`; None: no node is recorded", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot call_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(call_free)},
                            {Py_tp_members, call_members},
                            {Py_tp_getset, call_getset},
                            {0, nullptr}};
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
#else
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT;
#endif
PyType_Spec call_spec = {"adbg._native.BriefCall", sizeof(Call), 0, kFlags, call_slots};
PyTypeObject* call_type = nullptr;

// ---- all of them

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
PyObject* part(Calls* calls, Part which) { return PyTuple_GET_ITEM(calls->parts, which); }

PyObject *str_grad_fn, *str_accumulate, *str_context, *str_compiling, *str_compiled;

void let_go(Known& known) {
  for (PyObject* code : known.codes) Py_DECREF(code);
  Py_DECREF(known.facts);
  Py_XDECREF(known.order);
  for (const Known::Shapes& each : known.shapes) Py_DECREF(each.facts);
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

// The frame above the innermost one: that is the entry's.
Frame* above_entry() {
  Frame* frame = innermost(PyThreadState_Get());
  while (frame && !counts(frame)) frame = caller(frame);
  frame = frame ? caller(frame) : nullptr;
  while (frame && !counts(frame)) frame = caller(frame);
  return frame;
}

bool from(const Known& known, Frame* frame) {
  for (uint64_t place : known.places) {
    while (frame && !counts(frame)) frame = caller(frame);
    if (!frame || place_of(frame) != place) return false;
    frame = caller(frame);
  }
  return true;
}

// What a function of torch's without arguments returns; -2 where it cannot be told.
long asked(PyObject* function) {
  PyObject* answer = PyObject_CallNoArgs(function);
  const long value = answer && PyLong_Check(answer) ? PyLong_AsLong(answer) : -2;
  Py_XDECREF(answer);
  return value;
}

// Whether a trace is made on this thread: an attribute of a threading.local.
bool tracing(Calls* calls) {
  PyObject* local = part(calls, kTracing);
  if (local == Py_None) return false;
  PyObject* context = PyObject_GetAttr(local, str_context);
  if (!context) {
    PyErr_Clear();
    return false;
  }
  const bool is = context != Py_None;
  Py_DECREF(context);
  return is;
}

// torch's own way of calling its engine, from a place where nobody looks.
bool plain(Calls* calls, PyObject* arguments, PyObject* keywords) {
  if (!PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != 5 || !PyDict_CheckExact(keywords)) return false;
  PyObject* outputs = PyTuple_GET_ITEM(arguments, 0);
  PyObject* inputs = PyTuple_GET_ITEM(arguments, 4);
  if (!PyTuple_CheckExact(outputs) || PyTuple_GET_SIZE(outputs) == 0 || !PyBool_Check(PyTuple_GET_ITEM(arguments, 2)) ||
      PyTuple_GET_ITEM(arguments, 3) != Py_False || !PyTuple_CheckExact(inputs) || PyTuple_GET_SIZE(inputs) != 0)
    return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(PyTuple_GET_ITEM(outputs, i)));
    if (type != part(calls, kTensor) && type != part(calls, kParameter)) return false;
  }
  return asked(part(calls, kTaskId)) == -1 && asked(part(calls, kDispatchDepth)) == 0 &&
         asked(part(calls, kFunctionDepth)) == 0 && !tracing(calls);
}

// The nodes that a backward from these tensors begins at, kept alive by their objects while this is.
class Roots {
 public:
  explicit Roots(PyObject* outputs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
      PyObject* object = PyObject_GetAttr(PyTuple_GET_ITEM(outputs, i), str_grad_fn);
      if (object) objects_.push_back(object);
      void* node = object && object != Py_None ? node_behind(object) : nullptr;
      if (!node) return;
      nodes_.push_back(node);
    }
    whole_ = true;
  }
  ~Roots() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }
  Roots(const Roots&) = delete;
  Roots& operator=(const Roots&) = delete;
  bool whole() const { return whole_; }
  const std::vector<void*>& nodes() const { return nodes_; }

 private:
  std::vector<PyObject*> objects_;
  std::vector<void*> nodes_;
  bool whole_ = false;
};

bool same(const Survey& one, const Survey& other) {
  return one.nodes == other.nodes && one.types == other.types && one.one == other.one && one.other == other.other;
}

// Whether backwards run compiled: torch's engine is not asked then.
bool compiled() {
  PyObject* module = PyImport_GetModule(str_compiling);
  PyObject* on = module ? PyObject_GetAttr(module, str_compiled) : nullptr;
  const bool is = on && on != Py_False;
  Py_XDECREF(on);
  Py_XDECREF(module);
  PyErr_Clear();
  return is;
}

// All that a backward begins at is finite: where it is not, the record says so.
bool all_finite(PyObject* outputs) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
    void* tensor = tensor_behind(PyTuple_GET_ITEM(outputs, i));
    View view;
    if (!tensor || !is_plain(tensor) || read_tensor(&tensor, view) != Seen::floats || !view.dense) return false;
    if (any_nonfinite(view.kind, view.data, view.count)) return false;
  }
  return true;
}

struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Strong = std::unique_ptr<PyObject, Release>;

// What Python said of a graph that a call is like.
struct Match {
  long long last = -1;
  bool watched = false;
  uint64_t known = 0;
  Strong order;
  size_t nodes = 0;
  Keys keys{0};
};

// A new reference to the facts of the graph that this call is like; nullptr: it is to be looked at. `foreign`: with an
// exception of the program's, which a signal handler raised in one of the questions.
PyObject* facts_of(Calls* calls, bool accumulate, const Roots& roots, Match& match, bool& foreign) {
  State& state = *calls->state;
  long long& last = match.last;
  Survey found;
  if (state.all) {
    for (void* node : roots.nodes())
      if (sequence_of(node) != UINT64_MAX) found.last = std::max(found.last, static_cast<int64_t>(sequence_of(node)));
    last = found.last;
    Py_RETURN_NONE;
  }
  Frame* frame = above_entry();
  const auto here = [&](const Known& each) { return each.accumulate == accumulate && from(each, frame); };
  if (!state.listeners.any() || calls->count < kFirst || state.was_long || monotonic() - state.asked > kBetween) return nullptr;
  if (state.runs.size() >= kMostRuns || std::none_of(state.known.begin(), state.known.end(), here)) return nullptr;
  const int hurries = state.listeners.hurried();
  foreign = hurries < 0;
  if (hurries) return nullptr;
  const bool recorded = std::any_of(state.known.begin(), state.known.end(), [](const Known& each) { return each.order; });
  if (recorded) {
    if (state.bytes > kMostBytes) return nullptr;
    if (state.spare.empty()) {
      match.keys = Keys();
    } else {
      match.keys = std::move(state.spare.back());
      state.spare.pop_back();
    }
  }
  if (survey(roots.nodes().data(), roots.nodes().size(), found, recorded ? &match.keys : nullptr) != Surveyed::done)
    return nullptr;
  for (const Known& each : state.known)  // again: code of the program's may have run in between
    if (here(each) && same(each.survey, found) && (!each.order || (recorded && each.alike == found.alike))) {
      last = found.last;
      match.watched = each.watched;
      Py_XINCREF(each.order);
      match.order.reset(each.order);  // ours: what runs before it is used may have the graph forgotten
      match.known = each.id;
      match.nodes = found.nodes;
      Py_INCREF(each.facts);
      return each.facts;
    }
  return nullptr;
}

void give_back(State& state, Keys&& keys) {
  if (state.spare.size() >= kMostSpare) return;
  keys.clear();
  state.spare.push_back(std::move(keys));
}

// A call that is passed over; nullptr, perhaps with an exception set: it is not. `foreign`: that one is the program's.
PyObject* pass(Calls* calls, PyObject* arguments, PyObject* keywords, bool& foreign) {
  if (!plain(calls, arguments, keywords)) return nullptr;
  const Roots roots(PyTuple_GET_ITEM(arguments, 0));
  if (!roots.whole()) return nullptr;
  Match match;
  const uint64_t age = calls->state->age;
  PyObject* facts = facts_of(calls, PyDict_GetItem(keywords, str_accumulate) == Py_True, roots, match, foreign);
  if (!facts) return nullptr;
  PyObject* outputs = PyTuple_GET_ITEM(arguments, 0);
  PyObject* first = PyTuple_GET_ITEM(outputs, 0);
  std::unique_ptr<Record> record;
  if (match.order) {
    Follow events = !compiled() && all_finite(outputs) && calls->state->age == age ? events_next(first, match.nodes) : nullptr;
    if (!events) {
      Py_DECREF(facts);
      return nullptr;
    }
    record = std::make_unique<Record>(std::move(events), std::move(match.keys), match.order.get(), match.known);
  }
  const long grad_mode = asked(part(calls, kGradMode));
  Call* call = PyErr_Occurred() ? nullptr : PyObject_New(Call, call_type);
  if (!call || calls->state->age != age || (match.watched && !watch_next(first, match.nodes))) {
    if (call) PyObject_Free(call), Py_DECREF(call_type);
    follow_next(nullptr);
    Py_DECREF(facts);
    return nullptr;
  }
  call->number = ++calls->count;
  call->iteration = ++calls->iteration;
  call->thread = PyThread_get_thread_ident();
  call->age = age;
  call->last = PyTuple_GET_ITEM(arguments, 2) == Py_True ? -1 : match.last;
  call->grad_mode = grad_mode != 0;
  call->facts = facts;
  Py_INCREF(Py_None);
  call->begun = Py_None;
  call->record = record.release();
  call->began = epoch();
  call->since = monotonic();
  if (facts != Py_None) calls->state->listeners.note(call->number, call->began, 0);
  return reinterpret_cast<PyObject*>(call);
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

// ---- as Python sees it

PyObject* calls_begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  follow_next(nullptr);  // one that was about to be followed and did not begin
  if (count == 2 && !calls->aside && (calls->state->all || !calls->state->known.empty())) {
    bool foreign = false;
    try {
      if (PyObject* call = pass(calls, arguments[0], arguments[1], foreign)) return call;
    } catch (const std::bad_alloc&) {
    }
    if (foreign) return nullptr;
    PyErr_Clear();
  }
  calls->state->asked = monotonic();
  return PyObject_Vectorcall(calls->begin, arguments, static_cast<size_t>(count), nullptr);
}

// The facts that tell of a call whose nodes are recorded, and their rows; nullptr, perhaps with an exception set: it is not
// as those before it were.
PyObject* recorded(State& state, const Record& record, Rows& rows) {
  if (!events_rows(record.events, record.keys, record.order, rows)) return nullptr;
  if (rows.lost) return nullptr;
  for (const Known& known : state.known)
    for (const Known::Shapes& each : known.shapes)
      if (known.id == record.known && each.shapes == rows.shapes && each.count == rows.count) return each.facts;
  return nullptr;
}

// The end of a call, each of whose nodes was written down.
PyObject* end_recorded(Calls* calls, Call* call, double us) {
  State& state = *calls->state;
  Rows rows;
  state.was_long = us > kLongRecorded;
  PyObject* facts = call->age == state.age ? recorded(state, *call->record, rows) : nullptr;
  if (!facts) {
    PyErr_Clear();
    Py_XDECREF(rows.bytes);
    return PyObject_CallFunction(calls->late, "Od", reinterpret_cast<PyObject*>(call), us);
  }
  give_back(state, std::move(call->record->keys));
  delete std::exchange(call->record, nullptr);
  spend(state, call->thread, call->last);
  state.listeners.note(call->number, call->began, epoch());
  state.bytes += static_cast<size_t>(PyBytes_GET_SIZE(rows.bytes));
  Py_INCREF(facts);
  state.runs.push_back({call->number, call->iteration, call->thread, call->began, us, facts, rows.bytes});
  if (state.runs.size() == 1 && !state.listeners.woken()) return nullptr;
  Py_RETURN_NONE;
}

// A call that Python was asked about ends: whether it was a long one. Otherwise one hiccup of the machine would have Python
// asked about every call from there on.
void note_asked(State& state) {
  const bool recorded = std::any_of(state.known.begin(), state.known.end(), [](const Known& each) { return each.order; });
  const double us = static_cast<double>(monotonic() - state.asked) / 1000;
  state.was_long = us > (recorded ? kLongRecorded : kLong);
}

PyObject* calls_end(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  if (count != 2 || Py_TYPE(arguments[0]) != call_type) {
    note_asked(*calls->state);
    return PyObject_Vectorcall(calls->end, arguments, static_cast<size_t>(count), nullptr);
  }
  Call* call = reinterpret_cast<Call*>(arguments[0]);
  if (call->begun != Py_None) {
    PyObject* both[] = {call->begun, arguments[1]};
    Py_INCREF(both[0]);
    PyObject* answer = PyObject_Vectorcall(calls->end, both, 2, nullptr);
    Py_DECREF(both[0]);
    return answer;
  }
  State& state = *calls->state;
  const double us = static_cast<double>(monotonic() - call->since) / 1000;
  try {
    if (call->record) return end_recorded(calls, call, us);
    state.was_long = us > kLong;
    spend(state, call->thread, call->last);
    if (call->facts == Py_None) Py_RETURN_NONE;
    if (call->age == state.age) {
      state.listeners.note(call->number, call->began, epoch());
      state.runs.push_back({call->number, call->iteration, call->thread, call->began, us, call->facts, nullptr});
      Py_INCREF(call->facts);
      if (state.runs.size() == 1 && !state.listeners.woken()) return nullptr;
      Py_RETURN_NONE;
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return PyObject_CallFunction(calls->late, "Od", arguments[0], us);  // nobody may ask any more
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

// allow(age, entry, code, accumulate, watched, survey, facts, nodes) -> whether calls like this one are passed over from now on: made by
// the frames above the caller's caller out to the first one of `code`. Not where the age is another than it was then.
// `nodes`: None, or (alike, shapes, count, order): each of their nodes is recorded, and these are the facts where the
// gradients have the same shapes.
PyObject* calls_allow(PyObject* self, PyObject* arguments) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  State& state = *calls->state;
  unsigned long long age, types, one, other;
  PyObject *entry, *code, *facts, *recorded = Py_None, *order = nullptr;
  unsigned long long alike = 0, shapes = 0;
  Py_ssize_t rows = 0;
  int accumulate, watched;
  Py_ssize_t nodes;
  if (!PyArg_ParseTuple(arguments, "KO!O!pp(nKKK)O|O", &age, &PyCode_Type, &entry, &PyCode_Type, &code, &accumulate,
                        &watched, &nodes, &types, &one, &other, &facts, &recorded))
    return nullptr;
  if (recorded != Py_None) {
    if (!PyArg_ParseTuple(recorded, "KKnS", &alike, &shapes, &rows, &order)) return nullptr;
    if (nodes > static_cast<Py_ssize_t>(kMostNodes) || PyBytes_GET_SIZE(order) != nodes * 4) Py_RETURN_FALSE;
  }
  if (age != state.age || !state.listeners.any()) Py_RETURN_FALSE;
  Known known{{}, {}, {}, accumulate != 0, watched != 0, facts, order, alike, ++state.ids, {}};
  known.survey.nodes = static_cast<size_t>(nodes);
  known.survey.types = types;
  known.survey.one = one;
  known.survey.other = other;
  Frame* frame = innermost(PyThreadState_Get());
  const auto is = [](Frame* each, PyObject* wanted) { return reinterpret_cast<PyObject*>(code_of(each)) == wanted; };
  while (frame && (!counts(frame) || !is(frame, entry))) frame = caller(frame);
  if (!frame) Py_RETURN_FALSE;
  try {
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
    const Known::Shapes these{shapes, static_cast<size_t>(rows), facts};
    const auto present = std::find_if(state.known.begin(), state.known.end(), as);
    if (present != state.known.end()) {
      if (order) return add_shapes(*present, these);
      Py_RETURN_TRUE;
    }
    if (order) known.shapes.push_back(these);
    state.known.push_back(known);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  for (PyObject* each : known.codes) Py_INCREF(each);
  Py_INCREF(facts);
  Py_XINCREF(order);
  if (order) Py_INCREF(facts);
  if (state.known.size() > kMostKnown) {
    Known oldest = std::move(state.known.front());
    state.known.erase(state.known.begin());
    let_go(oldest);  // last: it may run code of the program's
  }
  Py_RETURN_TRUE;
}

PyObject* calls_listen(PyObject* self, PyObject* arguments) {
  PyObject *asks, *zeros, *wake, *cell;
  if (!PyArg_ParseTuple(arguments, "OOOO", &asks, &zeros, &wake, &cell)) return nullptr;
  if (!reinterpret_cast<Calls*>(self)->state->listeners.set(asks, zeros, wake, cell)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* calls_allow_all(PyObject* self, PyObject*) {
  reinterpret_cast<Calls*>(self)->state->all = node_layout.sequence >= 0;
  Py_RETURN_NONE;
}

PyObject* calls_forbid(PyObject* self, PyObject*) {
  forget(reinterpret_cast<Calls*>(self));
  Py_RETURN_NONE;
}

PyObject* calls_take(PyObject* self, PyObject*) {
  std::vector<Run> runs;
  runs.swap(reinterpret_cast<Calls*>(self)->state->runs);
  reinterpret_cast<Calls*>(self)->state->bytes = 0;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(runs.size()));
  for (size_t i = 0; i < runs.size(); i++) {
    const Run& run = runs[i];
    PyObject* rows = run.rows ? run.rows : Py_NewRef(Py_None);
    PyObject* row = list ? Py_BuildValue("(KKKddNN)", run.number, run.iteration, run.thread, run.began, run.us, run.facts, rows)
                         : nullptr;
    if (!list) Py_DECREF(run.facts), Py_DECREF(rows);
    if (row) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), row);
    else Py_CLEAR(list);
  }
  return list;
}

PyObject* calls_next(PyObject* self, PyObject* outermost) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  const int is = PyObject_IsTrue(outermost);
  if (is < 0) return nullptr;
  calls->count++;
  if (is) calls->iteration++;
  return PyLong_FromUnsignedLongLong(calls->count);
}

PyObject* calls_used_up(PyObject* self, PyObject* arguments) {
  unsigned long thread;
  long long last;
  if (!PyArg_ParseTuple(arguments, "kL", &thread, &last)) return nullptr;
  try {
    spend(*reinterpret_cast<Calls*>(self)->state, thread, last);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* calls_last(PyObject* self, PyObject* number) {
  const unsigned long thread = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred()) return nullptr;
  for (const auto& each : reinterpret_cast<Calls*>(self)->state->lasts)
    if (each.first == thread) return PyLong_FromLongLong(each.second);
  Py_RETURN_NONE;
}

PyObject* calls_age(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<Calls*>(self)->state->age);
}

PyObject* calls_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *begin, *end, *late, *parts;
  if (!PyArg_ParseTuple(arguments, "OOOO!", &begin, &end, &late, &PyTuple_Type, &parts)) return nullptr;
  if (PyTuple_GET_SIZE(parts) != kParts) {
    PyErr_SetString(PyExc_ValueError, "seven parts of torch");
    return nullptr;
  }
  Calls* calls = reinterpret_cast<Calls*>(type->tp_alloc(type, 0));
  if (!calls) return nullptr;
  calls->state = new (std::nothrow) State;
  if (!calls->state) {
    Py_DECREF(calls);
    return PyErr_NoMemory();
  }
  calls->state->runs.reserve(kMostRuns);
  calls->begin = Py_NewRef(begin);
  calls->end = Py_NewRef(end);
  calls->late = Py_NewRef(late);
  calls->parts = Py_NewRef(parts);
  return reinterpret_cast<PyObject*>(calls);
}

int calls_traverse(PyObject* self, visitproc visit, void* arg) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(calls->begin);
  Py_VISIT(calls->end);
  Py_VISIT(calls->late);
  Py_VISIT(calls->parts);
  return 0;
}

int calls_clear(PyObject* self) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  if (calls->state) forget(calls);
  // The functions stay: whoever still holds this object may call it.
  return 0;
}

void calls_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Calls* calls = reinterpret_cast<Calls*>(self);
  PyTypeObject* type = Py_TYPE(self);
  if (calls->state) {
    forget(calls);
    for (Run& run : calls->state->runs) {
      Py_DECREF(run.facts);
      Py_XDECREF(run.rows);
    }
    delete calls->state;
  }
  Py_CLEAR(calls->begin);
  Py_CLEAR(calls->end);
  Py_CLEAR(calls->late);
  Py_CLEAR(calls->parts);
  type->tp_free(self);
  Py_DECREF(type);
}

template <class F>
PyCFunction as_method(F function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef calls_methods[] = {
    {"begin", as_method(calls_begin), METH_FASTCALL, "(args, kwargs) -> what `end` takes"},
    {"end", as_method(calls_end), METH_FASTCALL, "(what `begin` returned, result)"},
    {"allow", calls_allow, METH_VARARGS,
     "(age, code of the entry, code of the user's line, accumulate, watched, survey, facts, nodes=None) -> bool"},
    {"listen", calls_listen, METH_VARARGS, "(asks, zeros, wake, cell): calls may be passed over; see listeners.h"},
    {"allow_all", calls_allow_all, METH_NOARGS, "all calls are passed over and not written down"},
    {"forbid", calls_forbid, METH_NOARGS, "the next call is looked at again"},
    {"take", calls_take, METH_NOARGS, "() -> [(number, iteration, thread, began, us, facts, rows)] since the last time"},
    {"next", calls_next, METH_O, "(outermost) -> the number of a call that is looked at"},
    {"used_up", calls_used_up, METH_VARARGS, "(thread, number of a root whose graph a backward used up)"},
    {"last", calls_last, METH_O, "(thread) -> the highest one, or None"},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef calls_members[] = {
    {"count", T_ULONGLONG, offsetof(Calls, count), READONLY, "calls so far"},
    {"iteration", T_ULONGLONG, offsetof(Calls, iteration), READONLY, "of them, those that were not nested"},
    {"aside", T_LONG, offsetof(Calls, aside), 0, "not 0: every call is looked at"},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef calls_getset[] = {{"age", calls_age, nullptr, "how often something was forbidden", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot calls_slots[] = {{Py_tp_new, reinterpret_cast<void*>(calls_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(calls_free)},
                             {Py_tp_traverse, reinterpret_cast<void*>(calls_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(calls_clear)},
                             {Py_tp_methods, calls_methods},
                             {Py_tp_members, calls_members},
                             {Py_tp_getset, calls_getset},
                             {0, nullptr}};
PyType_Spec calls_spec = {"adbg._native.BriefCalls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                          calls_slots};

}  // namespace

int add_brief_types(PyObject* module) {
  str_grad_fn = PyUnicode_InternFromString("grad_fn");
  str_accumulate = PyUnicode_InternFromString("accumulate_grad");
  str_context = PyUnicode_InternFromString("tracing_context");
  if (!call_type) call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&call_spec));
  PyObject* type = call_type ? PyType_FromSpec(&calls_spec) : nullptr;
  str_compiling = PyUnicode_InternFromString("torch._dynamo.compiled_autograd");
  str_compiled = PyUnicode_InternFromString("compiled_autograd_enabled");
  if (!type || !str_compiling || !str_compiled || !str_grad_fn || !str_accumulate || !str_context) return -1;
  Py_INCREF(call_type);
  if (PyModule_AddObject(module, "BriefCall", reinterpret_cast<PyObject*>(call_type)) != 0 ||
      PyModule_AddObject(module, "BriefCalls", type) != 0)
    return -1;
  return 0;
}

}  // namespace adbg
