// What the parts for Paddle share: where things are in a node, and a graph followed without Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace adbg {

// Offsets in a node, found by the Python side on a graph of its own; 0 until then.
struct PaddleLayout {
  int64_t trace = 0;       // of forward_trace_, a std::string
  int64_t outgoing = 0;    // of its small_vector<vector<GradSlotMeta>>
  int64_t slot_bytes = 0;  // size of a GradSlotMeta
  int64_t edge = 0;        // of (slot, rank, node) in it
};
extern PaddleLayout paddle_layout;

inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 32)) * 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9ull;
  return value ^ (value >> 32);
}

inline void* class_of(const void* node) {  // its virtual table
  void* table;
  memcpy(&table, node, sizeof table);
  return table;
}

// Calls `visit(producer, slot there, rank there)` for each outgoing gradient of a node. `several`, where given, is set
// where one slot has more than one. Returns how many lead somewhere: of an accumulate node, none.
template <typename Visit>
uint32_t each_edge(const void* node, bool* several, Visit visit) {
  const char* outgoing = static_cast<const char*>(node) + paddle_layout.outgoing;
  const char* slots;  // begin, and how many there are; each is a vector (begin, end, room)
  uint32_t count, led = 0;
  memcpy(&slots, outgoing, 8);
  memcpy(&count, outgoing + 8, 4);
  for (uint32_t slot = 0; slot < count; slot++) {
    const char *begin, *end;
    memcpy(&begin, slots + 24 * slot, 8);
    memcpy(&end, slots + 24 * slot + 8, 8);
    if (several && end - begin > paddle_layout.slot_bytes) *several = true;
    for (; begin < end; begin += paddle_layout.slot_bytes) {
      uint64_t words[3];
      memcpy(words, begin + paddle_layout.edge, sizeof words);
      if (!words[2]) continue;
      visit(reinterpret_cast<void*>(words[2]), words[0], words[1]);
      led++;
    }
  }
  return led;
}

// A list of addresses as Python has it. False with an exception set.
bool read_addresses(PyObject* sequence, std::vector<void*>& into);

// The watch for numbers that are not finite.
PyObject* paddle_watch_begin(PyObject*, PyObject* arguments);
PyObject* paddle_watch_start(PyObject*, PyObject* arguments);
PyObject* paddle_watch_stop(PyObject*, PyObject*);
PyObject* paddle_watch_end(PyObject*, PyObject*);
PyObject* paddle_watch_probe(PyObject*, PyObject*);
void paddle_watch_restore();
// Watch the graph below `starts` on this thread; the number of its nodes, 0 where something in it is Python's. May throw
// bad_alloc.
size_t paddle_watch_on(const std::vector<void*>& starts, PyObject* callback);
void paddle_watch_off();
// Ours in the virtual tables of these nodes; false where that cannot be.
bool paddle_stand_in(const std::vector<void*>& nodes);
uint64_t paddle_hooks_of(const void* node);  // how many stand in front of it
uint32_t paddle_stack_of(void* node, uint64_t& order);  // as the node is marked; 0 where it is not
int paddle_depth();  // calls of the engine under way on this thread

// A graph in few words: its nodes, a sum over its classes and those of the roots, two over all that makes graphs alike.
struct Surveyed {
  size_t nodes;
  uint64_t kinds, first, second;
};
Surveyed paddle_survey_of(const std::vector<void*>& roots);  // may throw bad_alloc

// The way into the engine.
PyObject* paddle_entry_make(PyObject*, PyObject* arguments);
PyObject* paddle_entry_begin(PyObject*, PyObject* arguments);
PyObject* paddle_entry_mode(PyObject*, PyObject* arguments);
PyObject* paddle_entry_learn(PyObject*, PyObject* arguments);
PyObject* paddle_entry_age(PyObject*, PyObject*);
PyObject* paddle_entry_running(PyObject*, PyObject*);
PyObject* paddle_entry_open(PyObject*, PyObject*);
PyObject* paddle_entry_take(PyObject*, PyObject*);
PyObject* paddle_entry_count(PyObject*, PyObject* which);
PyObject* paddle_entry_pass(PyObject*, PyObject* by);
PyObject* paddle_entry_spent(PyObject*, PyObject*);

}  // namespace adbg
