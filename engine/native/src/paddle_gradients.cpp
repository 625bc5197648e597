#include "paddle_gradients.h"

#include <cmath>

#include "node_row.h"

namespace adbg {

PaddleSeen seen;

namespace {

// Whether Python must look at it: it has an element that is not finite, or cannot be read here.
bool suspicious(const void* tensor, PaddleSums& sums) {
  const PaddleView view = paddle.view(tensor);
  if (view.seen == PaddleView::undefined || (view.seen == PaddleView::floats && !view.count)) {
    sums.drop(tensor);
    return false;
  }
  bool bad = false;
  double squares = 0;
  if (!paddle.squares(view, squares, bad)) {
    sums.drop(tensor);
    seen.left_over.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  sums.put(tensor, squares);
  seen.looked.fetch_add(1, std::memory_order_relaxed);
  if (bad) seen.bad.fetch_add(1, std::memory_order_relaxed);
  return bad;
}

constexpr int kBothWays = 64;
std::atomic<int> both_ways{kBothWays};  // 0: it was right each time; -1: it was wrong, and is not done any more

bool known(const void* tensor, const PaddleSums& sums, double& squares) {
  const int left = both_ways.load(std::memory_order_relaxed);
  if (left < 0 || !sums.find(tensor, squares)) return false;
  if (!left) return true;
  bool bad = false;
  double read = 0;
  const bool right = paddle.squares(paddle.view(tensor), read, bad) && !memcmp(&read, &squares, sizeof read);
  both_ways.store(right ? left - 1 : -1, std::memory_order_relaxed);
  return right;
}

}  // namespace

bool any_suspicious(const void* slots, PaddleSums& sums) {
  bool found = false;
  paddle.each(slots, [&](void* tensor) { found = found || suspicious(tensor, sums); });
  return found;
}

void measure(const void* slots, PaddleSums& sums, PaddleRan& ran) {
  bool over = false;
  paddle.each(slots, [&](void* tensor) {
    if (over) return;
    const PaddleView view = paddle.view(tensor);
    if (view.seen == PaddleView::undefined) return;
    over = true;
    double squares = 0;
    bool bad = false;
    const bool empty = view.seen == PaddleView::floats && !view.count;  // it may lie where another one lay
    if (!empty && !known(tensor, sums, squares) && !paddle.squares(view, squares, bad)) return;
    if (!std::isfinite(squares)) return;  // doubles whose squares overflow; else Python has it
    ran.norm = std::sqrt(squares);
    ran.flags = kHasNorm;
  });
}

}  // namespace adbg
