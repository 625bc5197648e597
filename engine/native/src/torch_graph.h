// The graph below some roots of torch's, in plain vectors. Under the GIL, where nothing else is said.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace adbg {

constexpr uint32_t kNoKey = UINT32_MAX;

// Open addressing from a node to its key. Emptied without a pass over its places.
class Keys {
 public:
  explicit Keys(size_t power = 10) : mask_((size_t{1} << power) - 1), places_(mask_ + 1) {}
  // The key of `node`; `next` is put in where it has none, and `added` says so.
  uint32_t put(void* node, uint32_t next, bool& added) {
    if (used_ * 2 > mask_) grow();
    Place& place = places_[at(node)];
    added = place.age != age_;
    if (added) {
      place = {node, next, age_};
      used_++;
    }
    return place.key;
  }
  uint32_t find(void* node) const {
    const Place& place = places_[at(node)];
    return place.age == age_ ? place.key : kNoKey;
  }
  void clear() {
    used_ = 0;
    if (++age_ == 0) places_.assign(mask_ + 1, Place{}), age_ = 1;
  }

 private:
  struct Place {
    void* node = nullptr;
    uint32_t key = 0;
    uint32_t age = 0;  // another than the present one: nothing is here
  };
  size_t at(void* node) const {
    size_t index = ((reinterpret_cast<uint64_t>(node) >> 4) * 0x9E3779B97F4A7C15ull >> 20) & mask_;
    while (places_[index].age == age_ && places_[index].node != node) index = (index + 1) & mask_;
    return index;
  }
  void grow() {
    std::vector<Place> old(2 * (mask_ + 1));
    old.swap(places_);
    mask_ = places_.size() - 1;
    for (const Place& place : old)
      if (place.age == age_) places_[at(place.node)] = place;
  }
  size_t mask_, used_ = 0;
  uint32_t age_ = 1;
  std::vector<Place> places_;
};

struct Graph {
  std::vector<void*> nodes;          // by key, in breadth-first order
  std::vector<uint16_t> kinds;       // by key: index into `types`
  std::vector<uint32_t> first;       // by key: where its edges begin in `below`; one more at the end
  std::vector<uint32_t> below;       // keys, kNoKey for an edge that leads nowhere
  std::vector<uint32_t> slots;       // of `below`, beside it
  std::vector<uint32_t> roots;       // keys, one for each that was given
  std::vector<PyTypeObject*> types;  // strong
  std::vector<uint32_t> lent;        // keys of nodes whose Python object was made for this walk
  std::vector<uint32_t> hooked;      // keys of nodes that call Python
  bool all_hooked = false;
  Keys keys;
  PyObject* held = nullptr;  // list of the roots: what keeps the nodes alive
  int users = 0;             // functions that read it now; the last of them frees it where it was released meanwhile
  bool released = false;
};

// Walks from these nodes. False with an exception set.
bool follow(Graph& graph, PyObject* roots);
void free_graph(Graph* graph);

// Keys in the order in which the engine runs the graph.
std::vector<uint32_t> order_of(const Graph& graph);

// A number for all that can be told of a graph but shapes: types, leaves, stacks, the order in which nodes were made, and
// edges. Fed node by node in breadth-first order, each node's edges behind it.
class Alike {
 public:
  explicit Alike(void* first);
  // `python`: as `python_number` tells it.
  void node(void* node, uint64_t python, uint64_t stack);
  // `key`: kNoKey where it leads nowhere.
  void edge(uint32_t key, uint32_t slot) {
    mix(key);
    mix(slot);
  }
  uint64_t result(size_t nodes, size_t roots) {
    mix(nodes);
    mix(roots);
    return hash_;
  }

 private:
  void mix(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 29;
  }
  uint64_t hash_ = 1, first_;
};

// A number for the class of an autograd.Function that this node of a walked graph is of, never given to another one; 0
// where it is no such node. False where it cannot be told.
bool python_number(void* node, uint64_t& number);

// What is said of a graph: sums over types, stacks and accumulate nodes, equal for graphs that are alike.
struct Survey {
  size_t nodes = 0;
  uint64_t types = 0;           // the set of their types
  uint64_t one = 0, other = 0;  // all that makes two graphs alike
  int64_t last = -1;            // the highest number of a root; -1: all are accumulate nodes
  uint64_t alike = 0;           // see above, where it was asked for
};
enum class Surveyed { done, unknown, failed };  // failed: with an exception set

// Of the graph below these nodes, which must be alive meanwhile. Unknown where a node tells its type by its Python object
// alone. Making one may run a collection, and in it code of the program's. `keys`: `alike` is told too, and it gets the
// keys of the nodes, as `Graph` has them.
Surveyed survey(void* const* roots, size_t count, Survey& found, Keys* keys = nullptr);

// torch_survey(roots) -> (nodes, types, one, other, last), or None where it is not known.
PyObject* torch_survey(PyObject*, PyObject* roots);

}  // namespace adbg
