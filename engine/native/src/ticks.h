// When a node begins and ends: by the processor's counter where the kernel takes its own time from that one (9 ns instead of
// 21, twice a node), in nanoseconds elsewhere.
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace adbg {

// CLOCK_MONOTONIC
inline uint64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

extern const bool ticks_by_counter;

inline uint64_t ticks() {
#if defined(__x86_64__)
  if (ticks_by_counter) return __rdtsc();
#endif
  return monotonic_ns();
}

// Ticks between its making and `until` as CLOCK_MONOTONIC, by what that clock says at both.
class TickScale {
 public:
  TickScale() : tick_(ticks()), ns_(monotonic_ns()) {}
  void until_now() {
    const uint64_t tick = ticks(), ns = monotonic_ns();
    if (tick > tick_) rate_ = static_cast<double>(ns - ns_) / static_cast<double>(tick - tick_);
  }
  uint64_t ns(uint64_t tick) const { return ns_ + static_cast<uint64_t>(static_cast<int64_t>(spent(tick_, tick))); }
  // Nanoseconds between the two.
  double spent(uint64_t from, uint64_t to) const { return static_cast<double>(static_cast<int64_t>(to - from)) * rate_; }

 private:
  uint64_t tick_, ns_;
  double rate_ = 1;
};

// From the loading of the extension until now.
TickScale scale_so_far();

}  // namespace adbg
