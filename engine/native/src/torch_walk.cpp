#include "torch_walk.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "guarded.h"
#include "torch_graph.h"
#include "torch_nodes.h"
#include "torch_objects.h"
#include "torch_stacks.h"

namespace adbg {

Graph* graph_of(PyObject* self) {
  Graph* graph = reinterpret_cast<Walk*>(self)->graph;
  if (!graph) PyErr_SetString(PyExc_ValueError, "this walk was released");
  return graph;
}

GraphUse::GraphUse(PyObject* self) : graph_(graph_of(self)) {
  if (graph_) graph_->users++;
}

GraphUse::~GraphUse() {
  if (graph_ && --graph_->users == 0 && graph_->released) free_graph(graph_);
}

bool key_of(Graph* graph, PyObject* number, size_t& key) {
  key = PyLong_AsSize_t(number);
  if (PyErr_Occurred()) return false;
  if (key < graph->nodes.size()) return true;
  PyErr_SetString(PyExc_IndexError, "no such key");
  return false;
}

namespace {

void walk_free(PyObject* self) {
  Walk* walk = reinterpret_cast<Walk*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Graph* graph = walk->graph;
  walk->graph = nullptr;
  free_graph(graph);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* list_of(const std::vector<uint32_t>& values) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t i = 0; list && i < values.size(); i++) {
    PyObject* value = PyLong_FromUnsignedLong(values[i]);
    if (value) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), value);
    else Py_CLEAR(list);
  }
  return list;
}

Py_ssize_t walk_length(PyObject* self) {
  const GraphUse graph(self);
  return graph ? static_cast<Py_ssize_t>(graph->nodes.size()) : -1;
}

PyObject* walk_types(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  PyObject* list = graph ? PyList_New(0) : nullptr;
  for (size_t i = 0; list && i < graph->types.size(); i++)
    if (PyList_Append(list, reinterpret_cast<PyObject*>(graph->types[i])) != 0) Py_CLEAR(list);
  return list;
}

PyObject* walk_kind(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromLong(graph->kinds[key]) : nullptr;
}

PyObject* walk_number(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromUnsignedLongLong(sequence_of(graph->nodes[key])) : nullptr;
}

PyObject* walk_stack(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromUnsignedLong(stack_number(graph->nodes[key])) : nullptr;
}

PyObject* walk_stacks(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  std::vector<uint32_t> numbers;
  numbers.reserve(graph->nodes.size());
  for (void* node : graph->nodes) numbers.push_back(stack_number(node));
  return list_of(numbers);
}

PyObject* walk_kinds(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  return graph ? list_of(std::vector<uint32_t>(graph->kinds.begin(), graph->kinds.end())) : nullptr;
}

// places(bytes, one a kind) -> [key]: of each pair of kind and stack the first node; all nodes of marked kinds, and
// those without a stack.
PyObject* walk_places(PyObject* self, PyObject* apart) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  if (!PyBytes_Check(apart) || static_cast<size_t>(PyBytes_GET_SIZE(apart)) != graph->types.size()) {
    PyErr_SetString(PyExc_ValueError, "one byte for each kind");
    return nullptr;
  }
  const char* marks = PyBytes_AS_STRING(apart);
  std::unordered_set<uint64_t> seen;
  std::vector<uint32_t> keys;
  for (size_t key = 0; key < graph->nodes.size(); key++) {
    const uint16_t kind = graph->kinds[key];
    const uint32_t stack = stack_number(graph->nodes[key]);
    if (marks[kind] || !stack || seen.insert(static_cast<uint64_t>(kind) << 32 | stack).second)
      keys.push_back(static_cast<uint32_t>(key));
  }
  return list_of(keys);
}

PyObject* walk_node(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  if (!graph || !key_of(graph, number, key)) return nullptr;
  const bool lent = objects_returnable() && !has_object(graph->nodes[key]);
  PyObject* object = object_of(graph->nodes[key]);
  // Making it may run a collection, and a finalizer of the program's may release this walk in it.
  const bool mine = object && lent && reinterpret_cast<Walk*>(self)->graph == graph;
  if (mine) graph->lent.push_back(static_cast<uint32_t>(key));
  return object;
}

