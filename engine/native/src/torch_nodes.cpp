#include "torch_nodes.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace adbg {

NodeLayout node_layout;

namespace {

constexpr int kMostBytes = 512;  // of a node that are looked at
constexpr int kNone = -1;        // a type whose objects do not wrap a node where it was looked for

// Where objects of a type have their node. Types are kept: an address is not used again. Under the GIL.
std::unordered_map<PyTypeObject*, int> wrapped_at;

bool told_sequence(PyObject* object, uint64_t& number) {
  number = 0;
  PyObject* told = PyObject_CallMethod(object, "_sequence_nr", nullptr);
  if (told) number = PyLong_AsUnsignedLongLong(told);
  Py_XDECREF(told);
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

template <class T>
bool read_value(const void* base, int offset, T& value) {
  // A number, as `base` may be any: pointers must not wrap.
  const uintptr_t at = reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(static_cast<intptr_t>(offset));
  return read_safely(reinterpret_cast<const void*>(at), &value, sizeof value);
}

void* wrapped_by(PyObject* object, int at) {
  void* node = nullptr;
  if (Py_TYPE(object)->tp_basicsize < at + 8 || !read_value(object, at, node)) return nullptr;
  return reinterpret_cast<uintptr_t>(node) % 8 ? nullptr : node;
}

// A C++ object of torch's: its first word leads to a table with the name of its type.
bool has_type_name(void* node) {
  void **table, *info;
  const char* name;
  char begin[4];
  return read_value(node, 0, table) && read_value(table, -8, info) && read_value(info, 8, name) &&
         read_value(name, 0, begin) && ((begin[0] >= '1' && begin[0] <= '9') || begin[0] == 'N');
}

bool passes(PyObject* object, int at, uint64_t told) {
  void* node = wrapped_by(object, at);
  uint64_t number, thread;
  return node && has_type_name(node) && read_value(node, node_layout.sequence, number) && number == told &&
         read_value(node, node_layout.thread, thread) && thread < (1u << 30);
}

int find_wrapped(PyObject* object) {
  uint64_t told;
  if (!told_sequence(object, told)) return kNone;
  if (passes(object, node_layout.wrapped, told)) return node_layout.wrapped;
  for (int at = 16; at + 8 <= Py_TYPE(object)->tp_basicsize; at += 8)  // of an autograd.Function's
    if (passes(object, at, told)) return at;
  return kNone;
}

}  // namespace

void* node_behind(PyObject* object) {
  if (node_layout.sequence < 0) return nullptr;
  PyTypeObject* type = Py_TYPE(object);
  auto known = wrapped_at.find(type);
  if (known == wrapped_at.end()) {
    if (wrapped_at.size() >= 8192) return nullptr;
    const int at = find_wrapped(object);
    Py_INCREF(type);
    known = wrapped_at.emplace(type, at).first;
  }
  if (known->second == kNone) return nullptr;
  if (known->second == node_layout.wrapped) return at_offset<void*>(object, known->second);
  uint64_t told;  // the object of an autograd.Function outlives its node, and says so when it is asked
  return told_sequence(object, told) && passes(object, known->second, told) ? wrapped_by(object, known->second) : nullptr;
}

PyObject* torch_layout(PyObject*, PyObject* samples) {
  if (!PyList_Check(samples) || PyList_GET_SIZE(samples) < 4) {
    PyErr_SetString(PyExc_ValueError, "at least four (node, thread id)");
    return nullptr;
  }
  struct Sample {
    std::vector<uint64_t> words;
    uint64_t sequence, thread;
  };
  std::vector<Sample> known;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples); i++) {
    PyObject* object;
    unsigned long long thread;
    Sample sample;
    PyObject* pair = PyList_GET_ITEM(samples, i);
    if (!PyTuple_Check(pair)) {
      PyErr_SetString(PyExc_TypeError, "(node, thread id)");
      return nullptr;
    }
    if (!PyArg_ParseTuple(pair, "OK", &object, &thread)) return nullptr;
    void* node = wrapped_by(object, node_layout.wrapped);
    sample.words.resize(kMostBytes / 8);
    // The smallest node is larger than 160 bytes; what follows it is read as well as it can be.
    size_t bytes = kMostBytes;
    while (bytes >= 128 && node && !read_safely(node, sample.words.data(), bytes)) bytes /= 2;
    if (!node || bytes < 128 || !told_sequence(object, sample.sequence)) Py_RETURN_FALSE;
    sample.words.resize(bytes / 8);
    sample.thread = thread;
    known.push_back(sample);
  }
  auto find = [&](auto value) {
    for (int word = 1; word < 16; word++)
      if (std::all_of(known.begin(), known.end(), [&](const Sample& s) { return s.words[word] == value(s); }))
        return word * 8;
    return -1;
  };
  auto differs = [&](auto value) {  // a constant would be found anywhere
    return std::any_of(known.begin(), known.end(), [&](const Sample& s) { return value(s) != value(known[0]); });
  };
  auto sequence = [](const Sample& s) { return s.sequence; };
  auto thread = [](const Sample& s) { return s.thread; };
  if (!differs(sequence) || !differs(thread)) Py_RETURN_FALSE;
  NodeLayout found = node_layout;
  found.sequence = find(sequence);
  found.thread = find(thread);
  if (found.sequence < 0 || found.thread < 0 || found.sequence == found.thread) Py_RETURN_FALSE;
  node_layout = found;
  Py_RETURN_TRUE;
}

