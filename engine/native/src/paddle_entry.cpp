// The way into Paddle's engine, in C++: `core.eager.run_backward` is ours while adbg is attached.
//
// A call in which nothing can be of interest is begun, run and written down without a line of Python. What it needs for
// that is learnt from Python, which decides each kind of call once; whatever is not plain goes to the Python function
// behind (`slow`), as without the extension. All of it runs under the GIL; the engine itself gives it up.
#include <time.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "frames.h"
#include "listeners.h"
#include "paddle_graph.h"
#include "paddle_runs.h"

namespace adbg {
namespace {

constexpr uint64_t kBetween = 250000000; // ns: so often a call goes the slow way, where observers have their say
constexpr double kLong = 20000;          // us: a call behind one that takes longer goes it too
constexpr uint64_t kFirst = 100;         // and the first ones of a process
constexpr size_t kMostKnown = 1024, kMostPlaces = 1024, kMostRoots = 8;

enum Mode : int { kSlow = 0, kUnarmed = 1, kArmed = 2 };

// ---- what Python said. Objects are owned.

struct Verdict {
  PyObject* roots;  // the names of the root nodes, a tuple
  bool watched;     // gradients that are not finite are looked for meanwhile
};
struct Object {  // a reference that is let go of by `clear` alone: never as the process ends
  PyObject* held = nullptr;
  void set(PyObject* object) {
    Py_XINCREF(object);
    Py_XSETREF(held, object);
  }
  template <typename... Arguments>
  PyObject* operator()(Arguments... arguments) const {  // another thread may set another one meanwhile
    PyObject* called = held;
    Py_INCREF(called);
    PyObject* result = PyObject_CallFunctionObjArgs(called, arguments..., nullptr);
    Py_DECREF(called);
    return result;
  }
};

Mode mode = kSlow;
Object ended, found, has_grad, stop_gradient, tensor_type;
Listeners& listeners = *new Listeners;  // never freed: Python is gone as the process ends
int64_t meta_at = -1, node_at = -1;
void* accumulate_class = nullptr;
std::unordered_map<uint64_t, Verdict> verdicts;
std::unordered_map<uint32_t, PyObject*> places;  // by stack: (file, line)

// ---- calls

uint64_t last_number = 0, last_iteration = 0, last_slow = 0;
uint64_t age = 1;  // of what is learnt: another one after each `paddle_entry_mode`
bool was_long = false;

struct Current {  // the quick call that runs on a thread
  PyObject* const* arguments;
  Py_ssize_t count;
  uint64_t number, iteration, begin;
  double began;
  uint32_t nodes;
  PyObject *roots, *place, *frame;
  bool watched, opened;  // opened: Python knows of it
};
struct Thread {
  int depth = 0, passing = 0;
  uint32_t stack = 0;  // of a call that goes the slow way, where its place is not known
  Current* current = nullptr;
};
Thread& here() {
  static thread_local Thread found;
  return found;
}

uint64_t now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

void forget_learnt() {
  std::vector<PyObject*> dropped;
  for (auto& [key, verdict] : verdicts) dropped.push_back(verdict.roots);
  for (auto& [stack, place] : places) dropped.push_back(place);
  verdicts.clear();
  places.clear();
  for (PyObject* object : dropped) Py_DECREF(object);
}

uint64_t key_of(const Surveyed& told, bool alike) {
  if (!alike) return mix(told.kinds + 1);
  return mix(mix(mix(told.kinds + 2) + told.first) + told.second + told.nodes);
}

const Verdict* verdict_of(const Surveyed& told) {
  auto one = verdicts.find(key_of(told, false));
  if (one == verdicts.end()) one = verdicts.find(key_of(told, true));
  return one == verdicts.end() ? nullptr : &one->second;
}

// The node that made a tensor; nullptr: the call is not a plain one.
void* root_of(PyObject* tensor, bool armed) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != tensor_type.held) return nullptr;
  void *meta, *node = nullptr;
  memcpy(&meta, reinterpret_cast<char*>(tensor) + meta_at, 8);
  if (meta) memcpy(&node, static_cast<char*>(meta) + node_at, 8);
  if (!node || class_of(node) == accumulate_class) return nullptr;  // a leaf: nothing runs of it
  if (!armed) return node;
  PyObject* stops = PyObject_GetAttr(tensor, stop_gradient.held);
  const bool plain = stops == Py_False;
  if (!stops) PyErr_Clear();
  Py_XDECREF(stops);
  return plain ? node : nullptr;
}

