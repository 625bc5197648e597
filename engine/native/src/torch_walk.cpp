#include "torch_walk.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "slots.h"
#include "torch_nodes.h"
#include "torch_screen.h"
#include "torch_stacks.h"

namespace adbg {
namespace {

const char* const kPython[] = {"libtorch_python", nullptr};
// const c10::intrusive_ptr<Node>& -> PyObject*: reads one word at the address that it is given.
using ToPython = PyObject* (*)(void* const*);
ToPython to_python = nullptr;

constexpr uint32_t kNone = UINT32_MAX;

// Open addressing from a node to its key.
class Keys {
 public:
  explicit Keys(size_t power = 10) : mask_((size_t{1} << power) - 1), places_(mask_ + 1) {}
  // The key of `node`; `next` is put in where it has none, and `added` says so.
  uint32_t put(void* node, uint32_t next, bool& added) {
    if (used_ * 2 > mask_) grow();
    Place& place = at(node);
    added = place.node == nullptr;
    if (added) {
      place = {node, next};
      used_++;
    }
    return place.key;
  }
  uint32_t find(void* node) const {
    const Place& place = const_cast<Keys*>(this)->at(node);
    return place.node ? place.key : kNone;
  }

 private:
  struct Place {
    void* node = nullptr;
    uint32_t key = 0;
  };
  Place& at(void* node) {
    size_t index = ((reinterpret_cast<uint64_t>(node) >> 4) * 0x9E3779B97F4A7C15ull >> 20) & mask_;
    while (places_[index].node && places_[index].node != node) index = (index + 1) & mask_;
    return places_[index];
  }
  void grow() {
    std::vector<Place> old(2 * (mask_ + 1));
    old.swap(places_);
    mask_ = places_.size() - 1;
    for (const Place& place : old)
      if (place.node) at(place.node) = place;
  }
  size_t mask_, used_ = 0;
  std::vector<Place> places_;
};

struct Graph : Walked {
  uint32_t find(void* node) const override { return keys.find(node); }
  std::vector<uint16_t> kinds;      // by key: index into `types`
  std::vector<uint32_t> first;      // by key: where its edges begin in `below`; one more at the end
  std::vector<uint32_t> below;      // keys, kNone for an edge that leads nowhere
  std::vector<uint32_t> slots;      // of `below`, beside it
  std::vector<uint32_t> roots;      // keys, one for each that was given
  std::vector<PyTypeObject*> types;  // strong
  Keys keys;
};

struct Walk {
  PyObject_HEAD
  PyObject* roots;  // list: what keeps the nodes alive
  Graph* graph;
};

// By vtable: the Python type of such nodes. Two kinds are told apart node by node: those of an autograd.Function, whose
// Python object is there already, and those whose C++ type torch has no Python type for.
struct Kind {
  PyTypeObject* type = nullptr;  // nullptr: ask each
};
std::unordered_map<void*, Kind> kinds_by_table;

bool is_python_node(void* table) {
  const char* name = nullptr;
  void* info = nullptr;
  return read_safely(static_cast<char*>(table) - 8, &info, 8) && read_safely(static_cast<char*>(info) + 8, &name, 8) &&
         strstr(name, "PyNode") != nullptr;
}

// Borrowed; nullptr with an exception set.
PyTypeObject* type_of(void* node, bool& each) {
  void* table = *static_cast<void**>(node);
  auto known = kinds_by_table.find(table);
  if (known != kinds_by_table.end() && known->second.type) {
    each = false;
    return known->second.type;
  }
  PyObject* object = object_of(node);
  if (!object) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  if (known == kinds_by_table.end()) {
    Kind kind;
    if (!is_python_node(table) && strcmp(type->tp_name, "CppFunction") != 0) {
      Py_INCREF(type);
      kind.type = type;
    }
    known = kinds_by_table.emplace(table, kind).first;
  }
  each = known->second.type == nullptr;
  Py_DECREF(object);  // its node, or the caller's, keeps it
  return type;
}

bool add_kind(Graph& graph, void* node, std::unordered_map<void*, uint16_t>& by_table) {
  void* table = *static_cast<void**>(node);
  auto known = by_table.find(table);
  if (known != by_table.end()) {
    graph.kinds.push_back(known->second);
    return true;
  }
  bool each;
  PyTypeObject* type = type_of(node, each);
  if (!type) return false;
  auto place = std::find(graph.types.begin(), graph.types.end(), type);
  const auto kind = static_cast<uint16_t>(place - graph.types.begin());
  if (place == graph.types.end()) {
    if (graph.types.size() >= 60000) {
      PyErr_SetString(PyExc_OverflowError, "too many kinds of nodes");
      return false;
    }
    Py_INCREF(type);
    graph.types.push_back(type);
  }
  if (!each) by_table.emplace(table, kind);
  graph.kinds.push_back(kind);
  return true;
}

bool follow(Graph& graph, PyObject* roots) {
  std::unordered_map<void*, uint16_t> by_table;
  bool added;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); i++) {
    void* node = node_behind(PyList_GET_ITEM(roots, i));
    if (!node) {
      PyErr_SetString(PyExc_TypeError, "no node");
      return false;
    }
    const uint32_t key = graph.keys.put(node, static_cast<uint32_t>(graph.nodes.size()), added);
    if (added) graph.nodes.push_back(node);
    graph.roots.push_back(key);
  }
  for (size_t key = 0; key < graph.nodes.size(); key++) {
    void* node = graph.nodes[key];
    if (!add_kind(graph, node, by_table)) return false;
    graph.first.push_back(static_cast<uint32_t>(graph.below.size()));
    char* const* bounds = &at_offset<char*>(node, node_layout.edges);
    for (char* edge = bounds[0]; edge < bounds[1]; edge += node_layout.edge_bytes) {
      void* following = *reinterpret_cast<void**>(edge);
      uint32_t to = kNone;
      if (following) {
        to = graph.keys.put(following, static_cast<uint32_t>(graph.nodes.size()), added);
        if (added) graph.nodes.push_back(following);
        if (graph.nodes.size() >= kNone - 1) {
          PyErr_NoMemory();
          return false;
        }
      }
      graph.below.push_back(to);
      graph.slots.push_back(*reinterpret_cast<uint32_t*>(edge + node_layout.edge_bytes - 8));
    }
  }
  graph.first.push_back(static_cast<uint32_t>(graph.below.size()));
  return true;
}

