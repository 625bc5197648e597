#include "paddle_events.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "layouts.h"
#include "node_row.h"
#include "numbers.h"
#include "paddle_graph.h"
#include "paddle_tensors.h"
#include "raised_later.h"
#include "ticks.h"

namespace adbg {
namespace {

const char* const kCapsule = "adbg._native.paddle_events";
// Keys of nodes by address: open addressing, half of it used at most.
class Keys {
 public:
  explicit Keys(size_t size) {
    size_t room = 64;
    while (room < 2 * size + 2) room *= 2;
    places_.resize(room);
  }
  bool add(void* node, uint32_t key) {
    if ((used_ + 1) * 2 > places_.size()) grow();
    Place& place = places_[at(node)];
    if (place.node) return false;
    place = {node, key};
    used_++;
    return true;
  }
  uint32_t find(const void* node) const {
    const Place& place = places_[at(node)];
    return place.node ? place.key : UINT32_MAX;
  }

 private:
  struct Place {
    void* node = nullptr;
    uint32_t key = 0;
  };
  size_t at(const void* node) const {
    const size_t mask = places_.size() - 1;
    size_t index = mix(reinterpret_cast<uint64_t>(node)) & mask;
    while (places_[index].node && places_[index].node != node) index = (index + 1) & mask;
    return index;
  }
  void grow() {
    std::vector<Place> before(places_.size() * 2);
    before.swap(places_);
    for (const Place& place : before)
      if (place.node) places_[at(place.node)] = place;
  }
  std::vector<Place> places_;
  size_t used_ = 0;
};

// One backward. Touched by its thread; taken under the GIL by that one, or on it while it stands at a stop. Other threads
// that have the GIL read the first `done` rows: there is room for all, so that none is moved.
struct Events {
  std::vector<void*> nodes;  // by key: in the order in which a walk from the roots meets them
  Keys keys{64};
  std::vector<Row> rows;
  std::vector<uint32_t> shapes;
  std::atomic<size_t> done{0};
  size_t limit = 0;
  uint64_t lost = 0, alike = 0;
  int depth = 0;
  bool on = true;
  bool norms = true;  // false: the nodes' times alone are wanted, and nothing is read
  PyObject* ask = nullptr;  // let go of as it is over: the last who holds this may be a thread that ends, without the GIL
  std::shared_ptr<Events> outer;
  const TickScale scale = scale_so_far();

  Row row(uint32_t key, uint64_t begin, uint64_t end, double norm, uint16_t flags, uint16_t thread) const {
    return {key, 0, scale.ns(begin), norm, static_cast<float>(scale.spent(begin, end) / 1000), flags, thread};
  }
};
using Shared = std::shared_ptr<Events>;

std::atomic<uint16_t> threads{0};
struct Thread {
  Shared top;
  uint16_t number = 0;
};
Thread& mine() {
  static thread_local Thread found;
  return found;
}

uint16_t numbered(Thread& thread) {
  if (!thread.number) thread.number = static_cast<uint16_t>(threads.fetch_add(1) + 1);
  return thread.number;
}

uint64_t mixed(uint64_t hash, uint64_t value) { return mix(hash * 31 + value); }

// The nodes below `starts`, in the order in which Python's walk has them, and a number for all that makes them alike.
void follow(Events& events, const std::vector<void*>& starts) {
  auto add = [&](void* node) {
    if (events.keys.add(node, static_cast<uint32_t>(events.nodes.size()))) events.nodes.push_back(node);
  };
  for (void* root : starts) add(root);
  uint64_t hash = starts.size(), order, first = 0;
  for (size_t i = 0; i < events.nodes.size(); i++) {
    void* const node = events.nodes[i];
    hash = mixed(hash, reinterpret_cast<uint64_t>(class_of(node)));
    hash = mixed(hash, paddle_stack_of(node, order));
    if (!i) first = order;
    const uint32_t edges = each_edge(node, nullptr, [&](void* below, uint64_t slot, uint64_t rank) {
      add(below);
      hash = mixed(mixed(hash, events.keys.find(below)), slot << 32 | rank);
    });
    // An accumulate node lives as long as its leaf; others are told apart by the order in which they were made.
    hash = mixed(hash, edges ? first - order : reinterpret_cast<uint64_t>(node));
  }
  events.alike = mixed(hash, events.nodes.size());
}

// Norm and flags of the first gradient that is there.
void measure(Events& events, const void* gradients, double& norm, uint16_t& flags, uint32_t& shape) {
  bool over = false;
  paddle.each(gradients, [&](void* tensor) {
    if (over) return;
    const PaddleView view = paddle.view(tensor);
    if (view.seen == PaddleView::undefined) return;
    over = true;
    const PaddleDims* dims = paddle.is_dense(tensor) ? paddle.dims(tensor) : nullptr;
    uint64_t hash = static_cast<uint64_t>(paddle.dtype(tensor)) + 1;
    for (int32_t i = 0; dims && i < dims->rank && i < 9; i++) hash = mixed(hash, static_cast<uint64_t>(dims->values[i]));
    shape = static_cast<uint32_t>(hash) | 1;
    double squares = 0;
    bool bad = false;
    if (paddle.squares(view, squares, bad) && (bad || std::isfinite(squares))) {
      norm = std::sqrt(squares);
      flags = static_cast<uint16_t>(kHasNorm | (bad ? kNonfinite : 0));
      return;
    }
    if (python_is_ending()) return;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *value = paddle.to_python(tensor, true), *ask = events.ask;
    Py_XINCREF(ask);
    PyObject* answer = value && ask ? PyObject_CallFunctionObjArgs(ask, value, nullptr) : nullptr;
    int nonfinite = 0;
    if (answer && PyTuple_Check(answer) && PyArg_ParseTuple(answer, "dp", &norm, &nonfinite))
      flags = static_cast<uint16_t>(kHasNorm | (nonfinite ? kNonfinite : 0));
    else if (!answer && value && ask && PyErr_Occurred())
      raise_later();  // ours are caught in there: a signal handler of the program's raised it
    PyErr_Clear();
    Py_XDECREF(answer);
    Py_XDECREF(value);
    Py_XDECREF(ask);
    PyGILState_Release(gil);
  });
}

Shared* in(PyObject* capsule) { return static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule)); }

