// Gradients that are not finite, found in C++ while Paddle's engine runs.
//
// The engine calls a node through its virtual table. While a watch is on, the entry of operator() in the tables of the
// classes that are met is ours: it looks at what flows in where that may differ from what flowed out elsewhere, calls
// the node, and looks at what flows out. What is bad, or cannot be read here, is handed to Python, which takes over.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "layouts.h"
#include "memory.h"
#include "node_row.h"
#include "numbers.h"
#include "paddle_events.h"
#include "paddle_gradients.h"
#include "paddle_graph.h"
#include "paddle_tensors.h"
#include "ticks.h"

namespace adbg {
namespace {

int64_t call_index = 0, tensor_offset = 0, hooks_offset = 0;
std::atomic<int64_t> probed{0};

// ---- the tables of the classes

struct Class {
  void** at;   // the entry
  void* real;  // what stood there
};
std::mutex switching;
std::unordered_map<void*, Class> classes;  // by virtual table; entries stay for good
// The same for readers that take no lock: open addressing.
struct Known {
  std::atomic<void*> table{nullptr};
  std::atomic<void*> real{nullptr};
};
constexpr uint32_t kKnown = 4096;
Known known[kKnown];
bool put_in = false;

uint32_t known_index(const void* table) {
  return static_cast<uint32_t>((reinterpret_cast<uint64_t>(table) >> 3) * 0x9E3779B97F4A7C15ull >> 44) & (kKnown - 1);
}

void* real_of(const void* table) {
  for (uint32_t index = known_index(table);; index = (index + 1) & (kKnown - 1)) {
    void* there = known[index].table.load(std::memory_order_acquire);
    if (there == table) return known[index].real.load(std::memory_order_relaxed);
    if (!there) return nullptr;
  }
}

// How the page of an address is mapped: PROT_* bits, -1 where it is not.
int protection_of(uintptr_t address) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (!maps) return -1;
  char line[512];
  int found = -1;
  while (found < 0 && fgets(line, sizeof line, maps)) {
    unsigned long begin, end;
    char rights[8];
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3 || address < begin || address >= end) continue;
    found = (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) | (rights[2] == 'x' ? PROT_EXEC : 0);
  }
  fclose(maps);
  return found;
}

bool write_entry(void** at, void* value) {
  const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const int before = protection_of(reinterpret_cast<uintptr_t>(at));
  if (before < 0) return false;
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) & ~(size - 1));
  if (!(before & PROT_WRITE) && mprotect(page, size, before | PROT_WRITE) != 0) return false;
  __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
  if (!(before & PROT_WRITE)) mprotect(page, size, before);
  return true;
}

using Call = void* (*)(void* result, void* node, void* gradients, bool create_graph, bool is_new_grad);
void* our_call(void* result, void* node, void* gradients, bool create_graph, bool is_new_grad);

void* entry_of(void* table) { return __atomic_load_n(static_cast<void**>(table) + call_index, __ATOMIC_SEQ_CST); }

bool stand_in(void* table) {  // under the lock
  auto found = classes.find(table);
  if (found == classes.end()) {
    if (classes.size() * 2 >= kKnown) return false;
    void** at = static_cast<void**>(table) + call_index;
    void* real = entry_of(table);
    if (!real || real == reinterpret_cast<void*>(our_call)) return false;
    found = classes.emplace(table, Class{at, real}).first;
    uint32_t index = known_index(table);
    while (known[index].table.load(std::memory_order_relaxed)) index = (index + 1) & (kKnown - 1);
    known[index].real.store(real, std::memory_order_relaxed);
    known[index].table.store(table, std::memory_order_release);
  }
  Class& one = found->second;
  if (__atomic_load_n(one.at, __ATOMIC_SEQ_CST) == reinterpret_cast<void*>(our_call)) return true;
  put_in = true;
  return write_entry(one.at, reinterpret_cast<void*>(our_call));
}

// ---- a watch: of one call of the engine, on the thread that runs it

enum : uint8_t { kIn = 1, kOut = 2, kRan = 4, kFed = 8 };

// The nodes of one call, in the order in which they were met; found by address. Emptied in one step, and its memory is
// kept from call to call.
class Nodes {
 public:
  struct Node {
    void* address;
    uint8_t bits;
  };
  std::vector<Node> all;

