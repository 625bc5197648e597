// A tensor of torch's as it is read without an operator: where its numbers lie, by torch's stable C functions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

#include "numbers.h"

namespace adbg {

using Tensors = std::vector<void*>;  // at::Tensor is one pointer to its TensorImpl

struct View {
  Kind kind;
  const void* data;
  int64_t count;
  bool dense;  // contiguous; otherwise these three tell where the elements lie (strides in elements)
  const int64_t *sizes, *strides;
  int64_t dims;
};

enum class Seen { undefined, floats, integers, unknown };  // unknown: not on the CPU, not dense in memory, of another kind

// `view` is filled for floats, and valid while the tensor is.
Seen read_tensor(void** tensor, View& view);
bool tensors_ready();
// Whether it is dense, on the CPU, and no subclass's with a dispatch of its own.
bool is_plain(void* tensor);
// A number for its sizes and the type of its elements, never 0.
uint32_t shape_of(void** tensor);

// What counts the changes in place of a tensor and its views, and how many there were; nullptr where it is not known.
struct Changes {
  void* counter;
  uint32_t number;
};
Changes changes_of(void* tensor);
// Keeps the counter (not its tensor), so that no other one comes to lie there.
void hold_counter(void* counter);
void drop_counter(void* counter);

// Tensors kept alive: a reference each, which `drop` gives back. A node has one or two of them: no memory is asked for.
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { drop(); }
  void keep(const Tensors& tensors);
  void drop();
  Tensors all() const;  // theirs, without references

 private:
  static constexpr size_t kFew = 4;
  void add(void* tensor);
  void* few_[kFew];
  size_t count_ = 0;  // of few_
  Tensors more_;
};
// Gives back a reference to each, which whoever filled the list owned, and empties it.
void drop_tensors(Tensors& tensors);
bool tensors_kept();

// The TensorImpl behind a Python tensor; nullptr where it is not known.
void* tensor_behind(PyObject* object);

// torch_tensors(tensor, raw keys, elements, address): finds where tensors keep their dispatch keys, by one of the
// program's that is dense, on the CPU and of a float type. True where it was found, and torch's functions agree.
PyObject* torch_tensors(PyObject*, PyObject* arguments);

}  // namespace adbg
