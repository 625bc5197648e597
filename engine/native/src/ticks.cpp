#include "ticks.h"

#include <cstdio>
#include <cstring>

namespace adbg {
namespace {

// The kernel gives it up where processors disagree or it does not run on: then its own clock is another one.
bool trusted() {
  char text[16] = {0};
  FILE* file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (!file) return false;
  const bool read = fgets(text, sizeof text, file) != nullptr;
  fclose(file);
  return read && !strcmp(text, "tsc\n");
}

}  // namespace

const bool ticks_by_counter = trusted();

namespace {
const TickScale loaded;  // behind what it asks
thread_local uint64_t stood = 0;
}  // namespace

uint64_t ticks_stood() { return stood; }

void note_stood(uint64_t ns) {
  const double rate = scale_so_far().spent(0, 1);  // nanoseconds a tick
  if (rate > 0) stood += static_cast<uint64_t>(static_cast<double>(ns) / rate);
}

TickScale scale_so_far() {
  TickScale scale = loaded;
  scale.until_now();
  return scale;
}

}  // namespace adbg