void off(const Shared& events) {
  events->on = false;
  Py_CLEAR(events->ask);
  Thread& thread = mine();
  while (thread.top && !thread.top->on) {
    Shared outer = std::move(thread.top->outer);
    thread.top = std::move(outer);
  }
}

void free_capsule(PyObject* capsule) {
  Shared* events = in(capsule);
  if (!events) return;
  (*events)->on = false;
  Py_CLEAR((*events)->ask);
  delete events;
}

}  // namespace

PaddleVisit::PaddleVisit(void* node, const void* gradients) {
  Thread& thread = mine();
  Events* events = thread.top.get();
  if (!events || !events->on || events->depth != paddle_depth()) return;
  key_ = events->keys.find(node);
  if (key_ == UINT32_MAX) return;
  events_ = events;
  if (events->norms) measure(*events, gradients, norm_, flags_, shape_);
  stood_ = ticks_stood();
  begin_ = ticks();
}

PaddleVisit::~PaddleVisit() {
  Events* events = static_cast<Events*>(events_);
  if (!events) return;
  const uint64_t end = ticks() - (ticks_stood() - stood_);
  Thread& thread = mine();
  if (thread.top.get() != events || !events->on) return;  // it was let go of meanwhile
  if (events->rows.size() >= events->limit) {
    events->lost++;
    return;
  }
  const uint16_t flags = static_cast<uint16_t>(flags_ | (made_ ? 0 : kFailed));
  events->rows.push_back(events->row(key_, begin_, end, norm_, flags, numbered(thread)));
  events->shapes.push_back(shape_);
  events->done.store(events->rows.size(), std::memory_order_release);
}

