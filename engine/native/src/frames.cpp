#include "frames.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "layouts.h"

namespace adbg {
namespace {

// ---- modules that run. A slot for each address that a module ever had: `life` counts the modules that lived there, so
// that a stack which names an address means one of them. Read without the GIL; written under it.

constexpr uint32_t kModules = 1 << 15;  // half of it used at most; what comes later has no path
constexpr int kMostFruitless = 3;       // see Modules of the Python hooks: searches that found nothing

struct Module {
  std::atomic<void*> address{nullptr};
  std::atomic<uint32_t> life{0};
  PyObject* reference = nullptr;  // weak; nullptr while no module lives there
  PyObject* path = nullptr;
  int fruitless = 0;
};

Module* modules = nullptr;
uint32_t module_count = 0;
std::atomic<PyCodeObject*> call_code{nullptr};
PyObject* children_name = nullptr;
PyObject* dict_name = nullptr;

uint32_t module_index(const void* address) {
  return static_cast<uint32_t>((reinterpret_cast<uint64_t>(address) >> 4) * 0x9E3779B97F4A7C15ull >> 40) &
         (kModules - 1);
}

// The slot of an address, or the empty one where it would be.
Module* module_slot(const void* address) {
  uint32_t index = module_index(address);
  for (;; index = (index + 1) & (kModules - 1)) {
    void* there = modules[index].address.load(std::memory_order_acquire);
    if (there == address || there == nullptr) return &modules[index];
  }
}

PyObject* module_gone(PyObject* self, PyObject*) {  // the weak reference's: runs as the module is freed
  Module* module = static_cast<Module*>(PyCapsule_GetPointer(self, nullptr));
  if (module) {
    module->life.fetch_add(1, std::memory_order_release);
    Py_CLEAR(module->reference);
    Py_CLEAR(module->path);
  } else {
    PyErr_Clear();
  }
  Py_RETURN_NONE;
}
PyMethodDef gone_method = {"gone", module_gone, METH_O, nullptr};

// Allocations here must not start a collection: it would run the program's finalizers inside an operator of its own.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~NoCollection() {
    PyErr_Restore(type_, value_, traceback_);
    if (was_) PyGC_Enable();
  }

