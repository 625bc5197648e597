// torch::autograd::Node as it lies in memory, by offsets that were checked in this process.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "memory.h"

namespace adbg {

struct NodeLayout {
  int wrapped = 16;    // in the Python object: the pointer to the node
  int sequence = -1;   // uint64_t sequence_nr_
  int thread = -1;     // uint64_t thread_id_
  int edges = -1;      // std::vector<Edge> next_edges_
  int leaf = -1;       // in an accumulate node: the TensorImpl of its parameter
  int edge_bytes = 0;  // 16 where an Edge has an intrusive_ptr, 24 with a shared_ptr
};
extern NodeLayout node_layout;

inline uint64_t sequence_of(void* node) { return at_offset<uint64_t>(node, node_layout.sequence); }
inline uint64_t thread_of(void* node) { return at_offset<uint64_t>(node, node_layout.thread); }

// The node behind a Python object of one of torch's node types; nullptr, without an exception, where the type is none or
// did not pass its check: the number in memory is the one that torch tells.
void* node_behind(PyObject* object);

// torch_layout([(node, thread id)]): finds the offsets of number and thread by nodes that were made on several threads.
PyObject* torch_layout(PyObject*, PyObject* samples);
// torch_edges([node, ...]): finds the edges by nodes whose next_functions are known. True where they were found.
PyObject* torch_edges(PyObject*, PyObject* nodes);
// torch_leaves([(accumulate node, its tensor)]): finds where they have it, by two at least. True where it was found.
PyObject* torch_leaves(PyObject*, PyObject* pairs);

}  // namespace adbg
