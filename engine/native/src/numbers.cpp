#include "numbers.h"

#include <cstring>

// One body for several instruction sets, chosen by the loader. Its resolvers run before a sanitizer is set up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ADBG_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ADBG_WIDE __attribute__((noinline))  // as clones are: inlined, GCC 12 warns of kinds that no caller has
#endif

namespace adbg {
namespace {

constexpr int64_t kBlock = 1 << 16;

// An infinity has all bits of the exponent set and a NaN more: the greatest of the bits without sign tells of both.
ADBG_WIDE uint32_t greatest32(const uint32_t* p, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = p[i] & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}
ADBG_WIDE uint64_t greatest64(const uint64_t* p, int64_t n) {
  uint64_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = p[i] & 0x7fffffffffffffffull;
    most = bits > most ? bits : most;
  }
  return most;
}
ADBG_WIDE uint16_t greatest16(const uint16_t* p, int64_t n) {
  uint16_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    uint16_t bits = static_cast<uint16_t>(p[i] & 0x7fffu);
    most = bits > most ? bits : most;
  }
  return most;
}

bool block_bad(Kind kind, const char* data, int64_t n) {
  switch (kind) {
    case Kind::f32: return greatest32(reinterpret_cast<const uint32_t*>(data), n) >= 0x7f800000u;
    case Kind::f64: return greatest64(reinterpret_cast<const uint64_t*>(data), n) >= 0x7ff0000000000000ull;
    case Kind::f16: return greatest16(reinterpret_cast<const uint16_t*>(data), n) >= 0x7c00u;
    case Kind::bf16: return greatest16(reinterpret_cast<const uint16_t*>(data), n) >= 0x7f80u;
  }
  return false;
}

