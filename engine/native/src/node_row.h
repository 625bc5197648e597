// What is told of a node that ran: as engine/node_batch.py reads it.
#pragma once

#include <cstdint>

namespace adbg {

enum : uint16_t { kHasNorm = 1, kNonfinite = 2, kFailed = 4 };

struct Row {
  uint32_t key, index;
  uint64_t begin;  // CLOCK_MONOTONIC, ns
  double norm;
  float us;
  uint16_t flags, thread;
};
static_assert(sizeof(Row) == 32, "as Python reads it");

}  // namespace adbg
