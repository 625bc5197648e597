#include "torch_events.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torch_engine.h"
#include "torch_graph.h"
#include "torch_nodes.h"
#include "torch_norms.h"
#include "torch_screen.h"
#include "torch_stacks.h"
#include "torch_tensors.h"
#include "torch_walk.h"

namespace adbg {
namespace {

const char* const kCapsule = "adbg._native.events";

// Stands last in a node's list, behind the hooks that the script put there: it sees what the node will be given.
class EventHook {
 public:
  virtual ~EventHook() {}
  virtual Tensors call(const Tensors& gradients) {
    Tensors& given = const_cast<Tensors&>(gradients);  // torch puts what is returned in its place: no copy is made
    if (!inputs_known()) learn_inputs(gradients);
    NodeRun* run = running();
    if (run && run->followed && !run->norms->measure(given, run->figure)) return ask_python(gradients);
    return std::move(given);
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};
EventHook* const hook = new (::operator new(sizeof(EventHook))) EventHook;  // nodes may hold it as the process ends

// An accumulate node is shared by the threads that train its parameter.
std::mutex lists_lock;

void in_order(std::vector<NodeEvents::Event>& events) {
  const auto before = [](const NodeEvents::Event& one, const NodeEvents::Event& other) { return one.begin < other.begin; };
  if (!std::is_sorted(events.begin(), events.end(), before)) std::stable_sort(events.begin(), events.end(), before);
}

using Shared = std::shared_ptr<NodeEvents>;

}  // namespace

NodeEvents::NodeEvents(size_t nodes, size_t most, bool norms) : norms_(norms), limit_(std::min(nodes + 1, most)) {
  events_.reserve(limit_);
}

void NodeEvents::begins(NodeRun& run, Tensors* gradients) {
  if (norms_) look(run, gradients);
  run.starts();
}

void NodeEvents::look(NodeRun& run, Tensors* gradients) {
  const bool others = others_hook(run.node, hook);
  if (others) run.only_torch = false;
  if (!run.only_torch) run.norms->clear();
  if (!gradients || others || !run.norms->measure(*gradients, run.figure)) {
    std::lock_guard<std::mutex> held(lists_lock);
    front_put(run.node, hook);
    run.hooked = true;
  }
}

void NodeEvents::worked(NodeRun& run) { run.stops(); }

void NodeEvents::left(NodeRun& run) {
  if (run.hooked) {
    std::lock_guard<std::mutex> held(lists_lock);
    front_take(run.node, hook);
  }
  if (!run.only_torch) run.norms->clear();
  if (!run.end) {
    if (run.whole) return;  // its gradient was asked for, and it did not run
    run.stops();
    run.figure.flags |= kFailed;
  }
  const Figure& figure = run.figure;
  std::lock_guard<std::mutex> held(lock_);
  if (events_.size() < limit_)  // there is room: nothing is allocated while nodes run
    events_.push_back({run.node, run.begin, run.end, figure.norm, figure.shape, figure.flags, run.thread});
  else
    lost_++;
}

NodeEvents::Taken NodeEvents::take() {
  Taken taken{{}, 0, scale_so_far()};
  {
    std::lock_guard<std::mutex> held(lock_);
    taken.events = events_;
    taken.lost = std::exchange(lost_, 0);
    events_.clear();
    limit_ -= std::min(limit_, taken.events.size());
  }
  in_order(taken.events);
  return taken;
}

NodeEvents::Taken NodeEvents::so_far(size_t start) {
  Taken taken{{}, 0, scale_so_far()};
  {
    std::lock_guard<std::mutex> held(lock_);
    taken.events.assign(events_.begin() + static_cast<ptrdiff_t>(std::min(start, events_.size())), events_.end());
    taken.lost = lost_;
  }
  in_order(taken.events);
  return taken;
}

namespace {

// ---- as Python sees it

void free_capsule(PyObject* capsule) {
  delete static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule));
}

Shared* from_capsule(PyObject* capsule) { return static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule)); }

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// `places`: a uint32 for each key. False with an exception set.
bool pack(const NodeEvents::Taken& taken, const Keys& keys, const char* places, Rows& rows) {
  rows = {PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(taken.events.size() * sizeof(Row))), 0, taken.lost, 0};
  if (!rows.bytes) return false;
  char* out = PyBytes_AS_STRING(rows.bytes);
  for (const NodeEvents::Event& event : taken.events) {
    const uint32_t key = keys.find(event.node);
    if (key == kNoKey) continue;  // one that the engine put in front of several roots
    const float us = static_cast<float>(taken.scale.spent(event.begin, event.end) / 1000);
    Row row{key, 0, taken.scale.ns(event.begin), event.norm, us, event.flags, event.thread};
    memcpy(&row.index, places + 4 * size_t{key}, 4);
    memcpy(out + rows.count++ * sizeof(Row), &row, sizeof row);
    rows.shapes += mix(mix(1, key), event.shape);  // in any order: threads may run them in another one
  }
  return rows.count == taken.events.size() ||
         _PyBytes_Resize(&rows.bytes, static_cast<Py_ssize_t>(rows.count * sizeof(Row))) == 0;
}

}  // namespace

