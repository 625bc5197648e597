// What a walk does to its nodes: hooks of both kinds, put into their lists and taken out.
#include "torch_graph.h"
#include "torch_hooks.h"
#include "torch_screen.h"
#include "torch_walk.h"

namespace adbg {

// screen(bytes, one a kind): have the gradients of all nodes looked at. What leaves a node is looked at once, and what
// comes in where it may be another by then: where several are summed, at the roots, at the leaves, at the nodes of
// marked kinds (whose backward is Python) and at those that they give to. False where it cannot be done.
PyObject* walk_screen(PyObject* self, PyObject* wanted) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  if (!PyBytes_Check(wanted) || static_cast<size_t>(PyBytes_GET_SIZE(wanted)) != graph->types.size()) {
    PyErr_SetString(PyExc_ValueError, "one byte for each kind");
    return nullptr;
  }
  if (!screen_ready()) Py_RETURN_FALSE;
  const char* marks = PyBytes_AS_STRING(wanted);
  const size_t count = graph->nodes.size();
  std::vector<uint64_t> slots(count, 0);  // that an edge leads to, as bits
  std::vector<char> incoming(count, 0);
  for (uint32_t root : graph->roots) incoming[root] = 1;
  for (size_t key = 0; key < count; key++) {
    const uint32_t first = graph->first[key], last = graph->first[key + 1];
    const bool custom = marks[graph->kinds[key]];
    if (first == last || custom) incoming[key] = 1;
    for (uint32_t i = first; i < last; i++) {
      const uint32_t below = graph->below[i];
      if (below == kNoKey) continue;
      const uint64_t bit = graph->slots[i] < 64 ? uint64_t{1} << graph->slots[i] : 0;
      if (custom || !bit || slots[below] & bit) incoming[below] = 1;
      slots[below] |= bit;
    }
  }
  for (size_t key = 0; key < count; key++)
    screen_put(graph->nodes[key], incoming[key], graph->first[key] != graph->first[key + 1]);
  Py_RETURN_TRUE;
}

PyObject* walk_unscreen(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  if (screen_ready())
    for (void* node : graph->nodes) screen_take(node);
  Py_RETURN_NONE;
}

// hook(key, before, after): have Python called as that node begins, and as it ends.
PyObject* walk_hook(PyObject* self, PyObject* arguments) {
  Graph* graph = graph_of(self);
  PyObject* number;
  int before, after;
  size_t key;
  if (!graph || !PyArg_ParseTuple(arguments, "Opp", &number, &before, &after)) return nullptr;
  if (!key_of(graph, number, key)) return nullptr;
  if (!hooks_ready()) Py_RETURN_FALSE;
  hook_put(graph->nodes[key], before, after);
  graph->hooked.push_back(static_cast<uint32_t>(key));
  Py_RETURN_TRUE;
}

// hook_all(after): the same of every node.
PyObject* walk_hook_all(PyObject* self, PyObject* after) {
  Graph* graph = graph_of(self);
  const int also = PyObject_IsTrue(after);
  if (!graph || also < 0) return nullptr;
  if (!hooks_ready()) Py_RETURN_FALSE;
  for (void* node : graph->nodes) hook_put(node, true, also);
  graph->all_hooked = true;
  Py_RETURN_TRUE;
}

PyObject* walk_unhook(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  if (graph->all_hooked)
    for (void* node : graph->nodes) hook_take(node);
  else
    for (uint32_t key : graph->hooked) hook_take(graph->nodes[key]);
  graph->hooked.clear();
  graph->all_hooked = false;
  Py_RETURN_NONE;
}

// running() -> the key of the node that the engine runs on this thread; None where it is none of these.
PyObject* walk_running(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  void* node = running_node();
  const uint32_t key = node ? graph->keys.find(node) : kNoKey;
  if (key == kNoKey) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(key);
}

}  // namespace adbg