PyObject* slow_call(PyObject* slow, PyObject* const* arguments, size_t count, PyObject* names) {
  Thread& thread = here();
  thread.depth++;
  PyObject* result = PyObject_Vectorcall(slow, arguments, count, names);
  thread.depth--;
  return result;
}

// Python's side of a call that it knows of, or that failed. Takes over the exception that is set, and sets what is raised.
PyObject* ended_in_python(PyObject* result, bool grad) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  if (!result) {
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) PyException_SetTraceback(value, trace);
  }
  PyObject* raise = ended(value ? value : Py_None, grad ? Py_True : Py_False);
  if (!raise) {  // an exception of the script's own, come in between
    Py_CLEAR(result);
  } else if (raise != Py_None) {
    Py_CLEAR(result);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raise)), raise);
  } else if (!result) {
    if (value) Py_XSETREF(trace, PyException_GetTraceback(value));
    PyErr_Restore(type, value, trace);
    type = value = trace = nullptr;
  }
  Py_XDECREF(raise);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return result;
}

// The first argument's tensors and their nodes. False: the call is not a plain one.
bool roots_of(PyObject* const* arguments, Py_ssize_t count, std::vector<void*>& nodes) {
  if (count < 1 || !(PyList_CheckExact(arguments[0]) || PyTuple_CheckExact(arguments[0]))) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(arguments[0]);
  if (size < 1 || size > static_cast<Py_ssize_t>(kMostRoots)) return false;
  for (Py_ssize_t i = 0; i < size; i++) {
    void* node = root_of(PySequence_Fast_GET_ITEM(arguments[0], i), mode == kArmed);
    if (!node) return false;
    bool known = false;
    for (void* each : nodes) known = known || each == node;
    if (!known) nodes.push_back(node);
  }
  return true;
}

bool is_true(PyObject* object) {  // of a plain bool; anything else counts as true
  return object != Py_False;
}

// Whether the call may be run without Python; fills in what is written down of it. -1 with an exception of the script's.
int plain(PyObject* const* arguments, Py_ssize_t count, Current& current, std::vector<void*>& nodes) {
  if (mode == kUnarmed) return roots_of(arguments, count, nodes);
  const uint64_t time = now(CLOCK_MONOTONIC);
  if (last_number < kFirst || was_long || time - last_slow > kBetween || runs_full()) return 0;
  const int hurries = listeners.hurried();
  if (hurries || mode != kArmed) return hurries < 0 ? -1 : 0;
  const uint32_t stack = capture();
  // From here on no Python runs, nor any other thread's: nodes, verdict and place stay.
  if (mode != kArmed || !roots_of(arguments, count, nodes)) return 0;
  const Surveyed told = paddle_survey_of(nodes);
  const Verdict* verdict = verdict_of(told);
  const auto place = places.find(stack);
  if (!verdict || place == places.end()) return 0;
  current.nodes = static_cast<uint32_t>(told.nodes);
  Py_INCREF(current.roots = verdict->roots);
  Py_INCREF(current.place = place->second);
  if (verdict->watched) {
    if (!paddle_watch_on(nodes, found.held)) return 0;
    current.watched = true;
  }
  return 1;
}

void let_go(Current& current) {
  Py_CLEAR(current.roots);
  Py_CLEAR(current.place);
  Py_CLEAR(current.frame);
}

void write_down(Current& current, uint64_t end) {
  const double us = static_cast<double>(end - current.begin) / 1000.0;
  was_long = us > kLong;
  try {
    add_run({current.number, current.iteration, static_cast<uint64_t>(PyThread_get_thread_ident()), current.began,
             us, current.nodes, current.roots, current.place});
    current.roots = current.place = nullptr;
  } catch (const std::bad_alloc&) {  // above are frames of C: it is not told of
  }
}

