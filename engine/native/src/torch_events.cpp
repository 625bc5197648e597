#include "torch_events.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "slots.h"
#include "torch_graph.h"
#include "torch_nodes.h"
#include "torch_norms.h"
#include "torch_screen.h"
#include "torch_stacks.h"
#include "torch_tensors.h"
#include "torch_walk.h"

namespace adbg {
namespace {

const char* const kLibraries[] = {"libtorch", nullptr};
const char* const kCapsule = "adbg._native.events";

constexpr uint16_t kFailed = 4;  // beside those of a Figure

struct Event {
  void* node;
  uint64_t begin, end;  // CLOCK_MONOTONIC, ns
  double norm;
  uint32_t shape;  // a hash of the gradient's sizes and type; 0 where there was none
  uint16_t flags, thread;
};

// One backward. Written by the threads that run its nodes, read by the one that takes.
struct Watched {
  // One more than there are nodes: the engine may put one of its own in front of several roots.
  Watched(size_t nodes, size_t most) : limit(std::min(nodes + 1, most)) { events.reserve(limit); }
  void write(const Event& event) {
    std::lock_guard<std::mutex> held(lock);
    if (events.size() < limit) events.push_back(event);  // there is room: nothing is allocated while nodes run
    else lost++;
  }
  std::mutex lock;
  std::vector<Event> events;
  size_t limit;
  uint64_t lost = 0;
  bool hooked = false;  // under the GIL
};
using Shared = std::shared_ptr<Watched>;

// ---- which graph task is whose: a task is an address while its call runs

struct Task {
  void* task;
  Shared watched;
};
std::mutex tasks_lock;
std::vector<Task> tasks;
std::atomic<uint64_t> tasks_changed{1};
std::atomic<uint16_t> threads{0};
size_t begun = 0;  // calls that are written down now. Under the GIL

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

struct Frame;
struct Thread {
  Frame* innermost = nullptr;
  uint64_t seen = 0;  // value of tasks_changed that `task` was looked up at
  void* task = nullptr;
  Shared watched;
  Shared next;  // of the backward that this thread is about to begin
  uint16_t number = 0;
  Norms norms;
};
thread_local Thread mine;

struct Frame {
  void* node;
  Watched* watched;  // nullptr: of a backward that is not written down
  Frame* outer;
  uint64_t begin, end;
  Figure figure;
};

Watched* watched_of(void* task) {
  Thread& here = mine;
  const uint64_t changed = tasks_changed.load(std::memory_order_acquire);
  if (here.seen != changed || here.task != task) {
    std::lock_guard<std::mutex> held(tasks_lock);
    here.seen = tasks_changed.load(std::memory_order_relaxed);
    here.task = task;
    here.watched.reset();
    for (const Task& each : tasks)
      if (each.task == task) here.watched = each.watched;
  }
  return here.watched.get();
}

// Stands last in the nodes' lists, behind the hooks that the script put there: it sees what the node will be given.
class EventHook {
 public:
  virtual ~EventHook() {}
  virtual Tensors call(const Tensors& gradients) {
    Tensors& given = const_cast<Tensors&>(gradients);  // torch puts what is returned in its place: no copy is made
    Frame* frame = mine.innermost;
    if (frame && frame->watched && !mine.norms.measure(given, frame->figure)) return ask_python(gradients);
    return std::move(given);
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};
EventHook* const hook = new (::operator new(sizeof(EventHook))) EventHook;  // nodes may hold it as the process ends

// ---- what stands in for functions of the engine's

void evaluate(void* engine, void* task, void* node, void* inputs, void* queue);
void validate(void* edges, void* gradients, void* format);
void* execute(void* result, void* engine, void* task, void* root, void* inputs);

Interposed evaluating(
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_"
    "INS0_10ReadyQueueEE",
    reinterpret_cast<void*>(evaluate));
Interposed validating(
    "_ZN5torch8autograd16validate_outputsERKSt6vectorINS0_4EdgeESaIS2_EERS1_IN2at6TensorESaIS8_EERKSt8functionIFNSt7__"
    "cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSI_EE",
    reinterpret_cast<void*>(validate));
Interposed executing(
    "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_"
    "4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE",
    reinterpret_cast<void*>(execute));
Interposed* const all[] = {&evaluating, &validating, &executing};

using Evaluate = void (*)(void*, void*, void*, void*, void*);
using Validate = void (*)(void*, void*, void*);
using Execute = void* (*)(void*, void*, void*, void*, void*);

// A node runs: what it did is written as it is left, by an exception too.
struct Visit {
  Frame frame;
  Visit(void* node, Watched* watched) : frame{node, watched, mine.innermost, 0, 0, {}} {
    mine.innermost = &frame;
    if (watched) frame.begin = now();
  }
  ~Visit() {
    mine.innermost = frame.outer;
    if (!frame.watched) return;
    if (!frame.end) {
      if (whole) return;  // its gradient was asked for, and it did not run
      frame.end = now();
      frame.figure.flags |= kFailed;
    }
    if (!mine.number) mine.number = static_cast<uint16_t>(threads.fetch_add(1) + 1);
    const Figure& figure = frame.figure;
    frame.watched->write({frame.node, frame.begin, frame.end, figure.norm, figure.shape, figure.flags, mine.number});
  }
  bool whole = false;
};

// Whether nothing but torch's own C++ runs at this node, whose changes in place are counted.
bool only_torch(void* node) {
  constexpr size_t kPlaces = 256;
  struct Type {
    void* table;
    bool own;
  };
  thread_local Type types[kPlaces];
  void* table = *static_cast<void**>(node);
  size_t place = reinterpret_cast<uint64_t>(table) * 0x9E3779B97F4A7C15ull >> 56;
  for (int tries = 0; tries < 8 && types[place].table && types[place].table != table; tries++) place = (place + 1) % kPlaces;
  Type& type = types[place];
  if (type.table != table) {
    void* info = nullptr;
    const char* name = nullptr;
    char text[96] = {0};
    const bool read = read_safely(static_cast<char*>(table) - 8, &info, 8) &&
                      read_safely(static_cast<char*>(info) + 8, &name, 8) && read_text(name, text, sizeof text);
    type = {table, read && !strncmp(text, "N5torch8autograd", 16) && !strstr(text, "PyNode") && !strstr(text, "CppNode")};
  }
  return type.own && !others_hook(node, hook);
}

void evaluate(void* engine, void* task, void* node, void* inputs, void* queue) {
  const auto real = reinterpret_cast<Evaluate>(evaluating.real());
  Watched* watched = watched_of(*static_cast<void**>(task));
  if (!watched && !mine.innermost) return real(engine, task, node, inputs, queue);
  const Shared held = watched ? mine.watched : nullptr;  // a nested backward puts another one there
  Visit visit(node, watched);
  const bool only = only_torch(node);
  if (!only) mine.norms.clear();
  real(engine, task, node, inputs, queue);
  if (!only) mine.norms.clear();
  visit.whole = true;
}

// Right behind a node's own work. The edges that are handed in lie in the node, which tells it from others.
void validate(void* edges, void* gradients, void* format) {
  Frame* frame = mine.innermost;
  if (frame && frame->watched && static_cast<char*>(edges) - node_layout.edges == frame->node) frame->end = now();
  reinterpret_cast<Validate>(validating.real())(edges, gradients, format);
}

void* execute(void* result, void* engine, void* task, void* root, void* inputs) {
  const auto real = reinterpret_cast<Execute>(executing.real());
  Shared watched = std::move(mine.next);
  mine.next.reset();
  if (!watched) return real(result, engine, task, root, inputs);
  struct Bound {
    void* task;
    Bound(void* its, Shared& its_watched) : task(its) {
      std::lock_guard<std::mutex> held(tasks_lock);
      tasks.push_back({task, its_watched});
      tasks_changed.fetch_add(1, std::memory_order_release);
    }
    ~Bound() {
      {
        std::lock_guard<std::mutex> held(tasks_lock);
        tasks.erase(std::remove_if(tasks.begin(), tasks.end(), [&](const Task& each) { return each.task == task; }),
                    tasks.end());
        tasks_changed.fetch_add(1, std::memory_order_release);
      }
      if (mine.innermost) return;
      mine.watched.reset();
      mine.task = nullptr;
      mine.norms.clear();
    }
  } bound(*static_cast<void**>(task), watched);
  return real(result, engine, task, root, inputs);
}

// ---- as Python sees it

void free_capsule(PyObject* capsule) {
  delete static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule));
}

Shared* from_capsule(PyObject* capsule) { return static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule)); }

