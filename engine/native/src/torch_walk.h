// A graph of torch's nodes, walked in C++: no Python object is made for a node that nobody asks for, so that graphs of
// any depth are freed as torch frees them.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace adbg {

// torch_walk(roots) -> Walk, or None where nodes cannot be read. The Walk holds the roots, and so all nodes below.
PyObject* torch_walk(PyObject*, PyObject* roots);

struct Graph;

struct Walk {
  PyObject_HEAD
  Graph* graph;
};

// The same of any object: nullptr with an exception where it is no Walk, too.
Graph* graph_in(PyObject* object);
// Of a Walk; nullptr with an exception where it was released.
Graph* graph_of(PyObject* self);
// The same, kept until this goes. Whatever is made meanwhile may begin with a collection, and a finalizer of the
// program's in it may release the walk.
class GraphUse {
 public:
  explicit GraphUse(PyObject* self);
  ~GraphUse();
  GraphUse(const GraphUse&) = delete;
  GraphUse& operator=(const GraphUse&) = delete;
  operator Graph*() const { return graph_; }
  Graph* operator->() const { return graph_; }

 private:
  Graph* const graph_;
};
// Whether `number` is a key of the graph; with an exception where it is none.
bool key_of(Graph* graph, PyObject* number, size_t& key);

// Its methods that put hooks into the nodes, and take them out.
PyObject* walk_screen(PyObject* self, PyObject* wanted);
PyObject* walk_unscreen(PyObject* self, PyObject*);
PyObject* walk_hook(PyObject* self, PyObject* arguments);
PyObject* walk_hook_all(PyObject* self, PyObject* after);
PyObject* walk_unhook(PyObject* self, PyObject*);
PyObject* walk_running(PyObject* self, PyObject*);

// Adds the type Walk to the module. -1 with an exception set.
int add_walk_type(PyObject* module);

}  // namespace adbg
