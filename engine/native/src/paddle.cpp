#include "paddle.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "frames.h"
#include "guarded.h"
#include "paddle_events.h"
#include "paddle_graph.h"
#include "slots.h"

namespace adbg {
namespace {

const char* const kLibraries[] = {"libpaddle", nullptr};

// ---- marks: what a node keeps of the moment at which it was made.
//
// At call stack level 0 to 2 a node's forward_trace_ is an empty string, and an empty string of libstdc++ has 16 bytes
// of room inside, of which it uses the first, a zero. The others are ours: they live and die with the node, whatever
// happens to its address.
//   bytes 1..7: the place of the node among all that were made; bytes 8..11: kTag and the epoch; 12..15: its stack.
// Where Paddle keeps a text after all (the program's own level 3), bytes 8..15 stay as they are.

constexpr uint32_t kTag = 0xADB60000u;
std::atomic<uint32_t> epoch{1};  // another one each time the slots were restored: nodes made meanwhile have old bytes
std::atomic<uint64_t> last_order{0};
std::atomic<bool> recording{false};

char* string_of(void* node) { return static_cast<char*>(node) + paddle_layout.trace; }

bool is_empty(const char* string) {
  const char* data;
  uint64_t length;
  memcpy(&data, string, 8);
  memcpy(&length, string + 8, 8);
  return data == string + 16 && length == 0;
}

void write_mark(void* node, uint64_t order, uint32_t stack) {
  char* string = string_of(node);
  if (!is_empty(string)) return;
  const uint64_t words[2] = {order << 8, order ? (static_cast<uint64_t>(stack) << 32) | kTag | epoch.load(std::memory_order_relaxed) : 0};
  memcpy(string + 16, words, 16);  // the first byte is 0: the string stays empty, and ended
}

struct Mark {
  uint64_t order;  // 0: none
  uint32_t stack;
};

Mark mark_of(void* node) {
  const char* string = string_of(node);
  uint64_t words[2];
  memcpy(words, string + 16, 16);
  if (static_cast<uint32_t>(words[1]) != (kTag | epoch.load(std::memory_order_relaxed))) return {0, 0};
  return {is_empty(string) ? words[0] >> 8 : 0, static_cast<uint32_t>(words[1] >> 32)};
}

using Construct = void (*)(void*, size_t, size_t);
using Copy = void (*)(void*, const void*);
Construct real_construct = nullptr;
Copy real_copy = nullptr;

void our_construct(void* node, size_t in, size_t out) {
  real_construct(node, in, out);
  if (recording.load(std::memory_order_relaxed))
    write_mark(node, last_order.fetch_add(1, std::memory_order_relaxed) + 1, capture());
  else
    write_mark(node, 0, 0);  // the bytes of a node that was there before
}

void our_copy(void* node, const void* other) {  // paddle.grad runs on copies
  real_copy(node, other);
  const Mark mark = mark_of(const_cast<void*>(other));
  write_mark(node, mark.order, mark.stack);
}

// The engine calls this as a node's turn has come: which one it was that raised.
using Enforce = void (*)(void*);
Enforce real_enforce = nullptr;
struct Last {
  void* node = nullptr;
  uint64_t order = 0;
};
Last& last() {
  static thread_local Last found;
  return found;
}

void our_enforce(void* node) {
  if (recording.load(std::memory_order_relaxed)) last() = {node, mark_of(node).order};
  real_enforce(node);
}

Interposed enforce("_ZN3egr23EnforceGradNodeHasInputEPNS_12GradNodeBaseE", reinterpret_cast<void*>(our_enforce));
Interposed construct("_ZN3egr12GradNodeBaseC2Emm", reinterpret_cast<void*>(our_construct));
Interposed copy("_ZN3egr12GradNodeBaseC2ERKS0_", reinterpret_cast<void*>(our_copy));
std::mutex switching;

// ---- the walk. A thread's own tables, kept from walk to walk.

class Set {  // of addresses, emptied in one step
 public:
  void clear() {
    if (places_.empty()) places_.resize(1024);
    if (++turn_ == 0) {
      places_.assign(places_.size(), {});
      turn_ = 1;
    }
    used_ = 0;
  }
  bool add(void* what) {  // whether it was not there
    if (used_ * 2 >= places_.size()) grow();
    return put(what);
  }

