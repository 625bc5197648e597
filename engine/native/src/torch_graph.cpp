#include "torch_graph.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "torch_nodes.h"
#include "torch_objects.h"
#include "torch_stacks.h"

namespace adbg {
namespace {

// By vtable: the Python type of such nodes. Two kinds are told apart node by node: those of an autograd.Function, whose
// Python object is there already, and those whose C++ type torch has no Python type for. They have none here.
std::unordered_map<void*, PyTypeObject*> types_by_table;

bool is_python_node(void* table) {
  const char* name = nullptr;
  void* info = nullptr;
  return read_safely(static_cast<char*>(table) - 8, &info, 8) && read_safely(static_cast<char*>(info) + 8, &name, 8) &&
         strstr(name, "PyNode") != nullptr;
}

// The class of an autograd.Function is the program's, and may go: its number is never given to another one that comes to
// lie there.
struct PythonType {
  PyObject* reference;  // weak: no class is kept, for it may keep tensors
  uint64_t number;
};
std::unordered_map<PyTypeObject*, PythonType> python_types;
uint64_t python_numbers = 0;
constexpr size_t kMostPythonTypes = 4096;

// Of a node of this kind; nullptr, without an exception: it cannot be told. Valid until the next one is asked for.
PythonType* python_type(void* node) {
  PyObject* object = object_of(node);  // it is there as long as the node
  PyObject* type = object ? reinterpret_cast<PyObject*>(Py_TYPE(object)) : nullptr;
  PyObject* reference = type ? PyWeakref_NewRef(type, nullptr) : nullptr;
  Py_XDECREF(object);
  if (!reference) {
    PyErr_Clear();
    return nullptr;
  }
  auto known = python_types.find(reinterpret_cast<PyTypeObject*>(type));
  if (known != python_types.end() && PyWeakref_GetObject(known->second.reference) == type) {
    Py_DECREF(reference);
    return &known->second;
  }
  if (known == python_types.end() && python_types.size() >= kMostPythonTypes) {
    for (auto& each : python_types) Py_DECREF(each.second.reference);
    python_types.clear();
  }
  PythonType& fresh = python_types[reinterpret_cast<PyTypeObject*>(type)];
  Py_XDECREF(fresh.reference);
  fresh = {reference, ++python_numbers};
  return &fresh;
}

// Borrowed; nullptr with an exception set. `each`: other nodes of this vtable may have another type.
PyTypeObject* type_of(void* node, bool& each) {
  void* table = *static_cast<void**>(node);
  auto known = types_by_table.find(table);
  if (known != types_by_table.end() && known->second) {
    each = false;
    return known->second;
  }
  PyObject* object = object_of(node);
  if (!object) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  if (known == types_by_table.end()) {
    const bool apart = is_python_node(table) || strcmp(type->tp_name, "CppFunction") == 0;
    if (!apart) Py_INCREF(type);
    known = types_by_table.emplace(table, apart ? nullptr : type).first;
  }
  each = known->second == nullptr;
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

void* root_at(PyObject* roots, Py_ssize_t i) {
  void* node = node_behind(PyList_GET_ITEM(roots, i));
  if (!node) PyErr_SetString(PyExc_TypeError, "no node");
  return node;
}

// ---- surveys

// What a survey needs, kept between two: no allocation for a graph no larger than the last one.
struct Scratch {
  std::vector<void*> nodes;
  Keys keys;
  struct Type {  // of the last vtable that had this place
    void* table = nullptr;
    uint64_t type = 0;
    uint32_t seen = 0;  // in which survey it counted among the types
  } types[256];
  uint32_t surveys = 0;
  bool busy = false;
};
Scratch scratch;
constexpr size_t kMostKept = 1 << 20;  // nodes

uint64_t mixed(uint64_t value) {  // splitmix64
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

// False: a node tells its type by its Python object alone, or an exception is set.
bool follow(void* const* roots, size_t count, Survey& found, bool exactly) {
  std::vector<void*>& nodes = scratch.nodes;
  Keys& keys = scratch.keys;
  bool added;
  scratch.surveys++;
  for (size_t i = 0; i < count; i++) {
    void* node = roots[i];
    keys.put(node, static_cast<uint32_t>(nodes.size()), added);
    if (added) nodes.push_back(node);
    if (sequence_of(node) != UINT64_MAX) found.last = std::max(found.last, static_cast<int64_t>(sequence_of(node)));
  }
  const size_t distinct = nodes.size();
  Alike alike(nodes.empty() ? nullptr : nodes[0]);
  for (size_t i = 0; i < nodes.size(); i++) {
    void* node = nodes[i];
    void* table = *static_cast<void**>(node);
    Scratch::Type& type = scratch.types[(reinterpret_cast<uint64_t>(table) >> 4) * 0x9E3779B97F4A7C15ull >> 56];
    if (type.table != table) {
      bool each;
      PyTypeObject* known = type_of(node, each);
      if (!known || each) return false;
      type = {table, mixed(reinterpret_cast<uint64_t>(known)), 0};
    }
    if (type.seen != scratch.surveys) {
      type.seen = scratch.surveys;
      // Twice where two vtables take one place in turn, or one type has two: another number, never a wrong set.
      found.types += type.type;
    }
    // An accumulate node is made anew for each graph, its parameter stays.
    const uint64_t leaf = sequence_of(node) == UINT64_MAX ? at_offset<uint64_t>(node, node_layout.leaf) : 0;
    const uint64_t stack = stack_number(node);
    const uint64_t made = mixed(type.type + stack) + mixed(leaf);
    if (exactly) alike.node(node, 0, stack);
    found.one += mixed(made);
    found.other += mixed(made + 0x9E3779B97F4A7C15ull);
    char* const* bounds = &at_offset<char*>(node, node_layout.edges);
    for (char* edge = bounds[0]; edge < bounds[1]; edge += node_layout.edge_bytes) {
      void* following = *reinterpret_cast<void**>(edge);
      uint32_t key = kNoKey;
      if (following) {
        key = keys.put(following, static_cast<uint32_t>(nodes.size()), added);
        if (added) nodes.push_back(following);
      }
      if (exactly) alike.edge(key, *reinterpret_cast<uint32_t*>(edge + node_layout.edge_bytes - 8));
    }
  }
  found.nodes = nodes.size();
  if (exactly) found.alike = alike.result(nodes.size(), distinct);
  return true;
}

}  // namespace

Alike::Alike(void* first) : first_(first ? sequence_of(first) : 0) {}

void Alike::node(void* node, uint64_t python, uint64_t stack) {
  const uint64_t number = sequence_of(node);
  mix(*static_cast<uint64_t*>(node));  // its type, by the table of its functions
  mix(python);
  mix(number == UINT64_MAX ? at_offset<uint64_t>(node, node_layout.leaf) : first_ - number);
  mix(stack);
}

bool python_number(void* node, uint64_t& number) {
  number = 0;
  auto known = types_by_table.find(*static_cast<void**>(node));
  if (known == types_by_table.end()) return false;
  if (known->second || !is_python_node(known->first)) return true;
  const PythonType* type = python_type(node);
  if (type) number = type->number;
  return type;
}

Surveyed survey(void* const* roots, size_t count, Survey& found, Keys* keys) {
  // Making a Python object may run a collection, and a finalizer of the program's may run a backward in it.
  if (node_layout.leaf < 0 || node_layout.edge_bytes != 16 || !objects_ready() || scratch.busy) return Surveyed::unknown;
  bool done = false;
  scratch.busy = true;
  try {
    done = follow(roots, count, found, keys != nullptr);
    if (done && keys) std::swap(*keys, scratch.keys);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  if (scratch.nodes.size() > kMostKept) {
    scratch.nodes = {};
    scratch.keys = Keys();
  }
  scratch.nodes.clear();
  scratch.keys.clear();
  scratch.busy = false;
  return done ? Surveyed::done : PyErr_Occurred() ? Surveyed::failed : Surveyed::unknown;
}

PyObject* torch_survey(PyObject*, PyObject* roots) {
  if (!PyList_Check(roots)) {
    PyErr_SetString(PyExc_TypeError, "a list of nodes");
    return nullptr;
  }
  std::vector<void*> nodes;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); i++) {
    void* node = root_at(roots, i);
    if (!node) return nullptr;
    nodes.push_back(node);
  }
  Survey found;
  switch (survey(nodes.data(), nodes.size(), found)) {
    case Surveyed::failed: return nullptr;
    case Surveyed::unknown: Py_RETURN_NONE;
    case Surveyed::done: break;
  }
  return Py_BuildValue("(nKKKL)", static_cast<Py_ssize_t>(found.nodes), found.types, found.one, found.other,
                       static_cast<long long>(found.last));
}

bool follow(Graph& graph, PyObject* roots) {
  std::unordered_map<void*, uint16_t> by_table;
  bool added;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); i++) {
    void* node = root_at(roots, i);
    if (!node) return false;
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
      uint32_t to = kNoKey;
      if (following) {
        to = graph.keys.put(following, static_cast<uint32_t>(graph.nodes.size()), added);
        if (added) graph.nodes.push_back(following);
        if (graph.nodes.size() >= kNoKey - 1) {
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
  graph->released = true;
  if (graph->users) return;
  for (PyTypeObject* type : graph->types) Py_DECREF(type);
  PyObject* roots = graph->held;
  delete graph;
  Py_XDECREF(roots);
}

// torch's own queue is a std::priority_queue by number too, so that equal numbers come out of the library's heap in the
// same order (see backends/torch/order.py).
std::vector<uint32_t> order_of(const Graph& graph) {
  const size_t count = graph.nodes.size();
  std::vector<uint32_t> waiting(count, 0), order;
  for (uint32_t below : graph.below)
    if (below != kNoKey) waiting[below]++;
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
      if (below != kNoKey && --waiting[below] == 0) push(below);
    }
  }
  return order;
}

}  // namespace adbg
