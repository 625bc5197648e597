#include "torch_tensors.h"

#include <atomic>
#include <cstring>
#include <new>

#include "memory.h"
#include "slots.h"

namespace adbg {
namespace {

const char* const kLibrary[] = {"libtorch_cpu", nullptr};

using ToPointer = int32_t (*)(void*, void**);
using ToNumber = int32_t (*)(void*, int64_t*);
using ToNumbers = int32_t (*)(void*, int64_t**);
using ToKind = int32_t (*)(void*, int32_t*);
using ToTruth = int32_t (*)(void*, bool*);
using Delete = int32_t (*)(void*);
ToPointer data_of = nullptr;
ToNumber count_of = nullptr, dims_of = nullptr;
ToNumbers sizes_of = nullptr, strides_of = nullptr;
ToKind type_of = nullptr, device_of = nullptr;
ToTruth dense_of = nullptr, defined_of = nullptr;
ToPointer copy_of = nullptr;
Delete delete_of = nullptr;
std::atomic<void*> undefined{nullptr};  // the one TensorImpl of all undefined tensors: None in Python

int object_at = -1;       // in a Python tensor: the pointer to its TensorImpl
int keys_at = -1;         // in a TensorImpl: uint64_t of its DispatchKeySet
int counter_at = -1;      // in a TensorImpl: the pointer to its VersionCounter
uint64_t plain_keys = 0;  // those of a dense tensor on the CPU

constexpr int kReferences = 8, kChanges = 16;  // in a VersionCounter, an intrusive_ptr_target with one number

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

// By the name of its type, which its first word leads to. One word counts its owners, in the lower half, and weak
// pointers to it, which are one as long as there is an owner.
int find_counter(void* tensor) {
  for (int at = 16; at < 96; at += 8) {
    void *object = nullptr, **table = nullptr, *info = nullptr;
    const char* name = nullptr;
    char text[48] = {0};
    if (!read_safely(static_cast<char*>(tensor) + at, &object, 8)) return -1;
    if (!read_safely(object, &table, 8) || !read_safely(table - 1, &info, 8)) continue;
    if (!read_safely(static_cast<char*>(info) + 8, &name, 8) || !read_text(name, text, sizeof text)) continue;
    if (!strstr(text, "VersionCounter")) continue;
    uint64_t references = 0;
    if (!read_safely(static_cast<char*>(object) + kReferences, &references, 8)) return -1;
    return references >> 32 == 1 && (references & 0xffffffff) >= 1 ? at : -1;
  }
  return -1;
}

}  // namespace

Seen read_tensor(void** tensor, View& view) {
  if (*tensor == undefined.load(std::memory_order_relaxed)) return Seen::undefined;
  const uint64_t keys = at_offset<uint64_t>(*tensor, keys_at);
  bool defined = true;
  if (!(keys & plain_keys) || keys & ~plain_keys) {
    if (defined_of(tensor, &defined) || defined) return Seen::unknown;
    undefined.store(*tensor, std::memory_order_relaxed);
    return Seen::undefined;
  }
  int32_t type = -1, device = -1;
  void* data = nullptr;
  if (device_of(tensor, &device) || device != 0 || type_of(tensor, &type)) return Seen::unknown;
  if (!kind_of(type, view.kind)) return type >= 0 && type <= 4 ? Seen::integers : Seen::unknown;
  view.count = 0;
  view.data = nullptr;
  view.dense = true;
  view.dims = 0;
  if (count_of(tensor, &view.count) || view.count < 0) return Seen::unknown;
  if (view.count == 0) return Seen::floats;
  if (data_of(tensor, &data) || !data || dense_of(tensor, &view.dense)) return Seen::unknown;
  view.data = data;
  if (view.dense) return Seen::floats;
  int64_t *sizes = nullptr, *strides = nullptr;
  if (dims_of(tensor, &view.dims) || sizes_of(tensor, &sizes) || strides_of(tensor, &strides)) return Seen::unknown;
  view.sizes = sizes;
  view.strides = strides;
  return Seen::floats;
}

bool tensors_ready() { return keys_at >= 0; }

bool is_plain(void* tensor) {
  const uint64_t keys = at_offset<uint64_t>(tensor, keys_at);
  return (keys & plain_keys) && !(keys & ~plain_keys);
}

uint32_t shape_of(void** tensor) {
  int64_t dims = 0, *sizes = nullptr;
  int32_t type = 0;
  if (dims_of(tensor, &dims) || sizes_of(tensor, &sizes) || type_of(tensor, &type)) return 1;
  uint64_t hash = static_cast<uint64_t>(type) + 1;
  for (int64_t i = 0; i < dims; i++) hash = ((hash ^ static_cast<uint64_t>(sizes[i])) * 0x9E3779B97F4A7C15ull) ^ (hash >> 29);
  return static_cast<uint32_t>(hash >> 32) | 1;
}

Changes changes_of(void* tensor) {
  void* counter = counter_at < 0 ? nullptr : at_offset<void*>(tensor, counter_at);
  return {counter, counter ? __atomic_load_n(&at_offset<uint32_t>(counter, kChanges), __ATOMIC_RELAXED) : 0};
}

void hold_counter(void* counter) { __atomic_fetch_add(&at_offset<uint64_t>(counter, kReferences), 1, __ATOMIC_RELAXED); }

void drop_counter(void* counter) {
  const uint64_t before = __atomic_fetch_sub(&at_offset<uint64_t>(counter, kReferences), 1, __ATOMIC_ACQ_REL);
  if (static_cast<uint32_t>(before) != 1) return;
  using Destroy = void (*)(void*);  // the second of the two that a virtual destructor has in the table
  (*static_cast<Destroy**>(counter))[1](counter);
}

// A TensorImpl counts its owners where a counter does. The highest bit says that it has a Python object, which is told
// as the number goes from one to two and back: such a one is left to torch.
constexpr uint64_t kHasObject = uint64_t{1} << 63;

namespace {

// False where torch would not give one.
bool hold(void* tensor) {
  if (tensor == undefined.load(std::memory_order_relaxed)) return true;  // the same for all, and for good
  uint64_t before = __atomic_load_n(&at_offset<uint64_t>(tensor, kReferences), __ATOMIC_RELAXED);
  while (!(before & kHasObject))
    if (__atomic_compare_exchange_n(&at_offset<uint64_t>(tensor, kReferences), &before, before + 1, true,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return true;
  void *handle = nullptr, *held = tensor;  // by torch: a copy of an at::Tensor, whose reference is taken out of it
  if (copy_of(&held, &handle)) return false;
  ::operator delete(handle);  // the memory alone
  return true;
}

void let_go(void* tensor) {
  if (tensor == undefined.load(std::memory_order_relaxed)) return;
  uint64_t before = __atomic_load_n(&at_offset<uint64_t>(tensor, kReferences), __ATOMIC_RELAXED);
  while (!(before & kHasObject) && static_cast<uint32_t>(before) > 1)
    if (__atomic_compare_exchange_n(&at_offset<uint64_t>(tensor, kReferences), &before, before - 1, true,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return;
  void** owner = new (std::nothrow) void*(tensor);  // an at::Tensor, which torch deletes
  if (owner) delete_of(owner);
}

}  // namespace

void Kept::add(void* tensor) {
  if (count_ < kFew) few_[count_++] = tensor;
  else more_.push_back(tensor);
}

void Kept::keep(const Tensors& tensors) {
  if (tensors.size() > kFew) more_.reserve(tensors.size() - kFew);
  for (void* tensor : tensors)
    if (hold(tensor)) add(tensor);
}

void Kept::drop() {
  for (size_t i = 0; i < count_; i++) let_go(few_[i]);
  count_ = 0;
  if (!more_.empty()) drop_tensors(more_);
}

Tensors Kept::all() const {
  Tensors found(few_, few_ + count_);
  found.insert(found.end(), more_.begin(), more_.end());
  return found;
}

void drop_tensors(Tensors& tensors) {
  for (void* tensor : tensors) let_go(tensor);
  tensors.clear();
}

bool tensors_kept() {
  return (copy_of || find(copy_of, "aoti_torch_new_tensor_handle")) &&
         (delete_of || find(delete_of, "aoti_torch_delete_tensor_object"));
}

void* tensor_behind(PyObject* object) {
  void* impl = nullptr;
  if (object_at < 0 || Py_TYPE(object)->tp_basicsize < object_at + 8) return nullptr;
  return read_safely(reinterpret_cast<char*>(object) + object_at, &impl, 8) ? impl : nullptr;
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
      object_at = in_object;
      plain_keys = keys;
      counter_at = find_counter(impl);
      keys_at = at;
      Py_RETURN_TRUE;
    }
  }
  Py_RETURN_FALSE;
}

}  // namespace adbg