 private:
  struct Place {
    void* what = nullptr;
    uint32_t turn = 0;
  };
  bool put(void* what) {
    const size_t mask = places_.size() - 1;
    size_t index = mix(reinterpret_cast<uint64_t>(what)) & mask;
    for (; places_[index].turn == turn_; index = (index + 1) & mask)
      if (places_[index].what == what) return false;
    places_[index] = {what, turn_};
    used_++;
    return true;
  }
  void grow() {
    std::vector<Place> before(places_.size() * 2);
    before.swap(places_);
    const uint32_t turn = turn_;
    turn_ = 1;
    used_ = 0;
    for (const Place& place : before)
      if (place.turn == turn) put(place.what);
  }
  std::vector<Place> places_;
  uint32_t turn_ = 0;
  size_t used_ = 0;
};

struct Walk {
  Set seen, classes;
  std::vector<void*> nodes, kinds;
  uint64_t kinds_sum = 0, first_sum = 0, second_sum = 0;

  void follow(const std::vector<void*>& roots) {
    seen.clear();
    classes.clear();
    nodes.clear();
    kinds.clear();
    kinds_sum = first_sum = second_sum = 0;
    for (void* root : roots) {
      add(root);
      if (root) kinds_sum += mix(mix(*static_cast<uint64_t*>(root)) + 11);
    }
    for (size_t i = 0; i < nodes.size(); i++) below(nodes[i]);
  }

 private:
  void add(void* node) {
    if (node && seen.add(node)) nodes.push_back(node);
  }
  void below(void* node) {
    void* const kind = class_of(node);
    if (classes.add(kind)) {
      kinds.push_back(kind);
      kinds_sum += mix(reinterpret_cast<uint64_t>(kind) + 1);
    }
    const uint32_t count = each_edge(node, nullptr, [this](void* producer, uint64_t, uint64_t) { add(producer); });
    // A node that feeds none accumulates into a leaf, and is the leaf's own: which leaf it is matters.
    const Mark mark = mark_of(node);
    const uint64_t one = mix(reinterpret_cast<uint64_t>(kind)) ^ mix(mark.stack + 0x51ull);
    const uint64_t leaf = count ? 0 : mix(reinterpret_cast<uint64_t>(node)) + mix(mark.order + 7);
    first_sum += mix(one + leaf);
    second_sum += mix(~(one * 3 + leaf));
  }
};

Walk& walk() {
  static thread_local Walk found;
  return found;
}

// ---- as Python sees it

bool ready() {
  if (paddle_layout.slot_bytes && real_construct) return true;
  PyErr_SetString(PyExc_LookupError, "paddle_begin was not called, or failed");
  return false;
}

PyObject* begin(PyObject*, PyObject* arguments) {
  long long trace, outgoing, slot_bytes, edge;
  if (!PyArg_ParseTuple(arguments, "LLLL", &trace, &outgoing, &slot_bytes, &edge)) return nullptr;
  if (trace <= 0 || trace > 65536 || trace % 8 || outgoing <= 0 || outgoing > 65536 || outgoing % 8 ||
      slot_bytes < 24 || slot_bytes > 8192 || edge < 0 || edge + 24 > slot_bytes) {
    PyErr_SetString(PyExc_LookupError, "a node is not laid out as expected");
    return nullptr;
  }
  std::lock_guard<std::mutex> held(switching);
  std::string why;
  if (!construct.find(kLibraries, why) || !copy.find(kLibraries, why) || !enforce.find(kLibraries, why)) {
    PyErr_SetString(PyExc_LookupError, why.c_str());
    return nullptr;
  }
  paddle_layout = {trace, outgoing, slot_bytes, edge};
  real_construct = reinterpret_cast<Construct>(construct.real());
  real_copy = reinterpret_cast<Copy>(copy.real());
  real_enforce = reinterpret_cast<Enforce>(enforce.real());
  Py_RETURN_NONE;
}

PyObject* stacks(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0 || !ready()) return nullptr;
  std::lock_guard<std::mutex> held(switching);
  std::string why;
  if (wanted && (!construct.put(why) || !copy.put(why) || !enforce.put(why))) {
    construct.restore();
    copy.restore();
    PyErr_SetString(PyExc_LookupError, why.c_str());
    return nullptr;
  }
  recording.store(wanted, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyObject* mark(PyObject*, PyObject* address) {
  void* node = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred() || !ready()) return nullptr;
  if (!node) return Py_BuildValue("(IK)", 0u, 0ull);
  const Mark found = mark_of(node);
  return Py_BuildValue("(IK)", found.stack, static_cast<unsigned long long>(found.order));
}

PyObject* last_begun(PyObject*, PyObject*) {
  const Last found = last();
  last() = {};
  return Py_BuildValue("(KK)", reinterpret_cast<unsigned long long>(found.node),
                       static_cast<unsigned long long>(found.order));
}

PyObject* order(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(last_order.fetch_add(1, std::memory_order_relaxed) + 1);
}

PyObject* survey(PyObject*, PyObject* roots) {
  if (!ready()) return nullptr;
  std::vector<void*> starts;
  if (!read_addresses(roots, starts)) return nullptr;
  try {
    const Surveyed found = paddle_survey_of(starts);
    return Py_BuildValue("(nK(KK))", static_cast<Py_ssize_t>(found.nodes), static_cast<unsigned long long>(found.kinds),
                         static_cast<unsigned long long>(found.first), static_cast<unsigned long long>(found.second));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* kinds(PyObject*, PyObject*) {
  const std::vector<void*> found = walk().kinds;  // a list may begin with a collection, and a survey in a finalizer
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(found.size()));
  for (size_t i = 0; list && i < found.size(); i++) {
    PyObject* kind = PyLong_FromVoidPtr(found[i]);
    if (kind) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), kind);
    else Py_CLEAR(list);
  }
  return list;
}

PyObject* interposed(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const Interposed* each : {&construct, &copy, &enforce}) {
    PyObject* entry = list ? Py_BuildValue("(sNn)", each->symbol(), PyBool_FromLong(each->on()),
                                           static_cast<Py_ssize_t>(each->slots().size()))
                           : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

PyObject* end(PyObject*, PyObject*) {
  paddle_restore();
  Py_RETURN_NONE;
}

}  // namespace

PaddleLayout paddle_layout;

uint32_t paddle_stack_of(void* node, uint64_t& order) {
  const Mark found = mark_of(node);
  order = found.order;
  return found.stack;
}

Surveyed paddle_survey_of(const std::vector<void*>& roots) {
  Walk& found = walk();
  found.follow(roots);
  return {found.nodes.size(), found.kinds_sum, found.first_sum, found.second_sum};
}

bool read_addresses(PyObject* sequence, std::vector<void*>& into) {
  PyObject* listed = PySequence_Fast(sequence, "a sequence of addresses of nodes");
  if (!listed) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(listed); i++)
    into.push_back(PyLong_AsVoidPtr(PySequence_Fast_GET_ITEM(listed, i)));
  Py_DECREF(listed);
  return !PyErr_Occurred();
}