 private:
  int was_;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

Module* alive_slot(PyObject* object) {
  Module* module = module_slot(object);
  return module->reference ? module : nullptr;
}

Module* make_slot(PyObject* object) {
  Module* module = module_slot(object);
  if (module->reference) return module;
  if (!module->address.load(std::memory_order_relaxed)) {
    if (module_count * 2 >= kModules) return nullptr;
    module_count++;
  }
  PyObject* capsule = PyCapsule_New(module, nullptr, nullptr);
  PyObject* callback = capsule ? PyCFunction_New(&gone_method, capsule) : nullptr;
  Py_XDECREF(capsule);
  PyObject* reference = callback ? PyWeakref_NewRef(object, callback) : nullptr;
  Py_XDECREF(callback);
  if (!reference) {
    PyErr_Clear();
    return nullptr;
  }
  module->reference = reference;
  module->fruitless = 0;
  module->life.fetch_add(1, std::memory_order_relaxed);
  module->address.store(object, std::memory_order_release);
  return module;
}

// Borrowed: the dict of a module's parts, read without running anything of the program's.
PyObject* children_of(PyObject* module) {
  PyObject** place = _PyObject_GetDictPtr(module);
  PyObject* dict = place ? *place : nullptr;
  if (!dict || !PyDict_CheckExact(dict)) return nullptr;
  PyObject* parts = PyDict_GetItemWithError(dict, children_name);
  return parts && PyDict_Check(parts) ? parts : nullptr;
}

void learn_below(PyObject* module, const std::string& path, std::unordered_set<PyObject*>& seen, int depth) {
  if (depth > 100 || !seen.insert(module).second) return;
  Module* slot = make_slot(module);
  if (!slot) return;
  if (!slot->path || !path.empty()) {
    PyObject* text = PyUnicode_FromStringAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
    if (!text) {
      PyErr_Clear();
      return;
    }
    Py_XSETREF(slot->path, text);
  }
  PyObject *parts = children_of(module), *key, *part;
  Py_ssize_t at = 0;
  while (parts && PyDict_Next(parts, &at, &key, &part)) {
    if (part == Py_None || !PyUnicode_CheckExact(key)) continue;
    const char* name = PyUnicode_AsUTF8(key);
    if (!name) {
      PyErr_Clear();
      continue;
    }
    learn_below(part, path.empty() ? std::string(name) : path + "." + name, seen, depth + 1);
  }
}

// What Modules._new_place of the Python hooks does: look for the module below the outermost one that runs.
Module* place_module(PyObject* module, PyObject* outermost) {
  Module* slot = alive_slot(module);
  if (slot && slot->path) return slot;
  Module* above = outermost != module ? alive_slot(outermost) : nullptr;
  std::unordered_set<PyObject*> seen;
  if (!above) learn_below(outermost, "", seen, 0);
  else if (above->fruitless < kMostFruitless) learn_below(outermost, "", seen, 0);
  slot = make_slot(module);
  if (!slot || slot->path) return slot;
  const char* name = strrchr(Py_TYPE(module)->tp_name, '.');
  slot->path = PyUnicode_FromString(name ? name + 1 : Py_TYPE(module)->tp_name);
  if (!slot->path) PyErr_Clear();
  above = alive_slot(outermost);
  if (above && outermost != module) above->fruitless++;
  return slot;
}

PyObject* module_of(Frame* frame) {  // borrowed: the frame holds it
  PyObject* first = first_local(frame);
  if (first && PyCell_Check(first)) first = PyCell_GET(first);
  return first;
}

// ---- stacks

struct Stack {
  uint32_t number;
  uint64_t hash;
  std::vector<std::pair<PyCodeObject*, int>> frames;
  PyObject* path = nullptr;
  PyObject* outermost = nullptr;
};

// Numbers by hash, read without a lock: open addressing, a fourth of it used at most.
struct Entry {
  std::atomic<uint64_t> hash{0};
  std::atomic<uint32_t> number{0};
};
constexpr uint32_t kEntries = 1 << 17;
constexpr size_t kMost = 1 << 15;  // stacks kept; the older half is let go of when there are as many

Entry* entries = nullptr;
std::mutex lock;              // of what follows. The GIL is taken before it, never inside.
std::vector<Stack*> stacks;   // ascending numbers
uint32_t last_number = 0;
uint64_t were_new = 0;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

void enter(uint64_t hash, uint32_t number) {
  uint32_t index = hash & (kEntries - 1);
  while (entries[index].hash.load(std::memory_order_relaxed)) index = (index + 1) & (kEntries - 1);
  entries[index].number.store(number, std::memory_order_relaxed);
  entries[index].hash.store(hash, std::memory_order_release);
}

void collect(Stack* stack, std::vector<PyObject*>& dropped) {
  for (auto& frame : stack->frames) dropped.push_back(reinterpret_cast<PyObject*>(frame.first));
  if (stack->path) dropped.push_back(stack->path);
  if (stack->outermost) dropped.push_back(stack->outermost);
  delete stack;
}

// A reader that runs beside sees entries come and go: it misses one at worst, and its stack is kept twice.
void drop_older(size_t keep, std::vector<PyObject*>& dropped) {
  size_t gone = stacks.size() - keep;
  for (size_t i = 0; i < gone; i++) collect(stacks[i], dropped);
  stacks.erase(stacks.begin(), stacks.begin() + static_cast<long>(gone));
  for (uint32_t i = 0; i < kEntries; i++) entries[i].hash.store(0, std::memory_order_relaxed);
  for (Stack* stack : stacks) enter(stack->hash, stack->number);
}

uint64_t hash_of(Frame* top) {
  PyCodeObject* call = call_code.load(std::memory_order_relaxed);
  uint64_t hash = 0x1234567;
  for (Frame* frame = top; frame; frame = caller(frame)) {
    if (!counts(frame)) continue;
    hash = mix(hash, place_of(frame));
    if (code_of(frame) != call) continue;
    PyObject* module = module_of(frame);
    Module* slot = module_slot(module);
    uint64_t life = slot->address.load(std::memory_order_acquire) ? slot->life.load(std::memory_order_acquire) : 0;
    hash = mix(hash, reinterpret_cast<uint64_t>(module) ^ (life << 48));
  }
  return hash | 1;
}

__attribute__((noinline)) uint32_t keep(Frame* top) {
  if (python_is_ending()) return 0;
  const PyGILState_STATE gil = PyGILState_Ensure();
  uint32_t number = 0;
  std::vector<PyObject*> dropped;
  {
    NoCollection quiet;
    try {
      Stack* stack = new Stack;
      PyCodeObject* call = call_code.load(std::memory_order_relaxed);
      PyObject *inner = nullptr, *outermost = nullptr;
      for (Frame* frame = top; frame; frame = caller(frame)) {
        if (!counts(frame)) continue;
        PyCodeObject* code = code_of(frame);
        Py_INCREF(code);
        stack->frames.emplace_back(code, lasti_of(frame));
        if (code != call || !module_of(frame)) continue;
        outermost = module_of(frame);
        if (!inner) inner = outermost;
      }
      if (inner) {
        // Outermost first, as they were entered: a module is looked for below what runs it.
        std::vector<PyObject*> running;
        for (Frame* frame = top; frame; frame = caller(frame))
          if (counts(frame) && code_of(frame) == call && module_of(frame)) running.push_back(module_of(frame));
        Module* place = nullptr;
        for (size_t i = running.size(); i-- > 0;) place = place_module(running[i], outermost);
        Module* above = alive_slot(outermost);
        if (place && place->path) Py_INCREF(stack->path = place->path);
        if (above) Py_INCREF(stack->outermost = above->reference);
      }
      stack->hash = hash_of(top);  // after the modules have their lives
      std::lock_guard<std::mutex> held(lock);
      if (stacks.size() >= kMost) drop_older(kMost / 2, dropped);
      number = stack->number = ++last_number;
      stacks.push_back(stack);
      enter(stack->hash, number);
      were_new++;
    } catch (const std::bad_alloc&) {
      number = 0;
    }
    for (PyObject* object : dropped) Py_DECREF(object);
  }
  PyGILState_Release(gil);
  return number;
}

}  // namespace