  void clear() {
    all.clear();
    if (places_.empty()) places_.resize(256);
    if (++turn_ == 0) {
      places_.assign(places_.size(), {});
      turn_ = 1;
    }
  }
  Node* find(const void* address) {
    if (places_.empty()) return nullptr;
    const Place& there = places_[place_of(address)];
    return there.turn == turn_ ? &all[there.index] : nullptr;
  }
  // Whether it was not there.
  bool add(void* address, uint8_t bits, uint8_t again) {
    Place& there = places_[place_of(address)];
    if (there.turn == turn_) {
      all[there.index].bits |= bits | again;
      return false;
    }
    there = {turn_, static_cast<uint32_t>(all.size())};
    all.push_back({address, bits});
    if (all.size() * 2 > places_.size()) grow();
    return true;
  }

 private:
  struct Place {
    uint32_t turn = 0, index = 0;
  };
  size_t place_of(const void* address) const {
    const size_t mask = places_.size() - 1;
    size_t at = mix(reinterpret_cast<uint64_t>(address)) & mask;
    while (places_[at].turn == turn_ && all[places_[at].index].address != address) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    const size_t size = places_.size() * 2;
    places_.assign(size, {});
    turn_ = 1;
    for (uint32_t i = 0; i < all.size(); i++) places_[place_of(all[i].address)] = {turn_, i};
  }
  std::vector<Place> places_;
  uint32_t turn_ = 0;
};

struct Watch {
  bool on = false;
  int depth = 0;  // of its call; 0 until a node has run
  PyObject* callback = nullptr;
  Nodes nodes;
  std::vector<PaddleRan> ran;
  PaddleSums sums;
};
Watch& mine() {
  static thread_local Watch watch;
  return watch;
}

// Ours in the tables of the classes of `nodes`.
template <typename Address, typename Each>
bool stand_in_all(const Each& nodes, Address address) {
  bool ours = true;
  for (const auto& node : nodes) ours = ours && entry_of(class_of(address(node))) == reinterpret_cast<void*>(our_call);
  if (ours) return true;
  std::lock_guard<std::mutex> held(switching);
  for (const auto& node : nodes)
    if (!stand_in(class_of(address(node)))) return false;
  return true;
}

// All nodes below `starts`, and ours in the tables of their classes. False: something in the graph is Python's.
bool meet_all(Nodes& nodes, const std::vector<void*>& starts, const std::vector<void*>& python) {
  nodes.clear();
  for (void* root : starts)
    if (root) nodes.add(root, kIn, 0);
  for (size_t i = 0; i < nodes.all.size(); i++) {
    void* const node = nodes.all[i].address;
    bool several = false;
    const uint32_t edges = each_edge(node, &several, [&](void* producer, uint64_t, uint64_t) {
      nodes.add(producer, 0, kIn);  // met again: several gradients are summed in it
    });
    if (several || paddle_hooks_of(node)) return false;
    void* const table = class_of(node);
    for (void* left : python)
      if (table == left) return false;
    // What arrives at a leaf was looked at as it left, or is a sum: no hook stands there.
    if (edges) nodes.all[i].bits |= kOut;
  }
  return !nodes.all.empty() && stand_in_all(nodes.all, [](const Nodes::Node& node) { return node.address; });
}

PyObject* listed(const void* slots) {
  PyObject* list = PyList_New(0);
  paddle.each(slots, [&](void* tensor) {
    PyObject* value = list ? paddle.to_python(tensor, true) : nullptr;
    if (!value || PyList_Append(list, value) != 0) Py_CLEAR(list);
    Py_XDECREF(value);
  });
  return list;
}

PyObject* listed(const PaddleHeld& held) {
  PyObject* list = PyList_New(0);
  held.each([&](void* tensor) {
    PyObject* value = list ? paddle.to_python(tensor, true) : nullptr;
    if (!value || PyList_Append(list, value) != 0) Py_CLEAR(list);
    Py_XDECREF(value);
  });
  return list;
}

