// What every node of a watched backward did, written down without Python: when it began and ended, and the norm of what
// flowed into it.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ticks.h"
#include "torch_engine.h"
#include "torch_graph.h"

namespace adbg {

// One backward. Written by the threads that run its nodes, read by the one that takes.
class NodeEvents : public Followed {
 public:
  struct Event {
    void* node;
    uint64_t begin, end;  // ticks
    double norm;
    uint32_t shape;  // a hash of the gradient's sizes and type; 0 where there was none
    uint16_t flags, thread;
  };
  // In the order of begins, and how much there was no room for.
  struct Taken {
    std::vector<Event> events;
    uint64_t lost;
    TickScale scale;
  };

  // One more than there are nodes: the engine may put one of its own in front of several roots.
  // `norms`: false where the nodes' times alone are wanted. Then nothing is read, and no node has a hook.
  NodeEvents(size_t nodes, size_t most, bool norms = true);
  void begins(NodeRun& run, Tensors* gradients) override;
  void worked(NodeRun& run) override;
  void left(NodeRun& run) override;
  Taken take();    // what was written since the last time
  Taken so_far(size_t start = 0);  // the same behind the first `start` of them; it stays

 private:
  void look(NodeRun& run, Tensors* gradients);

  const bool norms_;
  std::mutex lock_;
  std::vector<Event> events_;
  size_t limit_;
  uint64_t lost_ = 0;
};

// For calls that nobody looks at while they run.

// Every node of the next backward that this thread begins, at `tensor`, is written down; nullptr: it cannot be.
Follow events_next(PyObject* tensor, size_t nodes);
// What was written down of it so far, and stays: `bytes` and `shapes` as below. `positions`: bytes, a uint32 for each
// key. False with an exception set.
struct Rows {
  PyObject* bytes = nullptr;
  size_t count = 0;
  uint64_t lost = 0, shapes = 0;
};
bool events_rows(const Follow& events, const Keys& keys, PyObject* positions, Rows& rows);
// As `torch_events_begin` returns it.
PyObject* events_capsule(const Follow& events);

// torch_events(on) -> "" or why not. On: the engine's functions are ours; off: they are torch's again.
PyObject* torch_events(PyObject*, PyObject* on);
// torch_events_begin(walk, tensor, most, norms=True) -> capsule, or None. The next backward that this thread begins is written
// down: `most` nodes of it at most, without norms and shapes where these are not wanted. `tensor`: what it begins at,
// which must be dense and on the CPU.
PyObject* torch_events_begin(PyObject*, PyObject* arguments);
// torch_events_take(capsule, walk, positions) -> (bytes, lost, shapes): what came since the last time, in the order of
// begins. `positions`: bytes, a uint32 for each key. A row has 32 bytes: see engine/node_batch.py. `shapes`: a number
// for the shapes of the gradients by key; that of several batches is their sum.
PyObject* torch_events_take(PyObject*, PyObject* arguments);
// torch_events_since(capsule, walk, positions, start) -> bytes: those behind the first `start` of what `take` would give
// now, which stay. By any thread, while the nodes run.
PyObject* torch_events_since(PyObject*, PyObject* arguments);
// torch_events_end(capsule): it is over.
PyObject* torch_events_end(PyObject*, PyObject* capsule);
// torch_alike(walk) -> a number: equal for graphs with nodes of the same types and leaves, made by the same stacks in the
// same order, with the same edges. None where that cannot be told.
PyObject* torch_alike(PyObject*, PyObject* walk);
// torch_events_figure(norm, nonfinite): of the gradient that a Python hook was given, for the node that runs here.
PyObject* torch_events_figure(PyObject*, PyObject* arguments);
// torch_failures(on) -> "", or why the node cannot be told that an exception leaves. Off: all of the engine's functions
// are its own again.
PyObject* torch_failures(PyObject*, PyObject* on);
// torch_failed(walk) -> the key of the node that an exception left last in the backward of this graph, or None: it left
// none since the last call began.
PyObject* torch_failed(PyObject*, PyObject* walk);
// torch_events_interposed() -> [(symbol, whether it is interposed now, slots)]
PyObject* torch_events_interposed(PyObject*, PyObject*);
}  // namespace adbg