// reclaim() -> how many nodes handed out before have a Python object still: those that Python refers to. None where
// that cannot be done.
PyObject* walk_reclaim(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  if (!objects_returnable()) Py_RETURN_NONE;
  auto taken = [&](uint32_t key) { return take_back(graph->nodes[key]); };
  graph->lent.erase(std::remove_if(graph->lent.begin(), graph->lent.end(), taken), graph->lent.end());
  return PyLong_FromSize_t(graph->lent.size());
}

PyObject* walk_key(PyObject* self, PyObject* object) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  void* node = node_behind(object);
  const uint32_t key = node ? graph->keys.find(node) : kNoKey;
  if (key == kNoKey) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(key);
}

PyObject* walk_address(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromVoidPtr(graph->nodes[key]) : nullptr;
}

PyObject* walk_roots(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  return graph ? list_of(graph->roots) : nullptr;
}

PyObject* walk_edges(PyObject* self, PyObject* number) {
  const GraphUse graph(self);
  size_t key;
  if (!graph || !key_of(graph, number, key)) return nullptr;
  PyObject* list = PyList_New(0);
  for (uint32_t i = graph->first[key]; list && i < graph->first[key + 1]; i++) {
    PyObject* edge = graph->below[i] == kNoKey ? Py_BuildValue("(OI)", Py_None, graph->slots[i])
                                              : Py_BuildValue("(II)", graph->below[i], graph->slots[i]);
    if (!edge || PyList_Append(list, edge) != 0) Py_CLEAR(list);
    Py_XDECREF(edge);
  }
  return list;
}

PyObject* walk_producers(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(graph->nodes.size()));
  for (size_t key = 0; list && key < graph->nodes.size(); key++) {
    Py_ssize_t count = 0, at = 0;
    for (uint32_t i = graph->first[key]; i < graph->first[key + 1]; i++) count += graph->below[i] != kNoKey;
    PyObject* below = PyTuple_New(count);
    for (uint32_t i = graph->first[key]; below && i < graph->first[key + 1]; i++) {
      if (graph->below[i] == kNoKey) continue;
      PyObject* value = PyLong_FromUnsignedLong(graph->below[i]);
      if (value) PyTuple_SET_ITEM(below, at++, value);
      else Py_CLEAR(below);
    }
    if (below) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(key), below);
    else Py_CLEAR(list);
  }
  return list;
}

// into(bytes, one a node) -> [(producer, its slot, consumer, its slot)] of the edges that lead to marked nodes, where
// several lead to one slot.
PyObject* walk_into(PyObject* self, PyObject* wanted) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  if (!PyBytes_Check(wanted) || static_cast<size_t>(PyBytes_GET_SIZE(wanted)) != graph->nodes.size()) {
    PyErr_SetString(PyExc_ValueError, "one byte for each node");
    return nullptr;
  }
  const char* marks = PyBytes_AS_STRING(wanted);
  // By slot, as bits: those that an edge led to, and those that a second one did. Slots past 63 share the last bit.
  auto bit_of = [&](uint32_t edge) { return uint64_t{1} << std::min(graph->slots[edge], 63u); };
  std::vector<uint64_t> once(graph->nodes.size(), 0), again(graph->nodes.size(), 0);
  for (uint32_t i = 0; i < graph->below.size(); i++) {
    if (graph->below[i] == kNoKey) continue;
    again[graph->below[i]] |= once[graph->below[i]] & bit_of(i);
    once[graph->below[i]] |= bit_of(i);
  }
  PyObject* list = PyList_New(0);
  for (size_t key = 0; list && key < graph->nodes.size(); key++)
    for (uint32_t i = graph->first[key]; list && i < graph->first[key + 1]; i++) {
      const uint32_t below = graph->below[i];
      if (below == kNoKey || !marks[below] || !(again[below] & bit_of(i))) continue;
      PyObject* edge = Py_BuildValue("(IInI)", below, graph->slots[i], static_cast<Py_ssize_t>(key),
                                     i - graph->first[key]);
      if (!edge || PyList_Append(list, edge) != 0) Py_CLEAR(list);
      Py_XDECREF(edge);
    }
  return list;
}

