// Paddle's tensors, through functions that libpaddle exports.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "numbers.h"

namespace adbg {

struct PaddleDims {  // phi::DDim
  int64_t values[9];
  int32_t rank;
};

struct PaddleView {
  enum : uint8_t { undefined, floats, other } seen = undefined;  // other: cannot be read here
  Kind kind = Kind::f32;
  const void* data = nullptr;
  int64_t count = 0;
  bool together = true;
  const PaddleDims *dims = nullptr, *strides = nullptr;  // where its elements do not lie together
};

struct PaddleTensors {
  bool (*is_initialized)(const void*) = nullptr;
  bool (*is_dense)(const void*) = nullptr;
  bool (*is_cpu)(const void*) = nullptr;
  bool (*is_contiguous)(const void*) = nullptr;
  int64_t (*numel)(const void*) = nullptr;
  int (*dtype)(const void*) = nullptr;
  const PaddleDims* (*dims)(const void*) = nullptr;
  const PaddleDims* (*strides)(const void*) = nullptr;
  const void* (*data)(const void*) = nullptr;
  void (*copy)(void*, const void*) = nullptr;
  void (*destroy)(void*) = nullptr;
  PyObject* (*to_python)(const void*, bool) = nullptr;

  int64_t bytes = 0;               // of a tensor; 0 while that is being found out
  int kinds[4] = {-1, -1, -1, -1};  // Paddle's numbers of float32, float64, float16, bfloat16

  bool find(std::string& why);
  PaddleView view(const void* tensor) const;
  // The sum of the squares of floats, and whether one of them is not finite. False where they cannot be read.
  static bool squares(const PaddleView& view, double& found, bool& bad);

  // `visit` every tensor of a small_vector<vector<Tensor>>: begin and how many; each a vector (begin, end, room).
  template <typename Visit>
  void each(const void* slots, Visit visit) const {
    char* begin;
    uint32_t count;
    memcpy(&begin, slots, 8);
    memcpy(&count, static_cast<const char*>(slots) + 8, 4);
    for (uint32_t slot = 0; slot < count; slot++) {
      char *tensor, *end;
      memcpy(&tensor, begin + 24 * slot, 8);
      memcpy(&end, begin + 24 * slot + 8, 8);
      for (; tensor < end; tensor += bytes) visit(tensor);
    }
  }
};
extern PaddleTensors paddle;

}  // namespace adbg
