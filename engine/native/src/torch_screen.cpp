#include "torch_screen.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "numbers.h"
#include "slots.h"
#include "torch_nodes.h"

namespace adbg {
namespace {

using Tensors = std::vector<void*>;  // at::Tensor is one pointer to its TensorImpl
const char* const kLibrary[] = {"libtorch_cpu", nullptr};

// ---- numbers of a tensor, by torch's stable C functions

using ToPointer = int32_t (*)(void*, void**);
using ToNumber = int32_t (*)(void*, int64_t*);
using ToNumbers = int32_t (*)(void*, int64_t**);
using ToKind = int32_t (*)(void*, int32_t*);
using ToTruth = int32_t (*)(void*, bool*);
ToPointer data_of = nullptr;
ToNumber count_of = nullptr, dims_of = nullptr;
ToNumbers sizes_of = nullptr, strides_of = nullptr;
ToKind type_of = nullptr, device_of = nullptr;
ToTruth dense_of = nullptr, defined_of = nullptr;
std::atomic<void*> undefined{nullptr};  // the one TensorImpl of all undefined tensors: None in Python

int keys_at = -1;              // in a TensorImpl: uint64_t of its DispatchKeySet
uint64_t plain_keys = 0;       // those of a dense tensor on the CPU
std::atomic<int> screening{0};

template <class F>
bool find(F& function, const char* symbol) {
  function = reinterpret_cast<F>(find_symbol(symbol, kLibrary));
  return function != nullptr;
}

// c10::ScalarType
bool kind_of(int32_t type, Kind& kind) {
  switch (type) {
    case 5: kind = Kind::f16; return true;
    case 6: kind = Kind::f32; return true;
    case 7: kind = Kind::f64; return true;
    case 15: kind = Kind::bf16; return true;
  }
  return false;
}

enum class Answer { finite, bad, unknown };

Answer look_at(void** tensor) {
  if (*tensor == undefined.load(std::memory_order_relaxed)) return Answer::finite;
  const uint64_t keys = at_offset<uint64_t>(*tensor, keys_at);
  bool defined = true;
  if (!(keys & plain_keys) || keys & ~plain_keys) {
    if (defined_of(tensor, &defined) || defined) return Answer::unknown;
    undefined.store(*tensor, std::memory_order_relaxed);
    return Answer::finite;
  }
  int32_t type = -1, device = -1;
  Kind kind;
  int64_t count = 0;
  void* data = nullptr;
  bool dense = false;
  if (device_of(tensor, &device) || device != 0 || type_of(tensor, &type)) return Answer::unknown;
  if (!kind_of(type, kind)) return type >= 0 && type <= 4 ? Answer::finite : Answer::unknown;  // integers are finite
  if (count_of(tensor, &count) || count < 0) return Answer::unknown;
  if (count == 0) return Answer::finite;
  if (data_of(tensor, &data) || !data || dense_of(tensor, &dense)) return Answer::unknown;
  if (dense) return any_nonfinite(kind, data, count) ? Answer::bad : Answer::finite;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  bool found = false;
  if (dims_of(tensor, &dims) || sizes_of(tensor, &sizes) || strides_of(tensor, &strides) ||
      !any_nonfinite_strided(kind, data, sizes, strides, dims, found))
    return Answer::unknown;
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
void *donor_pre = nullptr, *donor_post = nullptr;
CallPre call_pre = nullptr;
CallPost call_post = nullptr;
int pre_at = -1, post_at = -1;  // std::vector<std::unique_ptr<hook>> in a node

// One of each, for all nodes; a node that is freed deletes its hooks, and these are not there to be deleted.
class PreHook {
 public:
  virtual ~PreHook() {}
  virtual Tensors call(const Tensors& gradients) {
    Tensors& mine = const_cast<Tensors&>(gradients);  // torch puts what is returned in its place: no copy is made
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
  Py_RETURN_TRUE;
}

PyObject* torch_tensors(PyObject*, PyObject* arguments) {
  PyObject* object;
  unsigned long long keys, address;
  long long elements;
  if (!PyArg_ParseTuple(arguments, "OKLK", &object, &keys, &elements, &address)) return nullptr;
  if (keys_at >= 0) return PyBool_FromLong(!(keys & ~plain_keys));
  if (!find(data_of, "aoti_torch_get_data_ptr") || !find(count_of, "aoti_torch_get_numel") ||
      !find(dims_of, "aoti_torch_get_dim") || !find(sizes_of, "aoti_torch_get_sizes") ||
      !find(strides_of, "aoti_torch_get_strides") || !find(type_of, "aoti_torch_get_dtype") ||
      !find(device_of, "aoti_torch_get_device_type") || !find(dense_of, "aoti_torch_is_contiguous") ||
      !find(defined_of, "aoti_torch_is_defined"))
    Py_RETURN_FALSE;
  for (int in_object : {16, 24}) {
    void* impl = nullptr;
    if (Py_TYPE(object)->tp_basicsize < in_object + 8) continue;
    if (!read_safely(reinterpret_cast<char*>(object) + in_object, &impl, 8)) continue;
    for (int at = 16; at < 256; at += 8) {
      uint64_t word = 0;
      if (!read_safely(static_cast<char*>(impl) + at, &word, 8)) break;
      if (word != keys) continue;
      int64_t count = -1;
      int32_t device = -1;
      void* data = nullptr;
      if (count_of(&impl, &count) || device_of(&impl, &device) || data_of(&impl, &data)) Py_RETURN_FALSE;
      if (count != elements || device != 0 || reinterpret_cast<uint64_t>(data) != address) Py_RETURN_FALSE;
      plain_keys = keys;
      keys_at = at;
      Py_RETURN_TRUE;
    }
  }
  Py_RETURN_FALSE;
}

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

bool screen_ready() { return pre_at >= 0 && keys_at >= 0; }

void screen_put(void* node, bool before, bool after) {
  if (before) {
    Tensors& hooks = at_offset<Tensors>(node, pre_at);
    if (std::find(hooks.begin(), hooks.end(), pre_hook) == hooks.end()) hooks.push_back(pre_hook);
  }
  if (after) {
    Tensors& hooks = at_offset<Tensors>(node, post_at);
    if (std::find(hooks.begin(), hooks.end(), post_hook) == hooks.end()) hooks.push_back(post_hook);
  }
}

void screen_take(void* node) {
  Tensors& before = at_offset<Tensors>(node, pre_at);
  before.erase(std::remove(before.begin(), before.end(), static_cast<void*>(pre_hook)), before.end());
  Tensors& after = at_offset<Tensors>(node, post_at);
  after.erase(std::remove(after.begin(), after.end(), static_cast<void*>(post_hook)), after.end());
}

}  // namespace adbg
