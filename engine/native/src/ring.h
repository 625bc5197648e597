// A ring of node events: written by the threads that run nodes, read in batches by one other thread. No lock: a writer
// takes a place by one addition; the reader skips what was overwritten while it read, and counts it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace adbg {

struct NodeEvent {
  uint64_t node;    // its address; may be gone when it is read
  uint64_t number;  // its sequence number, 2^64-1 for an accumulate node
  uint64_t begin;   // CLOCK_MONOTONIC, ns
  uint64_t end;
  double squares;  // sum of squares of what left it; NaN where it was not taken
  uint32_t kind;   // index of its type among those seen, see the framework's part
  uint32_t thread;
};

class Ring {
 public:
  explicit Ring(uint32_t power);  // 2^power events
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void write(const NodeEvent& event);
  // Appends what came since the last call; returns how many were overwritten before they could be read.
  uint64_t read(std::vector<NodeEvent>& into);

 private:
  struct Place {
    std::atomic<uint64_t> turn;  // 2 * (index + 1) when the event of that index is whole, odd while it is written
    NodeEvent event;
  };
  uint64_t mask_;
  Place* places_;
  std::atomic<uint64_t> next_{0};
  uint64_t taken_ = 0;
};

}  // namespace adbg