PyObject* torch_events(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  std::string why;
  if (!wanted) {
    engine_follow_none();
    return PyUnicode_FromString("");
  }
#if !defined(__x86_64__)
  return PyUnicode_FromString("how the engine returns its result was tried on x86_64 alone");
#endif
  if (node_layout.edges < 0 || !screen_ready()) return PyUnicode_FromString("the layout of nodes is not known");
  // A thread may hold it as another one forks: in the child nobody would give it back.
  static const int at_fork = pthread_atfork([] { lists_lock.lock(); }, [] { lists_lock.unlock(); }, [] { lists_lock.unlock(); });
  (void)at_fork;
  if (engine_find(why)) engine_put(why);
  return PyUnicode_FromString(why.c_str());
}

PyObject* torch_events_begin(PyObject*, PyObject* arguments) {
  PyObject *walk, *tensor;
  Py_ssize_t most;
  int norms = 1;
  if (!PyArg_ParseTuple(arguments, "OOn|p", &walk, &tensor, &most, &norms)) return nullptr;
  const Graph* walked = graph_in(walk);
  if (!walked) return nullptr;
  if (!engine_on() || most < 0) Py_RETURN_NONE;
  void* impl = tensor_behind(tensor);
  if (!impl || !is_plain(impl)) Py_RETURN_NONE;
  try {
    auto events = std::make_shared<NodeEvents>(walked->nodes.size(), static_cast<size_t>(most), norms != 0);
    follow_next(events);
    return PyCapsule_New(new Shared(events), kCapsule, free_capsule);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

namespace {

// The graph behind `walk`, whose keys `positions` has; nullptr with an exception set.
const Graph* graph_of(PyObject* walk, PyObject* positions) {
  const Graph* walked = graph_in(walk);
  if (walked && static_cast<size_t>(PyBytes_GET_SIZE(positions)) != walked->nodes.size() * 4) {
    PyErr_SetString(PyExc_ValueError, "four bytes for each node");
    return nullptr;
  }
  return walked;
}

}  // namespace

PyObject* torch_events_take(PyObject*, PyObject* arguments) {
  PyObject *capsule, *walk, *positions;
  if (!PyArg_ParseTuple(arguments, "OOS", &capsule, &walk, &positions)) return nullptr;
  Shared* watched = from_capsule(capsule);
  const Graph* walked = watched ? graph_of(walk, positions) : nullptr;
  if (!walked) return nullptr;
  Rows rows;
  if (!pack((*watched)->take(), walked->keys, PyBytes_AS_STRING(positions), rows)) return nullptr;
  return Py_BuildValue("(NKK)", rows.bytes, static_cast<unsigned long long>(rows.lost),
                       static_cast<unsigned long long>(rows.shapes));
}

PyObject* torch_events_since(PyObject*, PyObject* arguments) {
  PyObject *capsule, *walk, *positions;
  Py_ssize_t start;
  if (!PyArg_ParseTuple(arguments, "OOSn", &capsule, &walk, &positions, &start)) return nullptr;
  Shared* watched = from_capsule(capsule);
  const Graph* walked = watched ? graph_of(walk, positions) : nullptr;
  if (!walked) return nullptr;
  try {
    Rows rows;
    const bool packed = pack((*watched)->so_far(start < 0 ? 0 : static_cast<size_t>(start)), walked->keys,
                             PyBytes_AS_STRING(positions), rows);
    return packed ? rows.bytes : nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

Follow events_next(PyObject* tensor, size_t nodes) {
  void* impl = engine_on() ? tensor_behind(tensor) : nullptr;
  if (!impl || !is_plain(impl)) return nullptr;
  auto events = std::make_shared<NodeEvents>(nodes, nodes + 1);
  follow_next(events);
  return events;
}

bool events_rows(const Follow& events, const Keys& keys, PyObject* positions, Rows& rows) {
  return pack(static_cast<NodeEvents*>(events.get())->so_far(), keys, PyBytes_AS_STRING(positions), rows);
}

PyObject* events_capsule(const Follow& events) {
  auto* shared = new (std::nothrow) Shared(std::static_pointer_cast<NodeEvents>(events));
  return shared ? PyCapsule_New(shared, kCapsule, free_capsule) : PyErr_NoMemory();
}

PyObject* torch_events_end(PyObject*, PyObject* capsule) {
  Shared* watched = from_capsule(capsule);
  if (!watched) return nullptr;
  follow_over(*watched);
  Py_RETURN_NONE;
}

PyObject* torch_alike(PyObject*, PyObject* walk) {
  const Graph* walked = graph_in(walk);
  if (!walked) return nullptr;
  const std::vector<void*>& nodes = walked->nodes;
  if (node_layout.leaf < 0 || nodes.empty()) Py_RETURN_NONE;
  Alike alike(nodes[0]);
  for (void* node : nodes) {
    uint64_t python;
    if (!python_number(node, python)) Py_RETURN_NONE;
    alike.node(node, python, stack_number(node));
    char* const* bounds = &at_offset<char*>(node, node_layout.edges);
    for (char* edge = bounds[0]; edge < bounds[1]; edge += node_layout.edge_bytes) {
      void* below = *reinterpret_cast<void**>(edge);
      alike.edge(below ? walked->keys.find(below) : kNoKey,
                 *reinterpret_cast<uint32_t*>(edge + node_layout.edge_bytes - 8));
    }
  }
  const std::set<uint32_t> distinct(walked->roots.begin(), walked->roots.end());
  return PyLong_FromUnsignedLongLong(alike.result(nodes.size(), distinct.size()));
}

PyObject* torch_events_figure(PyObject*, PyObject* arguments) {
  double norm;
  int nonfinite;
  if (!PyArg_ParseTuple(arguments, "dp", &norm, &nonfinite)) return nullptr;
  NodeRun* run = running();
  if (run && run->followed) {
    Figure& figure = run->figure;
    figure.norm = norm;
    figure.flags = static_cast<uint16_t>(figure.flags | kHasNorm | (nonfinite ? kNonfinite : 0));
  }
  Py_RETURN_NONE;
}

PyObject* torch_failures(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  std::string why;
  if (wanted) failures_put(why);
  else engine_restore();
  return PyUnicode_FromString(why.c_str());
}

PyObject* torch_failed(PyObject*, PyObject* walk) {
  const Graph* walked = graph_in(walk);
  if (!walked) return nullptr;
  void* node = failed_node();
  const uint32_t key = node ? walked->keys.find(node) : kNoKey;
  if (key == kNoKey) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(key);
}

PyObject* torch_events_interposed(PyObject*, PyObject*) { return engine_interposed(); }

}  // namespace adbg