// Keys of the nodes whose kind is marked in `wanted`, a bytes object with one byte a kind.
PyObject* walk_keys(PyObject* self, PyObject* wanted) {
  const GraphUse graph(self);
  if (!graph) return nullptr;
  if (!PyBytes_Check(wanted) || static_cast<size_t>(PyBytes_GET_SIZE(wanted)) != graph->types.size()) {
    PyErr_SetString(PyExc_ValueError, "one byte for each kind");
    return nullptr;
  }
  const char* marks = PyBytes_AS_STRING(wanted);
  std::vector<uint32_t> keys;
  for (size_t key = 0; key < graph->nodes.size(); key++)
    if (marks[graph->kinds[key]]) keys.push_back(static_cast<uint32_t>(key));
  return list_of(keys);
}

PyObject* walk_order(PyObject* self, PyObject*) {
  const GraphUse graph(self);
  return graph ? list_of(order_of(*graph)) : nullptr;
}

// ordinals(groups, order): by key, the how manyth of its group it is in the order of recording; accumulate nodes come
// last, as they execute. `groups`: by kind, a number that kinds of one name share.
PyObject* walk_ordinals(PyObject* self, PyObject* arguments) {
  const GraphUse graph(self);
  PyObject *groups, *order;
  if (!graph || !PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &groups, &PyList_Type, &order)) return nullptr;
  const size_t count = graph->nodes.size();
  std::vector<uint32_t> group(graph->types.size()), place(count, static_cast<uint32_t>(count)),
      ordinals(count), seen;
  if (static_cast<size_t>(PyList_GET_SIZE(groups)) != group.size()) {
    PyErr_SetString(PyExc_ValueError, "one group for each kind");
    return nullptr;
  }
  for (size_t i = 0; i < group.size(); i++) {
    group[i] = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyList_GET_ITEM(groups, static_cast<Py_ssize_t>(i))));
    if (PyErr_Occurred()) return nullptr;
    if (group[i] > 65535) group[i] = 65535;
    if (group[i] >= seen.size()) seen.resize(group[i] + 1, 0);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order); i++) {
    size_t key;
    if (!key_of(graph, PyList_GET_ITEM(order, i), key)) return nullptr;
    place[key] = static_cast<uint32_t>(i);
  }
  struct Entry {  // beside one another: to read them from the nodes at each comparison takes ten times as long
    uint64_t number;
    uint32_t place, key;
    bool operator<(const Entry& other) const {
      if (number != other.number) return number < other.number;
      if (number == UINT64_MAX && place != other.place) return place < other.place;
      return key < other.key;
    }
  };
  std::vector<Entry> entries(count);
  for (size_t key = 0; key < count; key++)
    entries[key] = {sequence_of(graph->nodes[key]), place[key], static_cast<uint32_t>(key)};
  if (!std::is_sorted(entries.rbegin(), entries.rend())) std::sort(entries.begin(), entries.end());
  else std::reverse(entries.begin(), entries.end());
  for (const Entry& entry : entries) ordinals[entry.key] = ++seen[group[graph->kinds[entry.key]]];
  return list_of(ordinals);
}

PyObject* walk_release(PyObject* self, PyObject*) {
  Walk* walk = reinterpret_cast<Walk*>(self);
  Graph* graph = walk->graph;
  walk->graph = nullptr;
  free_graph(graph);
  Py_RETURN_NONE;
}

