// The norm of the gradient that flows into a node. Most gradients pass through several nodes (an addition, a view): each
// is read once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "node_row.h"
#include "torch_tensors.h"

namespace adbg {

struct Figure {
  double norm = 0;
  uint32_t shape = 0;  // a hash of the gradient's sizes and type; 0 where there was none
  uint16_t flags = 0;
};

// Those that were taken on one thread. A gradient is known by where it lies and by the counter of its changes, which is
// held: no other one can have it. What writes without being counted must be followed by `clear`.
class Norms {
 public:
  Norms() = default;
  Norms(const Norms&) = delete;
  Norms& operator=(const Norms&) = delete;
  ~Norms() { clear(); }

  // Of the first that is defined, with its shape. False where it cannot be read in memory.
  bool measure(const Tensors& gradients, Figure& figure);
  // The same without its shape, and whether all elements of all of them are finite. False also where one cannot be read
  // in memory.
  bool measure_finite(const Tensors& gradients, Figure& figure);
  // Whether all elements of all of them are finite. False also where one cannot be read in memory.
  bool all_finite(const Tensors& gradients) { return finite_from(gradients, 0); }
  void clear();

 private:
  static constexpr size_t kPlaces = 64;
  struct Entry {
    void* counter = nullptr;
    const void* data;
    int64_t count;
    uint32_t number;
    Kind kind;
    double squares;
  };
  bool holds(const Entry& entry, const Changes& changes, const View& view) const {
    return entry.counter == changes.counter && entry.data == view.data && entry.count == view.count &&
           entry.number == changes.number && entry.kind == view.kind;
  }
  Entry& at(void* counter, const void* data);
  bool measure_first(const Tensors& gradients, Figure& figure, size_t& at);
  bool finite_from(const Tensors& gradients, size_t first);
  void put(Entry& entry, const Changes& changes, const View& view, double squares);
  bool squares(const View& view, bool together, const Changes& changes, double& found);

  Entry entries_[kPlaces];
  bool any_ = false;
};

}  // namespace adbg
