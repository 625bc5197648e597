#include "torch_brief_pass.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "layouts.h"
#include "torch_engine.h"
#include "torch_graph.h"
#include "torch_nodes.h"
#include "torch_tensors.h"
#include "torch_watch.h"

namespace adbg {
namespace {

constexpr uint64_t kFirst = 100;         // calls of a process that Python is told of at once
constexpr int64_t kBetween = 250000000;  // ns: so often it is asked about a call all the same
constexpr size_t kMostBytes = 16 << 20;  // of nodes that wait to be told

PyObject *str_grad_fn, *str_accumulate, *str_context, *str_compiling, *str_compiled;

// The frame above the innermost one: that is the entry's.
Frame* above_entry() {
  Frame* frame = innermost(PyThreadState_Get());
  while (frame && !counts(frame)) frame = caller(frame);
  frame = frame ? caller(frame) : nullptr;
  while (frame && !counts(frame)) frame = caller(frame);
  return frame;
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

}  // namespace

Call* pass(Calls* calls, PyObject* arguments, PyObject* keywords, bool& foreign) {
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
  return call;
}

int learn_names() {
  str_grad_fn = PyUnicode_InternFromString("grad_fn");
  str_accumulate = PyUnicode_InternFromString("accumulate_grad");
  str_context = PyUnicode_InternFromString("tracing_context");
  str_compiling = PyUnicode_InternFromString("torch._dynamo.compiled_autograd");
  str_compiled = PyUnicode_InternFromString("compiled_autograd_enabled");
  return str_grad_fn && str_accumulate && str_context && str_compiling && str_compiled ? 0 : -1;
}

}  // namespace adbg