PyObject* torch_edges(PyObject*, PyObject* nodes) {
  if (!PyList_Check(nodes)) {
    PyErr_SetString(PyExc_TypeError, "a list of nodes");
    return nullptr;
  }
  struct Known {
    void* node;
    std::vector<std::pair<void*, uint32_t>> edges;
  };
  std::vector<Known> known;
  size_t edges = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); i++) {
    PyObject* object = PyList_GET_ITEM(nodes, i);
    Known each{node_behind(object), {}};
    PyObject* following = each.node ? PyObject_GetAttrString(object, "next_functions") : nullptr;
    bool good = following && PyTuple_Check(following);
    for (Py_ssize_t j = 0; good && j < PyTuple_GET_SIZE(following); j++) {
      PyObject* below;
      unsigned int slot;
      good = PyTuple_Check(PyTuple_GET_ITEM(following, j)) && PyArg_ParseTuple(PyTuple_GET_ITEM(following, j), "OI", &below, &slot);
      void* address = good && below != Py_None ? node_behind(below) : nullptr;
      good = good && (below == Py_None || address);
      each.edges.emplace_back(address, slot);
      edges += address != nullptr;
    }
    Py_XDECREF(following);
    PyErr_Clear();
    if (good) known.push_back(each);
  }
  if (edges < 2) Py_RETURN_FALSE;
  for (int bytes : {16, 24})
    for (int offset = 48; offset < 256; offset += 8) {
      auto fits = [&](const Known& each) {
        char* bounds[3];
        if (!read_safely(static_cast<char*>(each.node) + offset, bounds, sizeof bounds)) return false;
        const size_t size = static_cast<size_t>(bounds[1] - bounds[0]);
        if (bounds[1] < bounds[0] || bounds[2] < bounds[1] || size != each.edges.size() * static_cast<size_t>(bytes))
          return false;
        std::vector<char> memory(size);
        if (size && !read_safely(bounds[0], memory.data(), size)) return false;
        for (size_t i = 0; i < each.edges.size(); i++) {
          const char* edge = memory.data() + i * static_cast<size_t>(bytes);
          if (*reinterpret_cast<void* const*>(edge) != each.edges[i].first ||
              *reinterpret_cast<const uint32_t*>(edge + bytes - 8) != each.edges[i].second)
            return false;
        }
        return true;
      };
      if (!std::all_of(known.begin(), known.end(), fits)) continue;
      node_layout.edges = offset;
      node_layout.edge_bytes = bytes;
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

PyObject* torch_leaves(PyObject*, PyObject* pairs) {
  if (!PyList_Check(pairs)) {
    PyErr_SetString(PyExc_TypeError, "a list of (node, tensor)");
    return nullptr;
  }
  if (node_layout.leaf >= 0) Py_RETURN_TRUE;
  std::vector<std::pair<void*, PyObject*>> known;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); i++) {
    PyObject *node, *tensor, *pair = PyList_GET_ITEM(pairs, i);
    if (!PyTuple_Check(pair)) {
      PyErr_SetString(PyExc_TypeError, "(node, tensor)");
      return nullptr;
    }
    if (!PyArg_ParseTuple(pair, "OO", &node, &tensor)) return nullptr;
    if (void* behind = node_behind(node)) known.emplace_back(behind, tensor);
  }
  if (known.size() < 2) Py_RETURN_FALSE;
  for (int in_object : {16, 24})
    for (int at = 128; at < kMostBytes; at += 8) {
      std::vector<void*> leaves;
      for (const auto& [node, tensor] : known) {
        void *impl = nullptr, *word = nullptr;
        if (Py_TYPE(tensor)->tp_basicsize < in_object + 8 || !read_value(tensor, in_object, impl) || !impl ||
            !read_value(node, at, word) || word != impl || std::count(leaves.begin(), leaves.end(), impl))
          break;
        leaves.push_back(impl);
      }
      if (leaves.size() < known.size()) continue;
      node_layout.leaf = at;
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

}  // namespace adbg