PyObject* quick_call(PyObject* real, PyObject* const* arguments, Py_ssize_t count, Current& current) {
  Thread& thread = here();
  current.arguments = arguments;
  current.count = count;
  current.number = ++last_number;
  current.iteration = ++last_iteration;
  current.frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  Py_XINCREF(current.frame);
  const bool armed = current.roots != nullptr;
  PyObject* recorded = has_grad();
  const bool grad = recorded != Py_False;
  if (!recorded) PyErr_Clear();
  Py_XDECREF(recorded);
  current.began = static_cast<double>(now(CLOCK_REALTIME)) / 1e9;
  if (armed) {
    listeners.note(current.number, current.began, 0.0);
  }
  thread.depth++;
  thread.current = &current;
  current.begin = now(CLOCK_MONOTONIC);
  PyObject* result = PyObject_Vectorcall(real, arguments, static_cast<size_t>(count), nullptr);
  const uint64_t end = now(CLOCK_MONOTONIC);
  if (!result || current.opened) {
    result = ended_in_python(result, grad);
    if (current.watched && !current.opened) paddle_watch_off();
    thread.current = nullptr;
    thread.depth--;
    let_go(current);
    return result;
  }
  thread.current = nullptr;
  thread.depth--;
  if (current.watched) paddle_watch_off();
  if (count < 3 || !is_true(arguments[2]))
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arguments[0]) && i < static_cast<Py_ssize_t>(kMostRoots); i++) {
      PyObject* tensor = PySequence_Fast_GET_ITEM(arguments[0], i);
      Py_INCREF(tensor);  // code of the program's may run, and take it out of the list
      if (void* node = root_of(tensor, false)) add_spent(tensor, node);
      Py_DECREF(tensor);
    }
  if (armed) {
    listeners.note(current.number, current.began, static_cast<double>(now(CLOCK_REALTIME)) / 1e9);
    const bool first = runs_empty();
    write_down(current, end);
    if (first && !listeners.woken()) Py_CLEAR(result);
  }
  let_go(current);
  return result;
}

// self: (the Python function, Paddle's own)
PyObject* entry(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  PyObject *slow = PyTuple_GET_ITEM(self, 0), *real = PyTuple_GET_ITEM(self, 1);
  Thread& thread = here();
  if (mode == kSlow || thread.depth || thread.passing || (names && PyTuple_GET_SIZE(names))) {
    return slow_call(slow, arguments, static_cast<size_t>(count), names);
  }
  Current current{};
  std::vector<void*> nodes;
  int quick;
  try {
    quick = plain(arguments, count, current, nodes);
    if (!quick && mode == kArmed) {
      last_slow = now(CLOCK_MONOTONIC);
      was_long = false;
      thread.stack = capture();
      if (places.count(thread.stack)) thread.stack = 0;
    }
  } catch (const std::bad_alloc&) {
    quick = 0;
  }
  if (quick == 1) return quick_call(real, arguments, count, current);
  let_go(current);
  if (quick < 0) return nullptr;
  return slow_call(slow, arguments, static_cast<size_t>(count), nullptr);
}

// paddle.grad: the slow way, but what begins inside is nested.
PyObject* entry_slow(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return slow_call(PyTuple_GET_ITEM(self, 0), arguments, static_cast<size_t>(count), names);
}

PyMethodDef entry_method = {"run_backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(entry)),
                            METH_FASTCALL | METH_KEYWORDS, nullptr};
PyMethodDef slow_method = {"run_partial_grad", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(entry_slow)),
                           METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

int paddle_depth() { return here().depth; }

PyObject* paddle_entry_make(PyObject*, PyObject* arguments) {
  PyObject *slow, *real;
  int partial;
  if (!PyArg_ParseTuple(arguments, "OOp", &slow, &real, &partial)) return nullptr;
  if (!PyCallable_Check(slow) || !PyCallable_Check(real)) {
    PyErr_SetString(PyExc_TypeError, "two functions");
    return nullptr;
  }
  PyObject* self = PyTuple_Pack(2, slow, real);
  PyObject* made = self ? PyCFunction_New(partial ? &slow_method : &entry_method, self) : nullptr;
  Py_XDECREF(self);
  return made;
}

PyObject* paddle_entry_begin(PyObject*, PyObject* arguments) {
  PyObject *type, *end, *bad, *grad;
  long long meta, node;
  unsigned long long leaf, numbers, iterations;
  if (!PyArg_ParseTuple(arguments, "OLLKOOOKK", &type, &meta, &node, &leaf, &end, &bad, &grad, &numbers, &iterations))
    return nullptr;
  if (!PyType_Check(type) || !PyCallable_Check(end) || !PyCallable_Check(bad) || !PyCallable_Check(grad) || meta < 16 ||
      meta > 512 || meta % 8 || node < 0 || node > 512 || node % 8 || !leaf) {
    PyErr_SetString(PyExc_LookupError, "a tensor is not laid out as expected");
    return nullptr;
  }
  PyObject* name = PyUnicode_InternFromString("stop_gradient");
  if (!name) return nullptr;
  stop_gradient.set(name);
  Py_DECREF(name);
  tensor_type.set(type);
  ended.set(end);
  found.set(bad);
  has_grad.set(grad);
  meta_at = meta;
  node_at = node;
  accumulate_class = reinterpret_cast<void*>(static_cast<uintptr_t>(leaf));
  last_number = numbers;
  last_iteration = iterations;
  drop_runs();
  Py_RETURN_NONE;
}