float from_f16(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) bits = sign | 0x7f800000u | (mantissa << 13);
  else if (exponent) bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  else {  // zero, or subnormal: mantissa * 2^-24, exact in a float
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

float from_bf16(uint16_t brain) {
  uint32_t bits = static_cast<uint32_t>(brain) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Four sums side by side, so that additions need not wait for one another; the order is the same on every machine.
template <class T, class Read>
Numbers sum(const T* p, int64_t n, T mask, T limit, Read read) {
  double part[4] = {0, 0, 0, 0};
  int64_t bad = 0, i = 0;
  for (; i + 4 <= n; i += 4)
    for (int lane = 0; lane < 4; lane++) {
      double value = read(p[i + lane]);
      part[lane] += value * value;
      bad += static_cast<T>(p[i + lane] & mask) >= limit;
    }
  for (; i < n; i++) {
    double value = read(p[i]);
    part[0] += value * value;
    bad += static_cast<T>(p[i] & mask) >= limit;
  }
  return {bad, (part[0] + part[1]) + (part[2] + part[3])};
}

double read32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
double read64(uint64_t bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

}  // namespace

int64_t bytes_of(Kind kind) { return kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2; }

bool any_nonfinite(Kind kind, const void* data, int64_t count) {
  const char* p = static_cast<const char*>(data);
  const int64_t size = bytes_of(kind);
  for (int64_t i = 0; i < count; i += kBlock)
    if (block_bad(kind, p + i * size, count - i < kBlock ? count - i : kBlock)) return true;
  return false;
}

ADBG_WIDE Numbers numbers_of(Kind kind, const void* data, int64_t count) {
  if (count <= 0) return {0, 0.0};
  switch (kind) {
    case Kind::f32: return sum(static_cast<const uint32_t*>(data), count, 0x7fffffffu, 0x7f800000u, read32);
    case Kind::f64:
      return sum(static_cast<const uint64_t*>(data), count, uint64_t{0x7fffffffffffffff}, uint64_t{0x7ff0000000000000},
                 read64);
    case Kind::f16:
      return sum(static_cast<const uint16_t*>(data), count, uint16_t{0x7fff}, uint16_t{0x7c00}, from_f16);
    case Kind::bf16:
      return sum(static_cast<const uint16_t*>(data), count, uint16_t{0x7fff}, uint16_t{0x7f80}, from_bf16);
  }
  return {0, 0.0};
}

namespace {

struct Dim {
  int64_t size, stride;
};

constexpr int64_t kLongRun = 256;  // elements, from which on a call costs no more than copying them does
constexpr int64_t kCopied = 8192;  // bytes, on the stack of a thread of the program's

// The elements of a tensor as runs of neighbours in memory: dimensions by stride, those that continue one another joined.
struct Runs {
  Dim dim[16];
  int count = 0;       // 0 too where there is one element
  int64_t repeat = 1;  // how often each element is there: dimensions that were expanded
  bool empty = false;

  // False where it cannot be told.
  bool take(const int64_t* sizes, const int64_t* strides, int64_t dims) {
    for (int64_t i = 0; i < dims; i++) {
      if (sizes[i] == 0) empty = true;
      if (sizes[i] < 0 || strides[i] < 0) return false;
      if (sizes[i] == 1) continue;
      if (strides[i] == 0) {
        repeat *= sizes[i];
        continue;
      }
      if (count == 16) return false;
      dim[count++] = {sizes[i], strides[i]};
    }
    for (int i = 1; i < count; i++)  // the widest stride first
      for (int j = i; j > 0 && dim[j].stride > dim[j - 1].stride; j--) {
        Dim swapped = dim[j];
        dim[j] = dim[j - 1];
        dim[j - 1] = swapped;
      }
    for (int i = count - 1; i > 0; i--)
      if (dim[i - 1].stride == dim[i].stride * dim[i].size) {
        dim[i - 1] = {dim[i - 1].size * dim[i].size, dim[i].stride};
        for (int j = i; j < count - 1; j++) dim[j] = dim[j + 1];
        count--;
      }
    return true;
  }

  // `look(first element, how many)` of all elements, until it returns true. Runs that are long enough are looked at where
  // they lie, others are copied together first: a look at a single element costs 25 ns, a copied one about 1 ns.
  template <class Look>
  bool any(Kind kind, const void* data, Look look) const {
    if (count == 0) return look(static_cast<const char*>(data), 1);
    switch (bytes_of(kind)) {
      case 2: return walk(static_cast<const uint16_t*>(data), look);
      case 4: return walk(static_cast<const uint32_t*>(data), look);
      default: return walk(static_cast<const uint64_t*>(data), look);
    }
  }

 private:
  template <class T, class Look>
  bool walk(const T* p, Look look) const {
    const Dim row = dim[count - 1];
    if (row.stride == 1 && row.size >= kLongRun)
      return rows(p, [&](const T* first) { return look(reinterpret_cast<const char*>(first), row.size); });
    constexpr int64_t room = kCopied / static_cast<int64_t>(sizeof(T));
    T copied[room];
    int64_t filled = 0;
    const bool found = rows(p, [&](const T* first) {
      for (int64_t done = 0; done < row.size;) {
        const int64_t left = row.size - done, n = left < room - filled ? left : room - filled;
        copy(copied + filled, first + done * row.stride, n, row.stride);
        filled += n;
        done += n;
        if (filled < room) continue;
        filled = 0;
        if (look(reinterpret_cast<const char*>(copied), room)) return true;
      }
      return false;
    });
    return found || (filled > 0 && look(reinterpret_cast<const char*>(copied), filled));
  }

  // `each(first element)` of every row, as they lie in memory, until it returns true.
  template <class T, class Each>
  bool rows(const T* p, Each each) const {
    int64_t at[16] = {0};
    for (;;) {
      if (each(p)) return true;
      int j = count - 2;
      for (; j >= 0; j--) {
        p += dim[j].stride;
        if (++at[j] < dim[j].size) break;
        p -= dim[j].stride * dim[j].size;
        at[j] = 0;
      }
      if (j < 0) return false;
    }
  }

  template <class T>
  static void copy(T* to, const T* from, int64_t n, int64_t stride) {
    if (stride == 2)  // every other element, the most frequent: known to the compiler, it takes several at once
      for (int64_t i = 0; i < n; i++) to[i] = from[i * 2];
    else
      for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];
  }
};

// 32 sums side by side in the type itself, 4096 elements at a time: twice as fast as in double, and as exact as a float
// is (1e-6). A block whose sum overflows, or may have lost small squares, is added up in double.
constexpr int kLanes = 32, kShort = 4096;
constexpr float kSmallest = 1e-30f;

template <class T, class Read>
inline double squares(const T* p, int64_t n, Read read) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kShort) {
    const int64_t end = n - begin < kShort ? n : begin + kShort;
    float part[kLanes] = {0};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (int lane = 0; lane < kLanes; lane++) {
        const float value = read(p[i + lane]);
        part[lane] += value * value;
      }
    double block = 0;
    bool again = false;
    for (int lane = 0; lane < kLanes; lane++) {
      block += static_cast<double>(part[lane]);
      again |= part[lane] < kSmallest || !(part[lane] <= 3e38f);
    }
    if (again) {
      double wide[8] = {0};
      for (int64_t j = begin; j < i; j += 8)
        for (int lane = 0; lane < 8; lane++) {
          const double value = static_cast<double>(read(p[j + lane]));
          wide[lane] += value * value;
        }
      block = ((wide[0] + wide[1]) + (wide[2] + wide[3])) + ((wide[4] + wide[5]) + (wide[6] + wide[7]));
    }
    double few[4] = {0};
    for (; i + 4 <= end; i += 4)
      for (int lane = 0; lane < 4; lane++) {
        const double value = static_cast<double>(read(p[i + lane]));
        few[lane] += value * value;
      }
    for (; i < end; i++) {
      const double value = static_cast<double>(read(p[i]));
      few[0] += value * value;
    }
    sum += block + ((few[0] + few[1]) + (few[2] + few[3]));
  }
  return sum;
}