void free_graph(Graph* graph) {
  if (!graph) return;
  for (PyTypeObject* type : graph->types) Py_DECREF(type);
  delete graph;
}

void walk_free(PyObject* self) {
  Walk* walk = reinterpret_cast<Walk*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Graph* graph = walk->graph;
  walk->graph = nullptr;
  free_graph(graph);
  Py_CLEAR(walk->roots);
  type->tp_free(self);
  Py_DECREF(type);
}

// nullptr with an exception where the walk was released.
Graph* graph_of(PyObject* self) {
  Graph* graph = reinterpret_cast<Walk*>(self)->graph;
  if (!graph) PyErr_SetString(PyExc_ValueError, "this walk was released");
  return graph;
}

bool key_of(Graph* graph, PyObject* number, size_t& key) {
  key = PyLong_AsSize_t(number);
  if (PyErr_Occurred()) return false;
  if (key < graph->nodes.size()) return true;
  PyErr_SetString(PyExc_IndexError, "no such key");
  return false;
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
  Graph* graph = graph_of(self);
  return graph ? static_cast<Py_ssize_t>(graph->nodes.size()) : -1;
}

PyObject* walk_types(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  PyObject* list = graph ? PyList_New(0) : nullptr;
  for (size_t i = 0; list && i < graph->types.size(); i++)
    if (PyList_Append(list, reinterpret_cast<PyObject*>(graph->types[i])) != 0) Py_CLEAR(list);
  return list;
}