void before_fork() { tasks_lock.lock(); }
void after_fork() { tasks_lock.unlock(); }

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

bool parse(PyObject* arguments, const char* format, Shared*& watched, const Graph*& walked, PyObject** more = nullptr) {
  PyObject *capsule, *walk;
  if (more ? !PyArg_ParseTuple(arguments, format, &capsule, &walk, more)
           : !PyArg_ParseTuple(arguments, format, &capsule, &walk))
    return false;
  watched = from_capsule(capsule);
  walked = watched ? graph_in(walk) : nullptr;
  return walked != nullptr;
}

}  // namespace

PyObject* torch_events(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  std::string why;
  if (!wanted) {
    events_restore();
    return PyUnicode_FromString("");
  }
#if !defined(__x86_64__)
  return PyUnicode_FromString("how the engine returns its result was tried on x86_64 alone");
#endif
  if (node_layout.edges < 0 || !screen_ready()) return PyUnicode_FromString("the layout of nodes is not known");
  for (Interposed* each : all)
    if (!each->find(kLibraries, why)) return PyUnicode_FromString(why.c_str());
  static const int at_fork = pthread_atfork(before_fork, after_fork, after_fork);
  (void)at_fork;
  for (Interposed* each : all)
    if (!each->put(why)) {
      events_restore();
      break;
    }
  return PyUnicode_FromString(why.c_str());
}