// Hand it to Python: callback(address, what flows out or None, what flowed in) -> None, or one entry a gradient (of what
// flows out; in where that is None), None to keep what is there.
void tell(void* node, void* slots, const PaddleHeld* held) {
  if (python_is_ending()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* callback = mine().callback;
  Py_XINCREF(callback);
  PyObject* outgoing = held ? listed(slots) : Py_None;
  if (!held) Py_INCREF(outgoing);
  PyObject* incoming = held ? listed(*held) : listed(slots);
  PyObject* answer =
      callback && outgoing && incoming
          ? PyObject_CallFunction(callback, "KOO", reinterpret_cast<unsigned long long>(node), outgoing, incoming)
          : nullptr;
  // What a stop is ended by, the Python side has a hook of the next node raise: Paddle ends the process at exceptions
  // that are not of its own making.
  PyErr_Clear();
  if (answer && PyList_Check(answer)) {
    Py_ssize_t at = 0;
    paddle.each(slots, [&](void* tensor) {
      PyObject* value = at < PyList_GET_SIZE(answer) ? PyList_GET_ITEM(answer, at) : Py_None;
      at++;
      if (value == Py_None) return;
      paddle.destroy(tensor);
      paddle.copy(tensor, reinterpret_cast<char*>(value) + tensor_offset);
    });
  }
  Py_XDECREF(answer);
  Py_XDECREF(incoming);
  Py_XDECREF(outgoing);
  Py_XDECREF(callback);
  PyGILState_Release(gil);
}

// `written`: what the node does is written down elsewhere.
void* watched_call(Call real, void* result, void* node, void* gradients, bool create_graph, bool is_new_grad, bool written) {
  Watch& watch = mine();
  Nodes::Node* const found = watch.nodes.find(node);
  if (!found || found->bits & kRan) return real(result, node, gradients, create_graph, is_new_grad);
  const uint8_t bits = found->bits;
  found->bits |= kRan;
  if (!probed.load(std::memory_order_relaxed)) {
    char *slots, *begin, *end;
    memcpy(&slots, gradients, 8);
    memcpy(&begin, slots, 8);
    memcpy(&end, slots + 8, 8);
    probed.store(end - begin, std::memory_order_relaxed);
  }
  if (!paddle.bytes) return real(result, node, gradients, create_graph, is_new_grad);
  if (!watch.depth) watch.depth = paddle_depth();
  if (bits & kIn && any_suspicious(gradients, watch.sums)) {
    tell(node, gradients, nullptr);
    if (!watch.on) return real(result, node, gradients, create_graph, is_new_grad);  // Python has taken over
  }
  PaddleRan ran{node, 0, 0, 0, 0};
  const auto run = [&] {
    const uint64_t stood = ticks_stood();
    if (!written) measure(gradients, watch.sums, ran);
    if (!written) ran.begin = ticks();
    real(result, node, gradients, create_graph, is_new_grad);
    if (!written) ran.end = ticks() - (ticks_stood() - stood);
  };
  if (bits & kOut) {
    const PaddleHeld held(gradients);
    run();
    if (watch.on && any_suspicious(result, watch.sums)) tell(node, result, &held);
  } else {
    run();
  }
  // Not where Python has taken over meanwhile: it knows of this one.
  if (!written && watch.on && watch.ran.size() < watch.ran.capacity()) watch.ran.push_back(ran);
  return result;
}

void* our_call(void* result, void* node, void* gradients, bool create_graph, bool is_new_grad) {
  const Call real = reinterpret_cast<Call>(real_of(class_of(node)));
  PaddleVisit visit(node, gradients);
  return visit.done(mine().on ? watched_call(real, result, node, gradients, create_graph, is_new_grad, visit.on())
                              : real(result, node, gradients, create_graph, is_new_grad));
}

}  // namespace

bool paddle_stand_in(const std::vector<void*>& nodes) {
  return call_index && paddle.bytes && stand_in_all(nodes, [](void* node) { return node; });
}

uint64_t paddle_hooks_of(const void* node) {
  uint64_t hooks = 0;
  if (hooks_offset) memcpy(&hooks, static_cast<const char*>(node) + hooks_offset, 8);
  return hooks;
}

