// What is told of a node that ran: as engine/node_batch.py reads it.
#pragma once

#include <time.h>

#include <cstdint>

namespace adbg {

enum : uint16_t { kHasNorm = 1, kNonfinite = 2, kFailed = 4 };

struct Row {
  uint32_t key, index;
  uint64_t begin;
  double norm;
  float us;
  uint16_t flags, thread;
};
static_assert(sizeof(Row) == 32, "as Python reads it");

// CLOCK_MONOTONIC: what `Row::begin` is in.
inline uint64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace adbg
