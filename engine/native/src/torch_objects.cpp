#include "torch_objects.h"

#include <atomic>
#include <cstdint>

#include "slots.h"
#include "torch_nodes.h"

namespace adbg {
namespace {

const char* const kPython[] = {"libtorch_python", nullptr};
// const c10::intrusive_ptr<Node>& -> PyObject*: reads one word at the address that it is given.
using ToPython = PyObject* (*)(void* const*);
ToPython to_python = nullptr;

// c10::intrusive_ptr_target: behind the vtable, strong references in the low half of a word, above it the weak ones,
// and a bit which says that there is a Python object. The object has one strong reference, and one of its own
// references belongs to the others together.
constexpr int kCount = 8;
constexpr uint64_t kHasObject = uint64_t{1} << 63;
constexpr uint64_t kOneWeak = uint64_t{1} << 32;
bool returnable = false;

std::atomic<uint64_t>& count_of(void* node) { return at_offset<std::atomic<uint64_t>>(node, kCount); }
std::atomic<PyObject*>& slot_of(void* node) {  // behind the edges
  return at_offset<std::atomic<PyObject*>>(node, node_layout.edges + 24);
}

bool tells(PyObject* object, uint64_t& number) {
  PyObject* told = PyObject_CallMethod(object, "_sequence_nr", nullptr);
  number = told ? PyLong_AsUnsignedLongLong(told) : 0;
  Py_XDECREF(told);
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

// On a node of our own, which the object that made it keeps alive: another object, taken back twice.
bool tried(PyObject* maker) {
  void* node = node_behind(maker);
  uint64_t word = 0, before = 0, after = 1;
  PyObject* held = maker;
  if (!node || !read_safely(static_cast<char*>(node) + kCount, &word, 8) || word != (kOneWeak | 1) ||
      !read_safely(static_cast<char*>(node) + node_layout.edges + 24, &held, 8) || held || !tells(maker, before))
    return false;
  for (int i = 0; i < 2; i++) {
    PyObject* object = object_of(node);
    if (!object) return false;
    const bool right = object != maker && slot_of(node).load() == object && Py_REFCNT(object) == 2 &&
                       count_of(node).load() == (kHasObject | kOneWeak | 2) && tells(object, after) && before == after;
    if (!right || take_back(node)) {  // not while it is referred to
      Py_DECREF(object);
      return false;
    }
    Py_DECREF(object);
    if (!take_back(node) || count_of(node).load() != (kOneWeak | 1) || slot_of(node).load()) return false;
  }
  return true;
}

}  // namespace

bool objects_ready() {
  if (!to_python)
    to_python = reinterpret_cast<ToPython>(find_symbol(
        "_ZN5torch8autograd18functionToPyObjectERKN3c1013intrusive_ptrINS0_4NodeENS1_6detail34intrusive_target_default_"
        "null_typeIS3_EEEE",
        kPython));
  return to_python != nullptr;
}

PyObject* object_of(void* node) {
  if (!objects_ready()) {
    PyErr_SetString(PyExc_LookupError, "torch does not tell the Python object of a node");
    return nullptr;
  }
  PyObject* object = to_python(&node);
  if (!object && !PyErr_Occurred()) PyErr_SetString(PyExc_LookupError, "the node has no Python object");
  return object;
}

bool objects_returnable() { return returnable; }

bool has_object(void* node) { return returnable && slot_of(node).load(std::memory_order_acquire) != nullptr; }

bool take_back(void* node) {
  if (!returnable) return false;
  PyObject* object = slot_of(node).load(std::memory_order_acquire);
  if (!object) return true;
  // With one reference more, no thread that has no GIL can be the one that leaves the object alone with its node.
  std::atomic<uint64_t>& count = count_of(node);
  const uint64_t held = count.fetch_add(1, std::memory_order_acq_rel) + 1;
  const bool alone = (held & kHasObject) && static_cast<uint32_t>(held) >= 3 && Py_REFCNT(object) == 1;
  if (alone) {
    count.fetch_and(~kHasObject, std::memory_order_acq_rel);
    Py_DECREF(object);  // that of the others: it is freed, with its reference to the node and the node's word of it
  }
  count.fetch_sub(1, std::memory_order_acq_rel);
  return alone;
}

PyObject* torch_objects(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "a type of nodes");
    return nullptr;
  }
  if (returnable) Py_RETURN_TRUE;
  if (node_layout.edges < 0 || node_layout.edge_bytes != 16 || !objects_ready()) Py_RETURN_FALSE;
  PyObject* maker = PyObject_CallNoArgs(type);
  returnable = maker != nullptr;
  returnable = maker && tried(maker);
  PyErr_Clear();
  Py_XDECREF(maker);
  return PyBool_FromLong(returnable);
}

}  // namespace adbg
