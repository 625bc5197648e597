#include "torch_norms.h"

#include <cmath>
#include <utility>

#include "numbers.h"

namespace adbg {
namespace {

constexpr int64_t kShared = 512;  // elements from which on looking it up is quicker than reading it

// Also where it cannot be told.
bool any_bad(const View& view, bool together) {
  bool found = false;
  if (together) return any_nonfinite(view.kind, view.data, view.count);
  return !any_nonfinite_strided(view.kind, view.data, view.sizes, view.strides, view.dims, found) || found;
}

}  // namespace

Norms::Entry& Norms::at(void* counter, const void* data) {
  const uint64_t mixed = (reinterpret_cast<uint64_t>(counter) >> 4) ^ (reinterpret_cast<uint64_t>(data) >> 6);
  return entries_[mixed * 0x9E3779B97F4A7C15ull >> 58];
}

void Norms::put(Entry& entry, const Changes& changes, const View& view, double squares) {
  if (entry.counter != changes.counter) {
    hold_counter(changes.counter);
    if (entry.counter) drop_counter(entry.counter);
  }
  entry = {changes.counter, view.data, view.count, changes.number, view.kind, squares};
  any_ = true;
}

void Norms::clear() {
  if (!any_) return;
  any_ = false;
  for (Entry& entry : entries_)
    if (void* counter = std::exchange(entry.counter, nullptr)) drop_counter(counter);
}

bool Norms::squares(const View& view, bool together, const Changes& changes, double& found) {
  if (!together) return squares_strided(view.kind, view.data, view.sizes, view.strides, view.dims, found);
  if (view.count < kShared || !changes.counter) {
    found = squares_of(view.kind, view.data, view.count);
    return true;
  }
  Entry& entry = at(changes.counter, view.data);
  if (holds(entry, changes, view)) {
    found = entry.squares;
  } else {
    found = squares_of(view.kind, view.data, view.count);
    put(entry, changes, view, found);
  }
  return true;
}

// What is large is summed, for the node that it flows into next wants its norm and need not read it again.
bool Norms::finite_from(const Tensors& gradients, size_t first) {
  void* last = nullptr;
  for (size_t i = first; i < gradients.size(); i++) {
    void* const& each = gradients[i];
    if (each == last) continue;  // passed on twice
    last = each;
    View view;
    const Seen seen = read_tensor(const_cast<void**>(&each), view);
    if (seen == Seen::unknown) return false;
    if (seen != Seen::floats || view.count == 0) continue;
    const bool together = view.dense || lies_together(view.sizes, view.strides, view.dims);
    if (together && view.count >= kShared) {
      double found = 0;
      if (!squares(view, together, changes_of(each), found)) return false;
      if (!std::isfinite(found) && any_bad(view, together)) return false;
    } else if (any_bad(view, together)) {
      return false;
    }
  }
  return true;
}

bool Norms::measure(const Tensors& gradients, Figure& figure) {
  size_t at = 0;
  if (!measure_first(gradients, figure, at)) return false;
  if (at < gradients.size()) figure.shape = shape_of(const_cast<void**>(&gradients[at]));
  return true;
}

bool Norms::measure_finite(const Tensors& gradients, Figure& figure) {
  size_t at = 0;
  if (!measure_first(gradients, figure, at)) {  // without a norm: finite it may be all the same
    figure = Figure{};
    return finite_from(gradients, 0);
  }
  return !(figure.flags & kNonfinite) && finite_from(gradients, at + 1);
}

// `at`: where it was.
bool Norms::measure_first(const Tensors& gradients, Figure& figure, size_t& at) {
  for (; at < gradients.size(); at++) {
    void** tensor = const_cast<void**>(&gradients[at]);
    View view;
    const Seen seen = read_tensor(tensor, view);
    if (seen == Seen::undefined) continue;
    if (seen != Seen::floats) return false;
    double found = 0;
    if (view.count > 0) {
      const bool together = view.dense || lies_together(view.sizes, view.strides, view.dims);
      if (!squares(view, together, changes_of(*tensor), found)) return false;
      if (!std::isfinite(found)) {
        if (!any_bad(view, together)) return false;  // doubles whose squares overflow
        figure.flags |= kNonfinite;
      }
    }
    figure.norm = std::sqrt(found);
    figure.flags |= kHasNorm;
    return true;
  }
  return true;
}

}  // namespace adbg