PyObject* walk_kind(PyObject* self, PyObject* number) {
  Graph* graph = graph_of(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromLong(graph->kinds[key]) : nullptr;
}

PyObject* walk_number(PyObject* self, PyObject* number) {
  Graph* graph = graph_of(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromUnsignedLongLong(sequence_of(graph->nodes[key])) : nullptr;
}

PyObject* walk_stack(PyObject* self, PyObject* number) {
  Graph* graph = graph_of(self);
  size_t key;
  return graph && key_of(graph, number, key) ? PyLong_FromUnsignedLong(stack_number(graph->nodes[key])) : nullptr;
}

PyObject* walk_stacks(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  std::vector<uint32_t> numbers;
  numbers.reserve(graph->nodes.size());
  for (void* node : graph->nodes) numbers.push_back(stack_number(node));
  return list_of(numbers);
}

PyObject* walk_kinds(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  return graph ? list_of(std::vector<uint32_t>(graph->kinds.begin(), graph->kinds.end())) : nullptr;
}

// places(bytes, one a kind) -> [key]: of each pair of kind and stack the first node; all nodes of marked kinds, and those
// without a stack.
PyObject* walk_places(PyObject* self, PyObject* apart) {
  Graph* graph = graph_of(self);
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
  Graph* graph = graph_of(self);
  size_t key;
  return graph && key_of(graph, number, key) ? object_of(graph->nodes[key]) : nullptr;
}

PyObject* walk_key(PyObject* self, PyObject* object) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  void* node = node_behind(object);
  const uint32_t key = node ? graph->keys.find(node) : kNone;
  if (key == kNone) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(key);
}

PyObject* walk_roots(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  return graph ? list_of(graph->roots) : nullptr;
}

PyObject* walk_edges(PyObject* self, PyObject* number) {
  Graph* graph = graph_of(self);
  size_t key;
  if (!graph || !key_of(graph, number, key)) return nullptr;
  PyObject* list = PyList_New(0);
  for (uint32_t i = graph->first[key]; list && i < graph->first[key + 1]; i++) {
    PyObject* edge = graph->below[i] == kNone ? Py_BuildValue("(OI)", Py_None, graph->slots[i])
                                              : Py_BuildValue("(II)", graph->below[i], graph->slots[i]);
    if (!edge || PyList_Append(list, edge) != 0) Py_CLEAR(list);
    Py_XDECREF(edge);
  }
  return list;
}

PyObject* walk_producers(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(graph->nodes.size()));
  for (size_t key = 0; list && key < graph->nodes.size(); key++) {
    Py_ssize_t count = 0, at = 0;
    for (uint32_t i = graph->first[key]; i < graph->first[key + 1]; i++) count += graph->below[i] != kNone;
    PyObject* below = PyTuple_New(count);
    for (uint32_t i = graph->first[key]; below && i < graph->first[key + 1]; i++) {
      if (graph->below[i] == kNone) continue;
      PyObject* value = PyLong_FromUnsignedLong(graph->below[i]);
      if (value) PyTuple_SET_ITEM(below, at++, value);
      else Py_CLEAR(below);
    }
    if (below) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(key), below);
    else Py_CLEAR(list);
  }
  return list;
}

