#include "torch_screen.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "numbers.h"
#include "torch_engine.h"
#include "torch_nodes.h"
#include "torch_tensors.h"

namespace adbg {
namespace {

std::atomic<int> screening{0};

// ---- what a list of gradients comes to

enum class Answer { finite, bad, unknown };

Answer look_at(void** tensor) {
  View view;
  switch (read_tensor(tensor, view)) {
    case Seen::undefined: return Answer::finite;
    case Seen::unknown: return Answer::unknown;
    case Seen::integers: return Answer::finite;
    case Seen::floats: break;
  }
  if (view.count == 0) return Answer::finite;
  if (view.dense) return any_nonfinite(view.kind, view.data, view.count) ? Answer::bad : Answer::finite;
  bool found = false;
  if (!any_nonfinite_strided(view.kind, view.data, view.sizes, view.strides, view.dims, found)) return Answer::unknown;
  return found ? Answer::bad : Answer::finite;
}

bool all_finite(Tensors& tensors) {
  void* seen = nullptr;
  for (void*& tensor : tensors) {
    if (tensor == seen) continue;  // passed on twice
    seen = tensor;
    if (look_at(&tensor) != Answer::finite) return false;
  }
  return true;
}

// ---- hooks as torch's nodes hold them: an object with these virtual functions, in this order

// Those of torch's own hooks that call Python, taken over from the donor: what a bad gradient is handed on to.
using CallPre = Tensors (*)(void* self, const Tensors& gradients);
using CallPost = Tensors (*)(void* self, const Tensors& outputs, const Tensors& inputs);
void *donor_pre = nullptr, *donor_post = nullptr, *donor_ask = nullptr;
CallPre call_pre = nullptr;
CallPost call_post = nullptr;
int pre_at = -1, post_at = -1;  // std::vector<std::unique_ptr<hook>> in a node
int on_tensors_at = -1;         // the same of the hooks of the tensor that a node made; -1 where it was not found
int on_tensors_by = -1;         // the virtual function that tells them: those of a leaf lie with the leaf

// One of each, for all nodes; a node that is freed deletes its hooks, and these are not there to be deleted.
class PreHook {
 public:
  virtual ~PreHook() {}
  virtual Tensors call(const Tensors& gradients) {
    Tensors& mine = const_cast<Tensors&>(gradients);  // torch puts what is returned in its place: no copy is made
    if (!inputs_known()) learn_inputs(gradients);
    if (screening.load(std::memory_order_relaxed) > 0 && !all_finite(mine)) return call_pre(donor_pre, gradients);
    return std::move(mine);
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};
class PostHook {
 public:
  virtual ~PostHook() {}
  virtual Tensors call(const Tensors& outputs, const Tensors& inputs) {
    Tensors& mine = const_cast<Tensors&>(outputs);
    if (screening.load(std::memory_order_relaxed) > 0 && !all_finite(mine)) return call_post(donor_post, outputs, inputs);
    return std::move(mine);
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};

// Never destroyed: nodes may hold them as the process ends.
PreHook* const pre_hook = new (::operator new(sizeof(PreHook))) PreHook;
PostHook* const post_hook = new (::operator new(sizeof(PostHook))) PostHook;

}  // namespace

int find_hook(void* node, PyObject* dict, void*& hook) {
  for (int at = 16; at < 400; at += 8) {
    void *bounds[3], *first = nullptr, *held = nullptr;
    if (!read_safely(static_cast<char*>(node) + at, bounds, sizeof bounds)) return -1;
    if (static_cast<char*>(bounds[1]) - static_cast<char*>(bounds[0]) != 8 || bounds[2] < bounds[1]) continue;
    if (!read_safely(bounds[0], &first, 8) || !read_safely(static_cast<char*>(first) + 8, &held, 8)) continue;
    if (held != dict) continue;
    hook = first;
    return at;
  }
  return -1;
}

namespace {

// The hooks of tensors lie between those in front of a node and an std::unordered_map, behind which are those behind the
// node. An empty map has one bucket of its own.
int find_tensor_hooks(void* node) {
  constexpr int kList = 24, kMap = 56;
  const int at = pre_at + kList;
  void* words[(kList + kMap) / 8];
  float load = 0;
  if (post_at != at + kList + kMap || !read_safely(static_cast<char*>(node) + at, words, sizeof words)) return -1;
  memcpy(&load, &words[7], sizeof load);
  const bool map = words[3] == static_cast<char*>(node) + post_at - 8 && words[4] == reinterpret_cast<void*>(1) &&
                   !words[5] && !words[6] && load == 1.0f;
  return map && !words[0] && !words[1] && !words[2] ? at : -1;
}

// Of the functions in a node's table the one that returns where that list lies: `lea rax, [rdi + on_tensors_at]; ret`.
int find_tensor_hooks_function(void* node) {
  uint8_t wanted[] = {0x48, 0x8d, 0x87, 0, 0, 0, 0, 0xc3};
  memcpy(wanted + 3, &on_tensors_at, 4);
  void** table = *static_cast<void***>(node);
  int found = -1;
  for (int i = 0; i < 24; i++) {
    void* function = nullptr;
    uint8_t code[12];
    if (!read_safely(table + i, &function, 8)) break;
    if (!read_safely(function, code, sizeof code)) continue;
    const bool marked = code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa;  // endbr64
    if (memcmp(code + (marked ? 4 : 0), wanted, sizeof wanted)) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

// nullptr where it is not known.
const Tensors* tensor_hooks_of(void* node) {
  if (on_tensors_at < 0) return nullptr;
  if (sequence_of(node) != UINT64_MAX) return &at_offset<Tensors>(node, on_tensors_at);
  using Tell = Tensors* (*)(void*);
  return on_tensors_by < 0 ? nullptr : (*reinterpret_cast<Tell**>(node))[on_tensors_by](node);
}

}  // namespace

bool called_of_hook(void* hook, void*& function) {
  void** table = nullptr;
  return read_safely(hook, &table, 8) && read_safely(table + 2, &function, 8) && function;
}

PyObject* torch_donor(PyObject*, PyObject* arguments) {
  PyObject *object, *pre, *post;
  if (!PyArg_ParseTuple(arguments, "OOO", &object, &pre, &post)) return nullptr;
  if (pre_at >= 0) Py_RETURN_TRUE;
  void *node = node_behind(object), *first, *second, *first_call, *second_call;
  if (!node) Py_RETURN_FALSE;
  const int before = find_hook(node, pre, first), after = find_hook(node, post, second);
  if (before < 0 || after < 0 || before == after) Py_RETURN_FALSE;
  if (!called_of_hook(first, first_call) || !called_of_hook(second, second_call)) Py_RETURN_FALSE;
  Py_INCREF(object);
  donor_pre = first;
  donor_post = second;
  call_pre = reinterpret_cast<CallPre>(first_call);
  call_post = reinterpret_cast<CallPost>(second_call);
  pre_at = before;
  post_at = after;
  on_tensors_at = find_tensor_hooks(node);
  if (on_tensors_at >= 0) on_tensors_by = find_tensor_hooks_function(node);
  Py_RETURN_TRUE;
}

PyObject* torch_events_donor(PyObject*, PyObject* arguments) {
  PyObject *object, *pre;
  if (!PyArg_ParseTuple(arguments, "OO", &object, &pre)) return nullptr;
  void *node = node_behind(object), *first;
  if (!node || !call_pre || find_hook(node, pre, first) != pre_at) Py_RETURN_FALSE;
  if (!donor_ask) {
    Py_INCREF(object);
    donor_ask = first;
  }
  Py_RETURN_TRUE;
}

Tensors ask_python(const Tensors& gradients) {
  return donor_ask ? call_pre(donor_ask, gradients) : std::move(const_cast<Tensors&>(gradients));
}

bool screened_after(void* node) {
  const Tensors& hooks = at_offset<Tensors>(node, post_at);
  return std::find(hooks.begin(), hooks.end(), post_hook) != hooks.end();
}

Tensors ask_after(const Tensors& outputs, const Tensors& inputs) { return call_post(donor_post, outputs, inputs); }

PyObject* torch_screening(PyObject*, PyObject* change) {
  const long by = PyLong_AsLong(change);
  if (PyErr_Occurred()) return nullptr;
  if (by < -1 || by > 1) {
    PyErr_SetString(PyExc_ValueError, "-1, 0 or 1");
    return nullptr;
  }
  int now = screening.load();
  while (!screening.compare_exchange_weak(now, std::max(0, now + static_cast<int>(by)))) {
  }
  return PyLong_FromLong(std::max(0, now + static_cast<int>(by)));
}

bool screen_ready() { return pre_at >= 0 && tensors_ready(); }

void list_put(Tensors& hooks, void* hook) {
  if (std::find(hooks.begin(), hooks.end(), hook) != hooks.end()) return;
  if (hooks.size() == hooks.capacity()) {
    constexpr size_t kOurs = 3;  // of each kind; malloc gives as much for one
    Tensors grown;
    grown.reserve(hooks.size() + kOurs);
    grown.insert(grown.end(), hooks.begin(), hooks.end());
    hooks.swap(grown);
    // Behind the only one nothing is read any more. Else the words stay for good: several hooks of C++ and no room is
    // rare, ours are put with room for the others.
    if (grown.size() > 1) new Tensors(std::move(grown));
  }
  hooks.push_back(hook);
}

void screen_put(void* node, bool before, bool after) {
  if (before) list_put(at_offset<Tensors>(node, pre_at), pre_hook);
  if (after) list_put(at_offset<Tensors>(node, post_at), post_hook);
}

void front_put(void* node, void* hook) { list_put(at_offset<Tensors>(node, pre_at), hook); }

bool front_has(void* node, void* hook) {
  const Tensors& hooks = at_offset<Tensors>(node, pre_at);
  return std::find(hooks.begin(), hooks.end(), hook) != hooks.end();
}

void front_take(void* node, void* hook) {
  Tensors& hooks = at_offset<Tensors>(node, pre_at);
  hooks.erase(std::remove(hooks.begin(), hooks.end(), hook), hooks.end());
}

bool others_hook(void* node, void* hook) {
  const Tensors* own = tensor_hooks_of(node);
  if (!own || !own->empty()) return true;
  for (void* each : at_offset<Tensors>(node, pre_at))
    if (each != hook && each != pre_hook) return true;
  for (void* each : at_offset<Tensors>(node, post_at))
    if (each != post_hook) return true;
  return false;
}

void screen_take(void* node) {
  Tensors& before = at_offset<Tensors>(node, pre_at);
  before.erase(std::remove(before.begin(), before.end(), static_cast<void*>(pre_hook)), before.end());
  Tensors& after = at_offset<Tensors>(node, post_at);
  after.erase(std::remove(after.begin(), after.end(), static_cast<void*>(post_hook)), after.end());
}

}  // namespace adbg
