// Gradients as the watch on Paddle sees them: looked at, summed, held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "paddle_events.h"
#include "paddle_graph.h"
#include "paddle_tensors.h"

namespace adbg {

// What gradients were summed to as they left a node, or as a sum of several came to one: what they flow into next wants
// their norm. A gradient is known again by the first two words of its tensor, a shared pointer, which every copy has; what
// lies there later has come out of a node, too, and was put here anew, or taken out. For the first kBothWays of a process the numbers are
// read as well.
class PaddleSums {
 public:
  void put(const void* tensor, double squares) {
    const Key key = key_of(tensor);
    sums_[place(key)] = {key, turn_, squares};
  }
  bool find(const void* tensor, double& squares) const {
    const Key key = key_of(tensor);
    const Sum& sum = sums_[place(key)];
    if (sum.key.object != key.object || sum.key.count != key.count || sum.turn != turn_) return false;
    squares = sum.squares;
    return true;
  }
  void drop(const void* tensor) { sums_[place(key_of(tensor))].turn = 0; }
  void clear() { turn_++; }

 private:
  struct Key {
    uint64_t object, count;
  };
  struct Sum {
    Key key;
    uint64_t turn;
    double squares;
  };
  static Key key_of(const void* tensor) {
    Key key;
    memcpy(&key, tensor, sizeof key);
    return key;
  }
  static size_t place(const Key& key) { return mix(key.object) & 63; }
  uint64_t turn_ = 1;
  Sum sums_[64] = {};
};

// Gradients that were looked at, for the checks of the watch.
struct PaddleSeen {
  std::atomic<int64_t> looked{0}, bad{0}, left_over{0};
};
extern PaddleSeen seen;

// Whether Python must look at one of them: it has an element that is not finite, or cannot be read here.
bool any_suspicious(const void* slots, PaddleSums& sums);
// Norm and flags of the first gradient that is there.
void measure(const void* slots, PaddleSums& sums, PaddleRan& ran);

// What flowed into a node, held while it runs: a kernel may write over what nobody holds.
class PaddleHeld {
 public:
  explicit PaddleHeld(const void* slots) {
    paddle.each(slots, [this](void*) { count_++; });
    if (count_ > kFew) room_ = static_cast<char*>(::operator new(count_ * static_cast<size_t>(paddle.bytes)));
    paddle.each(slots, [this](void* tensor) { paddle.copy(room_ + made_++ * static_cast<size_t>(paddle.bytes), tensor); });
  }
  ~PaddleHeld() {
    for (size_t i = 0; i < made_; i++) paddle.destroy(room_ + i * static_cast<size_t>(paddle.bytes));
    if (room_ != few_) ::operator delete(room_);
  }
  PaddleHeld(const PaddleHeld&) = delete;
  PaddleHeld& operator=(const PaddleHeld&) = delete;
  template <typename Visit>
  void each(Visit visit) const {
    for (size_t i = 0; i < made_; i++) visit(room_ + i * static_cast<size_t>(paddle.bytes));
  }

 private:
  static constexpr size_t kFew = 4, kTensor = 128;  // a tensor is smaller; `begin` checks it
  alignas(16) char few_[kFew * kTensor];
  char* room_ = few_;
  size_t count_ = 0, made_ = 0;
};

}  // namespace adbg