// into(bytes, one a node) -> [(producer, its slot, consumer, its slot)] of the edges that lead to marked nodes.
PyObject* walk_into(PyObject* self, PyObject* wanted) {
  Graph* graph = graph_of(self);
  if (!graph) return nullptr;
  if (!PyBytes_Check(wanted) || static_cast<size_t>(PyBytes_GET_SIZE(wanted)) != graph->nodes.size()) {
    PyErr_SetString(PyExc_ValueError, "one byte for each node");
    return nullptr;
  }
  const char* marks = PyBytes_AS_STRING(wanted);
  PyObject* list = PyList_New(0);
  for (size_t key = 0; list && key < graph->nodes.size(); key++)
    for (uint32_t i = graph->first[key]; list && i < graph->first[key + 1]; i++) {
      const uint32_t below = graph->below[i];
      if (below == kNone || !marks[below]) continue;
      PyObject* edge = Py_BuildValue("(IInI)", below, graph->slots[i], static_cast<Py_ssize_t>(key),
                                     i - graph->first[key]);
      if (!edge || PyList_Append(list, edge) != 0) Py_CLEAR(list);
      Py_XDECREF(edge);
    }
  return list;
}

// Keys of the nodes whose kind is marked in `wanted`, a bytes object with one byte a kind.
PyObject* walk_keys(PyObject* self, PyObject* wanted) {
  Graph* graph = graph_of(self);
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

// The order in which the engine runs the graph: torch's own queue is a std::priority_queue by number too, so that equal
// numbers come out of the library's heap in the same order (see backends/torch/order.py).
std::vector<uint32_t> order_of(const Graph& graph) {
  const size_t count = graph.nodes.size();
  std::vector<uint32_t> waiting(count, 0), order;
  for (uint32_t below : graph.below)
    if (below != kNone) waiting[below]++;
  struct Entry {
    uint64_t number;
    uint32_t key;
    bool operator<(const Entry& other) const { return number < other.number; }
  };
  std::priority_queue<Entry> ready;
  auto push = [&](uint32_t key) { ready.push({sequence_of(graph.nodes[key]), key}); };
  if (graph.roots.size() > 1) {  // a GraphRoot node stands in front of them, its edges count
    for (uint32_t key : graph.roots) waiting[key]++;
    for (uint32_t key : graph.roots)
      if (--waiting[key] == 0) push(key);
  } else if (!graph.roots.empty()) {
    push(graph.roots[0]);
  }
  order.reserve(count);
  while (!ready.empty()) {
    const uint32_t key = ready.top().key;
    ready.pop();
    order.push_back(key);
    for (uint32_t i = graph.first[key]; i < graph.first[key + 1]; i++) {
      const uint32_t below = graph.below[i];
      if (below != kNone && --waiting[below] == 0) push(below);
    }
  }
  return order;
}

PyObject* walk_order(PyObject* self, PyObject*) {
  Graph* graph = graph_of(self);
  return graph ? list_of(order_of(*graph)) : nullptr;
}

// ordinals(groups, order): by key, the how manyth of its group it is in the order of recording; accumulate nodes come
// last, as they execute. `groups`: by kind, a number that kinds of one name share.
PyObject* walk_ordinals(PyObject* self, PyObject* arguments) {
  Graph* graph = graph_of(self);
  PyObject *groups, *order;
  if (!graph || !PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &groups, &PyList_Type, &order)) return nullptr;
  const size_t count = graph->nodes.size();
  std::vector<uint32_t> group(graph->types.size()), place(count, static_cast<uint32_t>(count)), keys(count),
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
  for (size_t key = 0; key < count; key++) keys[key] = static_cast<uint32_t>(key);
  auto before = [&](uint32_t one, uint32_t other) {
    const uint64_t first = sequence_of(graph->nodes[one]), second = sequence_of(graph->nodes[other]);
    if (first != second) return first < second;
    if (first == UINT64_MAX && place[one] != place[other]) return place[one] < place[other];
    return one < other;
  };
  std::sort(keys.begin(), keys.end(), before);
  for (uint32_t key : keys) ordinals[key] = ++seen[group[graph->kinds[key]]];
  return list_of(ordinals);
}

// screen(bytes, one a kind): have the gradients of all nodes looked at. What leaves a node is looked at once, and what
// comes in where it may be another by then: where several are summed, at the roots, at the leaves, at the nodes of marked
// kinds (whose backward is Python) and at those that they give to. False where it cannot be done.
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
      if (below == kNone) continue;
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