inline float plain32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline float brain(uint16_t bits) { return plain32(static_cast<uint32_t>(bits) << 16); }
// A half of an infinity or a NaN is read as a finite number here: those are looked for apart.
inline float half(uint16_t bits) { return plain32(static_cast<uint32_t>(bits & 0x7fffu) << 13) * 0x1p112f; }

ADBG_WIDE double squares32(const uint32_t* p, int64_t n) { return squares(p, n, plain32); }
ADBG_WIDE double squares_brain(const uint16_t* p, int64_t n) { return squares(p, n, brain); }
ADBG_WIDE double squares_half(const uint16_t* p, int64_t n) { return squares(p, n, half); }
ADBG_WIDE double squares64(const uint64_t* p, int64_t n) {
  double part[8] = {0};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; lane++) {
      double value;
      memcpy(&value, p + i + lane, 8);
      part[lane] += value * value;
    }
  for (; i < n; i++) {
    double value;
    memcpy(&value, p + i, 8);
    part[0] += value * value;
  }
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

}  // namespace

double squares_of(Kind kind, const void* data, int64_t count) {
  if (count <= 0) return 0;
  switch (kind) {
    case Kind::f32: return squares32(static_cast<const uint32_t*>(data), count);
    case Kind::f64: return squares64(static_cast<const uint64_t*>(data), count);
    case Kind::bf16: return squares_brain(static_cast<const uint16_t*>(data), count);
    case Kind::f16:
      if (any_nonfinite(kind, data, count)) return numbers_of(kind, data, count).squares;
      return squares_half(static_cast<const uint16_t*>(data), count);
  }
  return 0;
}

bool any_nonfinite_strided(Kind kind, const void* data, const int64_t* sizes, const int64_t* strides, int64_t dims,
                           bool& found) {
  Runs runs;
  found = false;
  if (!runs.take(sizes, strides, dims)) return false;
  if (!runs.empty) found = runs.any(kind, data, [kind](const char* p, int64_t n) { return any_nonfinite(kind, p, n); });
  return true;
}

bool squares_strided(Kind kind, const void* data, const int64_t* sizes, const int64_t* strides, int64_t dims,
                     double& found) {
  Runs runs;
  found = 0;
  if (!runs.take(sizes, strides, dims)) return false;
  if (runs.empty) return true;
  runs.any(kind, data, [kind, &found](const char* p, int64_t n) {
    found += squares_of(kind, p, n);
    return false;
  });
  found *= static_cast<double>(runs.repeat);
  return true;
}

bool lies_together(const int64_t* sizes, const int64_t* strides, int64_t dims) {
  Runs runs;
  return runs.take(sizes, strides, dims) && !runs.empty && runs.repeat == 1 &&
         (runs.count == 0 || (runs.count == 1 && runs.dim[0].stride == 1));
}

}  // namespace adbg
