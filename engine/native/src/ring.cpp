#include "ring.h"

namespace adbg {

Ring::Ring(uint32_t power) : mask_((uint64_t{1} << power) - 1), places_(new Place[mask_ + 1]()) {}
Ring::~Ring() { delete[] places_; }

void Ring::write(const NodeEvent& event) {
  const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  Place& place = places_[index & mask_];
  place.turn.store(2 * index + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  place.event = event;
  place.turn.store(2 * (index + 1), std::memory_order_release);
}

uint64_t Ring::read(std::vector<NodeEvent>& into) {
  const uint64_t end = next_.load(std::memory_order_acquire);
  uint64_t lost = 0;
  if (end - taken_ > mask_ + 1) {
    lost = end - taken_ - (mask_ + 1);
    taken_ = end - (mask_ + 1);
  }
  for (; taken_ < end; taken_++) {
    const Place& place = places_[taken_ & mask_];
    const uint64_t whole = 2 * (taken_ + 1), turn = place.turn.load(std::memory_order_acquire);
    if (turn < whole) break;  // its writer is not done: it comes with the next batch
    NodeEvent event = place.event;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (place.turn.load(std::memory_order_relaxed) != whole) {
      lost++;
      continue;
    }
    into.push_back(event);
  }
  return lost;
}

}  // namespace adbg