PyObject* paddle_entry_mode(PyObject*, PyObject* arguments) {
  int wanted;
  PyObject *ask, *words, *wakes, *bytes;
  if (!PyArg_ParseTuple(arguments, "iO!O!OO", &wanted, &PyTuple_Type, &ask, &PyTuple_Type, &words, &wakes, &bytes))
    return nullptr;
  if (wanted < kSlow || wanted > kArmed || (wanted != kSlow && meta_at < 0) ||
      (wanted == kArmed && !PyCallable_Check(wakes))) {
    PyErr_SetString(PyExc_ValueError, "0: the slow way, 1: nothing is armed, 2: with a function; after paddle_entry_begin");
    return nullptr;
  }
  mode = kSlow;  // until all of it is in place: what is let go of may run code of the program's
  age++;
  forget_learnt();
  if (wanted != kArmed) listeners.clear();
  else if (!listeners.set(ask, words, wakes, bytes)) return nullptr;
  last_slow = 0;
  mode = static_cast<Mode>(wanted);
  Py_RETURN_NONE;
}

PyObject* paddle_entry_learn(PyObject*, PyObject* arguments) {
  unsigned long long asked, nodes, kinds, first, second;
  int alike, watched;
  PyObject *roots, *file;
  int line;
  if (!PyArg_ParseTuple(arguments, "KKK(KK)ppO!Ui", &asked, &nodes, &kinds, &first, &second, &alike, &watched,
                        &PyTuple_Type, &roots, &file, &line))
    return nullptr;
  if (mode != kArmed || asked != age) Py_RETURN_NONE;  // decided before another thread changed what is armed
  if (verdicts.size() >= kMostKnown || places.size() >= kMostPlaces) forget_learnt();
  Thread& thread = here();
  try {
    const Surveyed told{static_cast<size_t>(nodes), kinds, first, second};
    if (verdicts.emplace(key_of(told, alike != 0), Verdict{roots, watched != 0}).second) Py_INCREF(roots);
    if (thread.stack) {
      PyObject* place = Py_BuildValue("(Oi)", file, line);
      if (!place) return nullptr;
      if (!places.emplace(thread.stack, place).second) Py_DECREF(place);
      thread.stack = 0;
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* paddle_entry_age(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(age); }

PyObject* paddle_entry_running(PyObject*, PyObject*) {
  const Current* current = here().current;
  return PyBool_FromLong(current && !current->opened);
}

PyObject* paddle_entry_open(PyObject*, PyObject*) {
  Current* current = here().current;
  if (!current || current->opened) Py_RETURN_NONE;
  current->opened = true;  // before anything is made: a finalizer of the program's may run meanwhile, and ask
  PyObject* arguments = PyTuple_New(current->count);
  if (!arguments) {
    current->opened = false;
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < current->count; i++) {
    Py_INCREF(current->arguments[i]);
    PyTuple_SET_ITEM(arguments, i, current->arguments[i]);
  }
  PyObject* answer = Py_BuildValue(
      "(NKKKOIOOO)", arguments, static_cast<unsigned long long>(current->number),
      static_cast<unsigned long long>(current->iteration), static_cast<unsigned long long>(current->begin),
      current->frame ? current->frame : Py_None, current->nodes, current->roots ? current->roots : Py_None,
      current->place ? current->place : Py_None, current->watched ? Py_True : Py_False);
  if (!answer) current->opened = false;
  return answer;
}

PyObject* paddle_entry_count(PyObject*, PyObject* which) {
  const long asked = PyLong_AsLong(which);
  if (asked == -1 && PyErr_Occurred()) return nullptr;
  if (asked == 1) last_number++;
  if (asked == 2) last_iteration++;
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(last_number), static_cast<unsigned long long>(last_iteration));
}

PyObject* paddle_entry_pass(PyObject*, PyObject* by) {
  const long wanted = PyLong_AsLong(by);
  if (wanted == -1 && PyErr_Occurred()) return nullptr;
  Thread& thread = here();
  thread.passing = wanted > 0 ? thread.passing + 1 : wanted < 0 && thread.passing > 0 ? thread.passing - 1 : 0;
  Py_RETURN_NONE;
}

}  // namespace adbg