PyObject* torch_events_begin(PyObject*, PyObject* arguments) {
  PyObject *walk, *tensor;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(arguments, "OOn", &walk, &tensor, &most)) return nullptr;
  const Graph* walked = graph_in(walk);
  if (!walked) return nullptr;
  if (!executing.on() || most < 0) Py_RETURN_NONE;
  void* impl = tensor_behind(tensor);
  if (!impl || !is_plain(impl)) Py_RETURN_NONE;
  try {
    auto watched = std::make_shared<Watched>(walked->nodes.size(), static_cast<size_t>(most));
    for (void* node : walked->nodes) front_put(node, hook);
    watched->hooked = true;
    begun++;
    mine.next = watched;
    PyObject* capsule = PyCapsule_New(new Shared(watched), kCapsule, free_capsule);
    return capsule;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* torch_events_take(PyObject*, PyObject* arguments) {
  Shared* watched;
  const Graph* walked;
  PyObject* positions;
  if (!parse(arguments, "OOS", watched, walked, &positions)) return nullptr;
  if (static_cast<size_t>(PyBytes_GET_SIZE(positions)) != walked->nodes.size() * 4) {
    PyErr_SetString(PyExc_ValueError, "four bytes for each node");
    return nullptr;
  }
  std::vector<Event> events;
  uint64_t lost;
  {
    std::lock_guard<std::mutex> held((*watched)->lock);
    events = (*watched)->events;
    (*watched)->events.clear();
    lost = std::exchange((*watched)->lost, 0);
    (*watched)->limit -= std::min((*watched)->limit, events.size());
  }
  const auto before = [](const Event& one, const Event& other) { return one.begin < other.begin; };
  if (!std::is_sorted(events.begin(), events.end(), before)) std::stable_sort(events.begin(), events.end(), before);
  struct Row {
    uint32_t key, index;
    uint64_t begin;
    double norm;
    float us;
    uint16_t flags, thread;
  };
  static_assert(sizeof(Row) == 32, "as Python reads it");
  const char* place = PyBytes_AS_STRING(positions);
  PyObject* rows = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(events.size() * sizeof(Row)));
  if (!rows) return nullptr;
  char* out = PyBytes_AS_STRING(rows);
  size_t count = 0;
  uint64_t shapes = 0;
  for (const Event& event : events) {
    const uint32_t key = walked->keys.find(event.node);
    if (key == UINT32_MAX) continue;  // one that the engine put in front of several roots
    Row row{key, 0, event.begin, event.norm, static_cast<float>(event.end - event.begin) / 1000.0f, event.flags,
            event.thread};
    memcpy(&row.index, place + 4 * key, 4);
    memcpy(out + count++ * sizeof(Row), &row, sizeof row);
    shapes += mix(mix(1, key), event.shape);  // in any order: threads may run them in another one
  }
  if (count != events.size() && _PyBytes_Resize(&rows, static_cast<Py_ssize_t>(count * sizeof(Row))) != 0) return nullptr;
  return Py_BuildValue("(NKK)", rows, static_cast<unsigned long long>(lost), static_cast<unsigned long long>(shapes));
}