PyMethodDef paddle_methods[] = {
    {"paddle_begin", guarded<begin>, METH_VARARGS, "(offsets of stack and of outgoing slots, size of a slot, offset of its edge)"},
    {"paddle_stacks", guarded<stacks>, METH_O, "(on): nodes made from now on are marked with their stack and place"},
    {"paddle_mark", guarded<mark>, METH_O, "(address of a living node) -> (its stack, its place); 0 where it has none"},
    {"paddle_last", guarded<last_begun>, METH_NOARGS,
     "() -> (address, place) of the node that began last on this thread while stacks were on; asked once"},
    {"paddle_order", guarded<order>, METH_NOARGS, "() -> the next place"},
    {"paddle_survey", guarded<survey>, METH_O,
     "(addresses of living roots) -> (nodes below, a number for their classes and the roots', two for all about them)"},
    {"paddle_kinds", guarded<kinds>, METH_NOARGS, "() -> the classes that this thread's last survey met"},
    {"paddle_interposed", guarded<interposed>, METH_NOARGS, "() -> [(symbol, whether ours stands in, slots)]"},
    {"paddle_watch_begin", guarded<paddle_watch_begin>, METH_VARARGS,
     "(place of operator() in a virtual table, offset of a tensor in its object, size of a tensor, numbers of float32,"
     " float64, float16, bfloat16; offset of the count of gradient hooks in a node)"},
    {"paddle_watch_start", guarded<paddle_watch_start>, METH_VARARGS,
     "(addresses of roots, classes that are left to Python, callback) -> nodes that are watched, 0: Python must"},
    {"paddle_watch_stop", guarded<paddle_watch_stop>, METH_NOARGS, "() -> addresses of the nodes that ran on this thread"},
    {"paddle_watch_end", guarded<paddle_watch_end>, METH_NOARGS, "() -> None: the same, where nobody asks which nodes ran"},
    {"paddle_watch_probe", guarded<paddle_watch_probe>, METH_NOARGS,
     "() -> (bytes of the first incoming slot, tensors looked at, found bad, left to Python) since the last call"},
    {"paddle_entry", guarded<paddle_entry_make>, METH_VARARGS,
     "(Python's function, Paddle's own, whether it is paddle.grad's) -> what stands in for Paddle's own"},
    {"paddle_entry_begin", guarded<paddle_entry_begin>, METH_VARARGS,
     "(type of tensors, offset of a tensor's autograd record, of the node in that, class of accumulate nodes, functions:"
     " (error, grad mode) -> what to raise, the watch's callback, () -> grad mode; calls and iterations so far)"},
    {"paddle_entry_mode", guarded<paddle_entry_mode>, METH_VARARGS,
     "(0: all in Python, 1: nothing is armed, 2: calls may be passed over; functions that say whether a call must be told"
     " at once, words that are 0 otherwise, () called where calls wait to be taken, 24 bytes or None); what was learnt is forgotten"},
    {"paddle_entry_learn", guarded<paddle_entry_learn>, METH_VARARGS,
     "(age, nodes, kinds, (first, second), all of these count, a watch is on, names of the roots, file, line): such calls"
     " are of no interest; of the call that runs on this thread. Not where the age is another by now"},
    {"paddle_entry_age", guarded<paddle_entry_age>, METH_NOARGS, "() -> another number after each paddle_entry_mode"},
    {"paddle_entry_running", guarded<paddle_entry_running>, METH_NOARGS, "() -> a call runs here that Python does not know"},
    {"paddle_entry_open", guarded<paddle_entry_open>, METH_NOARGS,
     "() -> (arguments, number, iteration, begin in ns, frame, nodes, roots, (file, line), watched) of it, once; or None"},
    {"paddle_entry_take", guarded<paddle_entry_take>, METH_NOARGS,
     "() -> [(number, nodes, roots, iteration, thread, (file, line), begins, us)]: calls that ran since, alike ones together"},
    {"paddle_entry_count", guarded<paddle_entry_count>, METH_O, "(1: another call, 2: iteration, 0) -> (calls, iterations)"},
    {"paddle_entry_pass", guarded<paddle_entry_pass>, METH_O, "(1, -1 or 0: none): calls on this thread that only pass through"},
    {"paddle_entry_spent", guarded<paddle_entry_spent>, METH_NOARGS, "() -> [(weak tensor, its node)]: roots that were used up"},
    {"paddle_events_begin", guarded<paddle_events_begin>, METH_VARARGS,
     "(addresses of roots, most, ask, norms=True) -> (capsule, number of nodes, alike) or None: this call is written down; "
     "`ask(tensor)` -> (norm, whether it is not finite) of what cannot be read here"},
    {"paddle_events_take", guarded<paddle_events_take>, METH_VARARGS,
     "(capsule, positions) -> (rows, lost, shapes): what came since the last time; see engine/node_batch.py"},
    {"paddle_events_since", guarded<paddle_events_since>, METH_VARARGS,
     "(capsule, positions, start) -> rows behind the first `start` of those, which stay; by any thread, while nodes run"},
    {"paddle_events_nodes", guarded<paddle_events_nodes>, METH_O, "(capsule) -> addresses of its nodes, by key"},
    {"paddle_events_end", guarded<paddle_events_end>, METH_O, "(capsule): it is over"},
    {"paddle_end", guarded<end>, METH_NOARGS, "put everything of libpaddle's back"},
    {nullptr, nullptr, 0, nullptr}};

void paddle_restore() {
  paddle_watch_restore();
  std::lock_guard<std::mutex> held(switching);
  if (!construct.on() && !copy.on()) return;
  recording.store(false, std::memory_order_relaxed);
  construct.restore();
  copy.restore();
  enforce.restore();
  epoch.store((epoch.load(std::memory_order_relaxed) + 1) & 0xFFFF, std::memory_order_relaxed);
}

}  // namespace adbg