namespace {

size_t watch_on(const std::vector<void*>& starts, const std::vector<void*>& python, PyObject* callback) {
  Watch& watch = mine();
  if (watch.on) return 0;  // of a call around this one
  try {
    if (!meet_all(watch.nodes, starts, python)) {
      watch.nodes.clear();
      return 0;
    }
  } catch (const std::bad_alloc&) {
    watch.nodes.clear();
    throw;
  }
  watch.ran.clear();
  watch.ran.reserve(watch.nodes.all.size());  // nothing is allocated while nodes run
  watch.sums.clear();
  watch.depth = 0;
  Py_INCREF(callback);
  Py_XSETREF(watch.callback, callback);
  watch.on = true;
  return watch.nodes.all.size();
}

}  // namespace

const std::vector<PaddleRan>& paddle_watched(int depth) {
  static const std::vector<PaddleRan> none;
  const Watch& watch = mine();
  return watch.on && watch.depth == depth ? watch.ran : none;
}

PyObject* paddle_watch_begin(PyObject*, PyObject* arguments) {
  long long index, offset, bytes, hooks;
  int kinds[4];
  if (!PyArg_ParseTuple(arguments, "LLLiiiiL", &index, &offset, &bytes, &kinds[0], &kinds[1], &kinds[2], &kinds[3], &hooks))
    return nullptr;
  std::string why;
#if !defined(__x86_64__)
  why = "how a node returns its gradients was tried on x86_64 alone";
#endif
  if (why.empty() && (index < 1 || index > 32 || offset < 16 || offset > 256 || bytes < 0 || bytes > 128 || bytes % 8 ||
                      hooks < 0 || hooks > 65536))
    why = "a node or a tensor is not laid out as expected";
  if (!why.empty() || !paddle.find(why)) {
    PyErr_SetString(PyExc_LookupError, why.c_str());
    return nullptr;
  }
  call_index = index;
  tensor_offset = offset;
  paddle.bytes = bytes;
  hooks_offset = hooks;
  memcpy(paddle.kinds, kinds, sizeof kinds);
  Py_RETURN_NONE;
}

PyObject* paddle_watch_start(PyObject*, PyObject* arguments) {
  PyObject *roots, *left, *callback;
  if (!PyArg_ParseTuple(arguments, "OOO", &roots, &left, &callback)) return nullptr;
  if (!call_index || !PyCallable_Check(callback)) {
    PyErr_SetString(PyExc_LookupError, "paddle_watch_begin was not called, or failed");
    return nullptr;
  }
  std::vector<void*> starts, python;
  if (!read_addresses(roots, starts) || !read_addresses(left, python)) return nullptr;
  try {
    return PyLong_FromSize_t(watch_on(starts, python, callback));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

size_t paddle_watch_on(const std::vector<void*>& starts, PyObject* callback) {
  return call_index ? watch_on(starts, {}, callback) : 0;
}

void paddle_watch_off() {
  Watch& watch = mine();
  watch.on = false;
  Py_CLEAR(watch.callback);
}

PyObject* paddle_watch_stop(PyObject*, PyObject*) {
  Watch& watch = mine();
  PyObject* ran = PyList_New(0);  // first: a backward in a finalizer finds the watch on, and leaves it alone
  watch.on = false;
  for (const Nodes::Node& node : watch.nodes.all) {
    if (!(node.bits & kRan) || !ran) continue;
    PyObject* address = PyLong_FromVoidPtr(node.address);
    if (!address || PyList_Append(ran, address) != 0) Py_CLEAR(ran);
    Py_XDECREF(address);
  }
  Py_CLEAR(watch.callback);
  return ran;
}

PyObject* paddle_watch_end(PyObject*, PyObject*) {
  paddle_watch_off();
  Py_RETURN_NONE;
}

PyObject* paddle_watch_probe(PyObject*, PyObject*) {
  return Py_BuildValue("(LLLL)", static_cast<long long>(probed.exchange(0)), static_cast<long long>(seen.looked.exchange(0)),
                       static_cast<long long>(seen.bad.exchange(0)), static_cast<long long>(seen.left_over.exchange(0)));
}

void paddle_watch_restore() {
  std::lock_guard<std::mutex> held(switching);
  if (!put_in) return;
  for (auto& [table, one] : classes)
    if (__atomic_load_n(one.at, __ATOMIC_SEQ_CST) == reinterpret_cast<void*>(our_call)) write_entry(one.at, one.real);
  put_in = false;
}

}  // namespace adbg