PyObject* walk_release(PyObject* self, PyObject*) {
  Walk* walk = reinterpret_cast<Walk*>(self);
  Graph* graph = walk->graph;
  walk->graph = nullptr;
  free_graph(graph);
  Py_CLEAR(walk->roots);
  Py_RETURN_NONE;
}

PyMethodDef walk_methods[] = {
    {"types", walk_types, METH_NOARGS, "() -> the Python types of the nodes, by kind"},
    {"kind", walk_kind, METH_O, "(key) -> index of its type"},
    {"kinds", walk_kinds, METH_NOARGS, "() -> the same of all nodes, by key"},
    {"number", walk_number, METH_O, "(key) -> its sequence number"},
    {"stack", walk_stack, METH_O, "(key) -> the number of its stack"},
    {"stacks", walk_stacks, METH_NOARGS, "() -> the numbers of all stacks, by key"},
    {"places", walk_places, METH_O, "(bytes, one a kind) -> keys of one node for each kind and stack"},
    {"node", walk_node, METH_O, "(key) -> its Python object"},
    {"key", walk_key, METH_O, "(node) -> its key, or None"},
    {"roots", walk_roots, METH_NOARGS, "() -> keys, one for each root that was given"},
    {"edges", walk_edges, METH_O, "(key) -> [(key or None, slot)]"},
    {"producers", walk_producers, METH_NOARGS, "() -> by key, the keys below"},
    {"into", walk_into, METH_O, "(bytes, one a node) -> [(producer, its slot, consumer, its slot)]"},
    {"keys", walk_keys, METH_O, "(bytes, one a kind) -> keys of the nodes of those kinds"},
    {"order", walk_order, METH_NOARGS, "() -> keys in the order of execution"},
    {"ordinals", walk_ordinals, METH_VARARGS, "(groups by kind, order) -> ordinals by key"},
    {"screen", walk_screen, METH_O, "(bytes, one a kind) -> whether all gradients are looked at now"},
    {"unscreen", walk_unscreen, METH_NOARGS, "no hook of `screen` is left in the nodes"},
    {"release", walk_release, METH_NOARGS, "let go of the graph"},
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

PyObject* object_of(void* node) {
  if (!to_python) {
    PyErr_SetString(PyExc_LookupError, "torch does not tell the Python object of a node");
    return nullptr;
  }
  PyObject* object = to_python(&node);
  if (!object && !PyErr_Occurred()) PyErr_SetString(PyExc_LookupError, "the node has no Python object");
  return object;
}

PyObject* torch_walk(PyObject*, PyObject* roots) {
  if (!PyList_Check(roots)) {
    PyErr_SetString(PyExc_TypeError, "a list of nodes");
    return nullptr;
  }
  if (node_layout.edges < 0 || node_layout.edge_bytes != 16) Py_RETURN_NONE;
  if (!to_python)
    to_python = reinterpret_cast<ToPython>(find_symbol(
        "_ZN5torch8autograd18functionToPyObjectERKN3c1013intrusive_ptrINS0_4NodeENS1_6detail34intrusive_target_default_"
        "null_typeIS3_EEEE",
        kPython));
  if (!to_python) Py_RETURN_NONE;
  Walk* walk = PyObject_New(Walk, walk_type);
  if (!walk) return nullptr;
  walk->roots = PyList_GetSlice(roots, 0, PyList_GET_SIZE(roots));
  walk->graph = nullptr;
  try {
    walk->graph = new Graph;
    if (walk->roots && follow(*walk->graph, walk->roots)) return reinterpret_cast<PyObject*>(walk);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  Py_DECREF(walk);
  return nullptr;
}

const Walked* walked_of(PyObject* walk) {
  if (walk_type && PyObject_TypeCheck(walk, walk_type)) return graph_of(walk);
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
