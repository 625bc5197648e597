// Backward calls that ran without Python and wait to be told, and the tensors whose graphs they used up. All of it under
// the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace adbg {

struct PaddleRun {
  uint64_t number, iteration, thread;
  double began, us;
  uint32_t nodes;
  PyObject *roots, *place;  // owned by the list
};

// Whether there is room for one more.
bool runs_full();
bool runs_empty();
// Takes over the references. std::bad_alloc, and nothing taken.
void add_run(const PaddleRun& run);
void drop_runs();
// `node` made the tensor, and the graph behind it is gone.
void add_spent(PyObject* tensor, void* node);

}  // namespace adbg
