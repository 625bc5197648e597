// Numbers over contiguous memory: what leaves a node, without an operator of the framework's.
#pragma once

#include <cstdint>

namespace adbg {

enum class Kind : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 3 };

int64_t bytes_of(Kind kind);

// Whether one of `count` elements is an infinity or a NaN. Stops at the first block (64 Ki elements) that has one.
bool any_nonfinite(Kind kind, const void* data, int64_t count);

struct Numbers {
  int64_t nonfinite;  // infinities and NaNs
  double squares;     // sum of the squares in double; not finite where an element is not
};

Numbers numbers_of(Kind kind, const void* data, int64_t count);

// The sum of the squares alone, several times as fast: within 1e-6 of it, of a double within 1e-12. Not finite where an
// element is not (or where the squares of doubles overflow).
double squares_of(Kind kind, const void* data, int64_t count);

// The same over a tensor of any strides (in elements) and positive sizes; `dims` at most 16, false otherwise.
bool any_nonfinite_strided(Kind kind, const void* data, const int64_t* sizes, const int64_t* strides, int64_t dims,
                           bool& found);

bool squares_strided(Kind kind, const void* data, const int64_t* sizes, const int64_t* strides, int64_t dims,
                     double& found);
// Whether its elements are those from the first one on, in whatever order (a transposed matrix).
bool lies_together(const int64_t* sizes, const int64_t* strides, int64_t dims);

}  // namespace adbg
