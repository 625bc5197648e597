#include "torch_norms.h"

#include <cmath>
#include <utility>

#include "numbers.h"

namespace adbg {
namespace {

constexpr int64_t kShared = 512;  // elements from which on looking it up is quicker than reading it

bool any_bad(const View& view, bool together) {
  bool found = false;
  if (together) return any_nonfinite(view.kind, view.data, view.count);
  return any_nonfinite_strided(view.kind, view.data, view.sizes, view.strides, view.dims, found) && found;
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
  if (holds(entry, changes, view) && entry.squares != kFinite) {
    found = entry.squares;
  } else {
    found = squares_of(view.kind, view.data, view.count);
    put(entry, changes, view, found);
  }
  return true;
}

bool Norms::all_finite(const Tensors& gradients) {
  void* last = nullptr;
  for (void* const& each : gradients) {
    if (each == last) continue;  // passed on twice
    last = each;
    View view;
    const Seen seen = read_tensor(const_cast<void**>(&each), view);
    if (seen == Seen::unknown) return false;
    if (seen != Seen::floats || view.count == 0) continue;
    if (!view.dense && !lies_together(view.sizes, view.strides, view.dims)) {
      bool found = false;
      if (!any_nonfinite_strided(view.kind, view.data, view.sizes, view.strides, view.dims, found) || found) return false;
      continue;
    }
    const Changes changes = view.count < kShared ? Changes{nullptr, 0} : changes_of(each);
    if (!changes.counter) {
      if (any_nonfinite(view.kind, view.data, view.count)) return false;
      continue;
    }
    Entry& entry = at(changes.counter, view.data);
    if (holds(entry, changes, view) && std::isfinite(entry.squares)) continue;
    if (any_nonfinite(view.kind, view.data, view.count)) return false;
    put(entry, changes, view, kFinite);
  }
  return true;
}

bool Norms::measure(const Tensors& gradients, Figure& figure) {
  for (void* const& each : gradients) {
    void** tensor = const_cast<void**>(&each);
    View view;
    const Seen seen = read_tensor(tensor, view);
    if (seen == Seen::undefined) continue;
    if (seen != Seen::floats) return false;
    figure.shape = shape_of(tensor);
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
