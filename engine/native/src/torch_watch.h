// Backwards whose gradients are looked at without a hook in any node. The first gradient that is not finite, or cannot be
// read here, ends it: from there on the call has hooks, as it would have had from its begin. What its nodes did is written
// down from its begin.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>

namespace adbg {

// torch_watch(hand over) -> whether it can be done. `hand over` is called at the node, with what `torch_events_take` takes,
// and has the rest of its call hooked. Kept for good.
PyObject* torch_watch(PyObject*, PyObject* hand_over);
// torch_watch_next(tensor, nodes) -> whether the next backward of this thread, which begins at the tensor and has so many
// nodes, is watched.
PyObject* torch_watch_next(PyObject*, PyObject* arguments);
bool watch_next(PyObject* tensor, size_t nodes);

}  // namespace adbg
