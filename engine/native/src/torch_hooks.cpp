#include "torch_hooks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "slots.h"
#include "torch_nodes.h"
#include "torch_screen.h"

namespace adbg {
namespace {

const char* const kLibrary[] = {"libtorch_cpu", nullptr};

// What is called is torch's own hook that calls Python, taken over from a node that was made for it.
using CallPre = Tensors (*)(void* self, const Tensors& gradients);
using CallPost = Tensors (*)(void* self, const Tensors& outputs, const Tensors& inputs);
void *python_pre = nullptr, *python_post = nullptr;
CallPre call_pre = nullptr;
CallPost call_post = nullptr;
int pre_at = -1, post_at = -1;  // std::vector<std::unique_ptr<hook>> in a node
std::atomic<int> hooked{0};

// c10::intrusive_ptr<Node> as a function returns it: not in a register, for it has a destructor.
struct Reference {
  void* node = nullptr;
  ~Reference() {
    // The engine holds the node that it runs: this is never the last reference, nor the last beside a Python object.
    if (node) at_offset<std::atomic<uint64_t>>(node, 8).fetch_sub(1, std::memory_order_acq_rel);
  }
};
using CurrentNode = Reference (*)();
CurrentNode current_node = nullptr;

// One of each for all nodes, as in torch_screen.cpp: a node that is freed deletes its hooks, and these stay.
class PreHook {
 public:
  virtual ~PreHook() {}
  virtual Tensors call(const Tensors& gradients) {
    if (hooked.load(std::memory_order_relaxed) > 0) return call_pre(python_pre, gradients);
    return std::move(const_cast<Tensors&>(gradients));  // torch puts what is returned in its place
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};
class PostHook {
 public:
  virtual ~PostHook() {}
  virtual Tensors call(const Tensors& outputs, const Tensors& inputs) {
    if (hooked.load(std::memory_order_relaxed) > 0) return call_post(python_post, outputs, inputs);
    return std::move(const_cast<Tensors&>(outputs));
  }
  virtual void compiled(void*) const {}
  virtual void* spare(void*) { return nullptr; }
  static void operator delete(void*) {}
};

// Never destroyed: nodes may hold them as the process ends.
PreHook* const pre_hook = new (::operator new(sizeof(PreHook))) PreHook;
PostHook* const post_hook = new (::operator new(sizeof(PostHook))) PostHook;

}  // namespace

PyObject* torch_hooking(PyObject*, PyObject* arguments) {
  PyObject *object, *pre, *post;
  if (!PyArg_ParseTuple(arguments, "OOO", &object, &pre, &post)) return nullptr;
  if (hooks_ready()) Py_RETURN_TRUE;
  void* node = node_behind(object);
  auto current = reinterpret_cast<CurrentNode>(find_symbol("_ZN5torch8autograd16get_current_nodeEv", kLibrary));
  if (!node || !current) Py_RETURN_FALSE;
  void *before = nullptr, *after = nullptr;
  const int pre_list = find_hook(node, pre, before), post_list = find_hook(node, post, after);
  if (pre_list < 0 || post_list < 0 || pre_list == post_list) Py_RETURN_FALSE;
  void *before_call, *after_call;
  if (!called_of_hook(before, before_call) || !called_of_hook(after, after_call)) Py_RETURN_FALSE;
  Py_INCREF(object);
  python_pre = before;
  python_post = after;
  call_pre = reinterpret_cast<CallPre>(before_call);
  call_post = reinterpret_cast<CallPost>(after_call);
  pre_at = pre_list;
  post_at = post_list;
  current_node = current;
  Py_RETURN_TRUE;
}

PyObject* torch_hooked(PyObject*, PyObject* change) {
  const long by = PyLong_AsLong(change);
  if (PyErr_Occurred()) return nullptr;
  if (by < -1 || by > 1) {
    PyErr_SetString(PyExc_ValueError, "-1, 0 or 1");
    return nullptr;
  }
  const int now = std::max(0, hooked.load() + static_cast<int>(by));  // under the GIL
  hooked.store(now);
  return PyLong_FromLong(now);
}

bool hooks_ready() { return current_node != nullptr; }

void hook_put(void* node, bool before, bool after) {
  if (before) list_put(at_offset<Tensors>(node, pre_at), pre_hook);
  if (after) list_put(at_offset<Tensors>(node, post_at), post_hook);
}

void hook_take(void* node) {
  Tensors& before = at_offset<Tensors>(node, pre_at);
  before.erase(std::remove(before.begin(), before.end(), static_cast<void*>(pre_hook)), before.end());
  Tensors& after = at_offset<Tensors>(node, post_at);
  after.erase(std::remove(after.begin(), after.end(), static_cast<void*>(post_hook)), after.end());
}

void* running_node() {
  if (!current_node) return nullptr;
  const Reference running = current_node();
  return running.node;
}

}  // namespace adbg