PyObject* torch_events_end(PyObject*, PyObject* arguments) {
  Shared* watched;
  const Graph* walked;
  if (!parse(arguments, "OO", watched, walked)) return nullptr;
  if (mine.next == *watched) mine.next.reset();  // the engine did not begin
  if (std::exchange((*watched)->hooked, false)) {
    if (begun) begun--;
    // Where another one runs, its thread may be reading these very lists: the hook stays, and does nothing.
    if (!begun)
      for (void* node : walked->nodes) front_take(node, hook);
  }
  Py_RETURN_NONE;
}

PyObject* torch_alike(PyObject*, PyObject* walk) {
  const Graph* walked = graph_in(walk);
  if (!walked) return nullptr;
  const std::vector<void*>& nodes = walked->nodes;
  if (node_layout.leaf < 0 || nodes.empty()) Py_RETURN_NONE;
  const uint64_t first = sequence_of(nodes[0]);
  uint64_t hash = nodes.size();
  for (void* node : nodes) {
    const uint64_t number = sequence_of(node);
    hash = mix(hash, *static_cast<uint64_t*>(node));  // its type, by the table of its functions
    hash = mix(hash, number == UINT64_MAX ? at_offset<uint64_t>(node, node_layout.leaf) : first - number);
    hash = mix(hash, stack_number(node));
    char* const* bounds = &at_offset<char*>(node, node_layout.edges);
    for (char* edge = bounds[0]; edge < bounds[1]; edge += node_layout.edge_bytes) {
      void* below = *reinterpret_cast<void**>(edge);
      hash = mix(hash, below ? walked->keys.find(below) : UINT64_MAX);
      hash = mix(hash, *reinterpret_cast<uint32_t*>(edge + node_layout.edge_bytes - 8));
    }
  }
  return PyLong_FromUnsignedLongLong(hash);
}

PyObject* torch_events_figure(PyObject*, PyObject* arguments) {
  double norm;
  int nonfinite;
  if (!PyArg_ParseTuple(arguments, "dp", &norm, &nonfinite)) return nullptr;
  Frame* frame = mine.innermost;
  if (frame && frame->watched) {
    Figure& figure = frame->figure;
    figure.norm = norm;
    figure.flags = static_cast<uint16_t>(figure.flags | kHasNorm | (nonfinite ? kNonfinite : 0));
  }
  Py_RETURN_NONE;
}

PyObject* torch_events_interposed(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const Interposed* each : all) {
    PyObject* entry = list ? Py_BuildValue("(sNn)", each->symbol(), PyBool_FromLong(each->on()),
                                           static_cast<Py_ssize_t>(each->slots().size()))
                           : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

void events_restore() {
  for (Interposed* each : all) each->restore();
}

void events_abandon() {
  std::lock_guard<std::mutex> held(tasks_lock);
  tasks.clear();
  tasks_changed.fetch_add(1);
  begun = 0;
  mine.next.reset();
}

}  // namespace adbg