PyObject* paddle_events_begin(PyObject*, PyObject* arguments) {
  PyObject *roots, *ask;
  Py_ssize_t most;
  int norms = 1;
  if (!PyArg_ParseTuple(arguments, "OnO|p", &roots, &most, &ask, &norms)) return nullptr;
  if (most < 0 || !PyCallable_Check(ask)) {
    PyErr_SetString(PyExc_ValueError, "how many nodes at most, and a function");
    return nullptr;
  }
  std::vector<void*> starts;
  if (!read_addresses(roots, starts)) return nullptr;
  starts.erase(std::remove(starts.begin(), starts.end(), nullptr), starts.end());
  if (!paddle.bytes || !paddle_layout.slot_bytes || starts.empty() || !paddle_depth()) Py_RETURN_NONE;
  try {
    auto events = std::make_shared<Events>();
    follow(*events, starts);
    for (void* node : events->nodes)  // what the script's hook makes of the gradient is not seen here, nor is its time
      if (paddle_hooks_of(node)) Py_RETURN_NONE;
    events->norms = norms != 0;
    if (!paddle_stand_in(events->nodes)) Py_RETURN_NONE;
    events->limit = std::min(events->nodes.size(), static_cast<size_t>(most));
    events->rows.reserve(events->limit);
    events->shapes.reserve(events->limit);
    events->depth = paddle_depth();
    Thread& thread = mine();
    for (const PaddleRan& ran : paddle_watched(events->depth)) {  // without a word until now
      const uint32_t key = events->keys.find(ran.node);
      if (key == UINT32_MAX || events->rows.size() >= events->limit) continue;
      events->rows.push_back(events->row(key, ran.begin, ran.end, ran.norm, ran.flags, numbered(thread)));
      events->shapes.push_back(0);
    }
    PyObject* capsule = PyCapsule_New(new Shared(events), kCapsule, free_capsule);
    if (!capsule) return nullptr;
    Py_INCREF(events->ask = ask);
    events->outer = thread.top;
    thread.top = events;
    return Py_BuildValue("(NnK)", capsule, static_cast<Py_ssize_t>(events->nodes.size()),
                         static_cast<unsigned long long>(events->alike));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* paddle_events_take(PyObject*, PyObject* arguments) {
  PyObject *capsule, *positions;
  if (!PyArg_ParseTuple(arguments, "OS", &capsule, &positions)) return nullptr;
  Shared* shared = in(capsule);
  if (!shared) return nullptr;
  Events& events = **shared;
  if (static_cast<size_t>(PyBytes_GET_SIZE(positions)) != events.nodes.size() * 4) {
    PyErr_SetString(PyExc_ValueError, "four bytes for each node");
    return nullptr;
  }
  std::vector<Row>& rows = events.rows;
  uint64_t shapes = 0;
  for (size_t i = 0; i < rows.size(); i++) {
    memcpy(&rows[i].index, PyBytes_AS_STRING(positions) + 4 * rows[i].key, 4);
    shapes += mixed(mixed(1, rows[i].key), events.shapes[i]);
  }
  PyObject* packed = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(rows.data()),
                                               static_cast<Py_ssize_t>(rows.size() * sizeof(Row)));
  if (!packed) return nullptr;
  events.limit -= std::min(events.limit, rows.size());
  events.done.store(0, std::memory_order_release);
  rows.clear();
  events.shapes.clear();
  return Py_BuildValue("(NKK)", packed, static_cast<unsigned long long>(std::exchange(events.lost, 0)),
                       static_cast<unsigned long long>(shapes));
}

PyObject* paddle_events_since(PyObject*, PyObject* arguments) {
  PyObject *capsule, *positions;
  Py_ssize_t start;
  if (!PyArg_ParseTuple(arguments, "OSn", &capsule, &positions, &start)) return nullptr;
  Shared* shared = in(capsule);
  if (!shared) return nullptr;
  const Events& events = **shared;
  if (static_cast<size_t>(PyBytes_GET_SIZE(positions)) != events.nodes.size() * 4) {
    PyErr_SetString(PyExc_ValueError, "four bytes for each node");
    return nullptr;
  }
  const size_t done = events.done.load(std::memory_order_acquire);
  const size_t first = std::min(done, start < 0 ? 0 : static_cast<size_t>(start));
  PyObject* packed = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>((done - first) * sizeof(Row)));
  if (!packed) return nullptr;
  char* out = PyBytes_AS_STRING(packed);
  for (size_t i = first; i < done; i++, out += sizeof(Row)) {
    Row row = events.rows.data()[i];
    memcpy(&row.index, PyBytes_AS_STRING(positions) + 4 * row.key, 4);
    memcpy(out, &row, sizeof row);
  }
  return packed;
}

PyObject* paddle_events_nodes(PyObject*, PyObject* capsule) {
  Shared* shared = in(capsule);
  if (!shared) return nullptr;
  const std::vector<void*>& nodes = (*shared)->nodes;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(nodes.size()));
  for (size_t i = 0; list && i < nodes.size(); i++) {
    PyObject* address = PyLong_FromVoidPtr(nodes[i]);
    if (address) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), address);
    else Py_CLEAR(list);
  }
  return list;
}

PyObject* paddle_events_end(PyObject*, PyObject* capsule) {
  Shared* shared = in(capsule);
  if (!shared) return nullptr;
  off(*shared);
  Py_RETURN_NONE;
}

}  // namespace adbg