PyMethodDef walk_methods[] = {
    {"types", guarded<walk_types>, METH_NOARGS, "() -> the Python types of the nodes, by kind"},
    {"kind", guarded<walk_kind>, METH_O, "(key) -> index of its type"},
    {"kinds", guarded<walk_kinds>, METH_NOARGS, "() -> the same of all nodes, by key"},
    {"number", guarded<walk_number>, METH_O, "(key) -> its sequence number"},
    {"stack", guarded<walk_stack>, METH_O, "(key) -> the number of its stack"},
    {"stacks", guarded<walk_stacks>, METH_NOARGS, "() -> the numbers of all stacks, by key"},
    {"places", guarded<walk_places>, METH_O, "(bytes, one a kind) -> keys of one node for each kind and stack"},
    {"node", guarded<walk_node>, METH_O, "(key) -> its Python object"},
    {"address", guarded<walk_address>, METH_O, "(key) -> what torch_address says of it"},
    {"key", guarded<walk_key>, METH_O, "(node) -> its key, or None"},
    {"roots", guarded<walk_roots>, METH_NOARGS, "() -> keys, one for each root that was given"},
    {"edges", guarded<walk_edges>, METH_O, "(key) -> [(key or None, slot)]"},
    {"producers", guarded<walk_producers>, METH_NOARGS, "() -> by key, the keys below"},
    {"into", guarded<walk_into>, METH_O, "(bytes, one a node) -> [(producer, its slot, consumer, its slot)]"},
    {"keys", guarded<walk_keys>, METH_O, "(bytes, one a kind) -> keys of the nodes of those kinds"},
    {"order", guarded<walk_order>, METH_NOARGS, "() -> keys in the order of execution"},
    {"ordinals", guarded<walk_ordinals>, METH_VARARGS, "(groups by kind, order) -> ordinals by key"},
    {"screen", guarded<walk_screen>, METH_O, "(bytes, one a kind) -> whether all gradients are looked at now"},
    {"unscreen", guarded<walk_unscreen>, METH_NOARGS, "no hook of `screen` is left in the nodes"},
    {"reclaim", guarded<walk_reclaim>, METH_NOARGS, "() -> nodes handed out whose Python object is in use"},
    {"hook", guarded<walk_hook>, METH_VARARGS, "(key, before, after) -> whether Python is called there"},
    {"hook_all", guarded<walk_hook_all>, METH_O, "(after) -> whether Python is called as every node begins (and ends)"},
    {"unhook", guarded<walk_unhook>, METH_NOARGS, "nothing is called any more"},
    {"running", guarded<walk_running>, METH_NOARGS, "() -> key of the node that runs on this thread, or None"},
    {"release", guarded<walk_release>, METH_NOARGS, "let go of the graph"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot walk_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(walk_free)},
                            {Py_sq_length, reinterpret_cast<void*>(walk_length)},
                            {Py_tp_methods, walk_methods},
                            {0, nullptr}};
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
#else
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT;
#endif
PyType_Spec walk_spec = {"adbg._native.Walk", sizeof(Walk), 0, kFlags, walk_slots};
PyTypeObject* walk_type = nullptr;

}  // namespace

PyObject* torch_walk(PyObject*, PyObject* roots) {
  if (!PyList_Check(roots)) {
    PyErr_SetString(PyExc_TypeError, "a list of nodes");
    return nullptr;
  }
  if (node_layout.edges < 0 || node_layout.edge_bytes != 16) Py_RETURN_NONE;
  if (!objects_ready()) Py_RETURN_NONE;
  Walk* walk = PyObject_New(Walk, walk_type);
  if (!walk) return nullptr;
  walk->graph = nullptr;
  try {
    walk->graph = new Graph;
    walk->graph->held = PyList_GetSlice(roots, 0, PyList_GET_SIZE(roots));
    if (walk->graph->held && follow(*walk->graph, walk->graph->held)) return reinterpret_cast<PyObject*>(walk);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  Py_DECREF(walk);
  return nullptr;
}

Graph* graph_in(PyObject* object) {
  if (walk_type && PyObject_TypeCheck(object, walk_type)) return graph_of(object);
  PyErr_SetString(PyExc_TypeError, "no walk");
  return nullptr;
}

int add_walk_type(PyObject* module) {
  if (!walk_type) walk_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&walk_spec));
  if (!walk_type) return -1;
  Py_INCREF(walk_type);
  if (PyModule_AddObject(module, "Walk", reinterpret_cast<PyObject*>(walk_type)) == 0) return 0;
  Py_DECREF(walk_type);
  return -1;
}

}  // namespace adbg