bool frames_begin() {
  if (!kFramesKnown) {
    PyErr_SetString(PyExc_NotImplementedError, "the frames of this Python are not known");
    return false;
  }
  if (!entries) pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); });
  if (!entries) entries = new (std::nothrow) Entry[kEntries];
  if (!modules) modules = new (std::nothrow) Module[kModules];
  if (!dict_name) dict_name = PyUnicode_InternFromString("__dict__");
  if (entries && modules && dict_name) return true;
  if (!PyErr_Occurred()) PyErr_NoMemory();
  return false;
}

bool frames_modules(PyObject* call, PyObject* children) {
  if (call != Py_None && !PyCode_Check(call)) {
    PyErr_SetString(PyExc_TypeError, "a code object or None");
    return false;
  }
  if (!PyUnicode_Check(children)) {
    PyErr_SetString(PyExc_TypeError, "the name of an attribute");
    return false;
  }
  // Kept for good: a reader without the GIL may still compare with the one before.
  Py_INCREF(call);
  Py_INCREF(children);
  children_name = children;
  call_code.store(call == Py_None ? nullptr : reinterpret_cast<PyCodeObject*>(call), std::memory_order_release);
  return true;
}

uint32_t capture() {  // no noexcept: taking the GIL of a Python that ends unwinds the thread
  if (!entries || python_is_ending()) return 0;
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state) return 0;
  Frame* top = innermost(state);
  if (!top) return 0;
  const uint64_t hash = hash_of(top);
  uint32_t index = hash & (kEntries - 1);
  for (;; index = (index + 1) & (kEntries - 1)) {
    const uint64_t there = entries[index].hash.load(std::memory_order_acquire);
    if (there == hash) return entries[index].number.load(std::memory_order_relaxed);
    if (!there) return keep(top);
  }
}

PyObject* stack_of(uint32_t number) {
  std::vector<std::pair<PyCodeObject*, int>> frames;
  PyObject *path = Py_None, *outermost = Py_None;
  {
    std::lock_guard<std::mutex> held(lock);
    size_t low = 0, high = stacks.size();
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (stacks[middle]->number < number) low = middle + 1;
      else high = middle;
    }
    if (low == stacks.size() || stacks[low]->number != number) Py_RETURN_NONE;
    const Stack& stack = *stacks[low];
    frames = stack.frames;
    if (stack.path) path = stack.path;
    if (stack.outermost) outermost = stack.outermost;
    for (auto& frame : frames) Py_INCREF(frame.first);  // making the answer may run a collection, and code
    Py_INCREF(path);
    Py_INCREF(outermost);
  }
  PyObject* listed = PyTuple_New(static_cast<Py_ssize_t>(frames.size()));
  for (size_t i = 0; i < frames.size(); i++) {
    PyObject* pair = listed ? Py_BuildValue("(Oi)", frames[i].first, frames[i].second) : nullptr;
    Py_DECREF(frames[i].first);
    if (pair) PyTuple_SET_ITEM(listed, static_cast<Py_ssize_t>(i), pair);
    else Py_CLEAR(listed);
  }
  PyObject* answer = listed ? PyTuple_Pack(3, listed, path, outermost) : nullptr;
  Py_XDECREF(listed);
  Py_DECREF(path);
  Py_DECREF(outermost);
  return answer;
}

PyObject* frames_counts() {
  Py_ssize_t kept;
  unsigned long long fresh;
  {
    std::lock_guard<std::mutex> held(lock);
    kept = static_cast<Py_ssize_t>(stacks.size());
    fresh = were_new;
  }
  return Py_BuildValue("(nKI)", kept, fresh, module_count);  // may run a collection, and code that lets go of the GIL
}

PyObject* frames_roots() {
  PyObject* list = PyList_New(0);
  for (uint32_t i = 0; list && modules && i < kModules; i++) {
    if (!modules[i].reference || !modules[i].path || PyUnicode_GET_LENGTH(modules[i].path) != 0) continue;
    PyObject* module = PyWeakref_GetObject(modules[i].reference);
    if (module && module != Py_None && PyList_Append(list, module) != 0) Py_CLEAR(list);
  }
  return list;
}

void frames_clear() {
  if (!entries) return;
  std::vector<PyObject*> dropped;
  {
    std::lock_guard<std::mutex> held(lock);
    drop_older(0, dropped);
  }
  for (PyObject* object : dropped) Py_DECREF(object);
}

}  // namespace adbg
