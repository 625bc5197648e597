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

// Ticks between its making and `until_now` as CLOCK_MONOTONIC, by what that clock says at both. The thread may lose the
// processor between the two looks, for milliseconds on a busy machine: the closest pair of a few is taken.
class TickScale {
 public:
  TickScale() { both(tick_, ns_); }
  void until_now() {
    uint64_t tick = tick_, ns = ns_;
    both(tick, ns);
    if (tick > tick_) rate_ = static_cast<double>(ns - ns_) / static_cast<double>(tick - tick_);
  }
  uint64_t ns(uint64_t tick) const { return ns_ + static_cast<uint64_t>(static_cast<int64_t>(spent(tick_, tick))); }
  // Nanoseconds between the two.
  double spent(uint64_t from, uint64_t to) const { return static_cast<double>(static_cast<int64_t>(to - from)) * rate_; }

 private:
  static void both(uint64_t& tick, uint64_t& ns) {
    constexpr uint64_t kClose = 2000;  // ticks, of which a look takes 60 to 200
    uint64_t closest = UINT64_MAX;
    for (int tries = 0; tries < 8 && closest > kClose; tries++) {
      const uint64_t before = ticks(), now = monotonic_ns(), apart = ticks() - before;
      if (apart >= closest) continue;
      closest = apart;
      tick = before + apart / 2;
      ns = now;
    }
  }
  uint64_t tick_ = 0, ns_ = 0;
  double rate_ = 1;
};

// How long this thread stood at stops of adbg's, in ticks, since it began: no node's work.
uint64_t ticks_stood();
// It stood there so many nanoseconds more.
void note_stood(uint64_t ns);

// From the loading of the extension until now.
TickScale scale_so_far();

}  // namespace adbg
