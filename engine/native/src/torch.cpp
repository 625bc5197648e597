// What libtorch calls when it makes a node: its number is taken from at::sequence_number, and here the Python stack is
// taken beside it. An accumulate node takes no number: its constructor is what is seen.
#include "torch.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "frames.h"
#include "guarded.h"
#include "slots.h"
#include "torch_engine.h"
#include "torch_events.h"
#include "torch_graph.h"
#include "torch_hooks.h"
#include "torch_nodes.h"
#include "torch_objects.h"
#include "torch_screen.h"
#include "torch_stacks.h"
#include "torch_tensors.h"
#include "torch_walk.h"
#include "torch_watch.h"

namespace adbg {
namespace {

const char* const kLibraries[] = {"libtorch", "libc10", nullptr};

// ---- stacks by (thread, number)

constexpr uint32_t kNumbers = 1 << 21;  // of a thread's last nodes, 16 MB once it has made as many
constexpr size_t kThreads = 256;        // whose nodes are known after they ended

struct Made {
  uint64_t thread = 0;
  uint32_t* numbers = nullptr;
  uint32_t* stacks = nullptr;
  std::atomic<bool> ended{false};
};

std::mutex lock;  // of `threads`
std::vector<Made*> threads;

struct Mine {  // ends with its thread
  Made* made = nullptr;
  ~Mine() {
    if (made) made->ended.store(true);
  }
};
thread_local Mine mine;

using Increment = uint64_t (*)();
using ThreadId = uint64_t (*)();
using MakeAccumulate = void (*)(void*, void*);
std::atomic<ThreadId> thread_id{nullptr};

void unmap(Made* made) {
  munmap(made->numbers, kNumbers * 2ull * sizeof(uint32_t));
  delete made;
}

Made* begin_thread() {
  void* memory = mmap(nullptr, kNumbers * 2ull * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  Made* made = new (std::nothrow) Made;
  if (!made) {
    munmap(memory, kNumbers * 2ull * sizeof(uint32_t));
    return nullptr;
  }
  made->thread = thread_id.load()();
  made->numbers = static_cast<uint32_t*>(memory);
  made->stacks = made->numbers + kNumbers;
  std::lock_guard<std::mutex> held(lock);
  if (threads.size() >= kThreads) {
    auto oldest = std::find_if(threads.begin(), threads.end(), [](Made* each) { return each->ended.load(); });
    if (oldest != threads.end()) {
      unmap(*oldest);
      threads.erase(oldest);
    }
  }
  threads.push_back(made);
  return made;
}

// ---- stacks of accumulate nodes, by address: the latest constructor that ran there is that of the node

constexpr uint32_t kAccumulates = 1 << 16;
struct Accumulate {
  std::atomic<void*> node{nullptr};
  std::atomic<uint32_t> stack{0};
};
Accumulate* accumulates = nullptr;

// One of four places each: others may have taken them all, and are told apart. `make`: one to write to.
Accumulate* accumulate_at(void* node, bool make) {
  const uint64_t hash = (reinterpret_cast<uint64_t>(node) >> 4) * 0x9E3779B97F4A7C15ull >> 48;
  Accumulate* four = accumulates + (hash & ~uint64_t{3});
  for (int i = 0; i < 4; i++)
    if (four[i].node.load(std::memory_order_acquire) == node) return &four[i];
  for (int i = 0; make && i < 4; i++)
    if (!four[i].node.load(std::memory_order_relaxed)) return &four[i];
  return make ? &four[hash & 3] : nullptr;
}

uint64_t increment();
void make_accumulate(void* node, void* tensor);

Interposed sequence("_ZN2at15sequence_number17get_and_incrementEv", reinterpret_cast<void*>(increment));
Interposed accumulate("_ZN5torch8autograd14AccumulateGradC1EN2at6TensorE", reinterpret_cast<void*>(make_accumulate));

uint64_t increment() {
  const uint64_t number = reinterpret_cast<Increment>(sequence.real())();
  Made* made = mine.made;
  if (__builtin_expect(!made, 0)) {
    made = mine.made = begin_thread();
    if (!made) return number;
  }
  const uint32_t place = static_cast<uint32_t>(number) & (kNumbers - 1);
  made->stacks[place] = capture();
  made->numbers[place] = static_cast<uint32_t>(number) + 1;  // 0: nothing was written here
  return number;
}

void make_accumulate(void* node, void* tensor) {
  reinterpret_cast<MakeAccumulate>(accumulate.real())(node, tensor);
  Accumulate* place = accumulate_at(node, true);
  place->stack.store(capture(), std::memory_order_relaxed);
  place->node.store(node, std::memory_order_release);
}

}  // namespace

uint32_t stack_number(void* node) {
  if (!accumulates) return 0;
  const uint64_t number = sequence_of(node);
  if (number == UINT64_MAX) {
    const Accumulate* place = accumulate_at(node, false);
    return place ? place->stack.load(std::memory_order_relaxed) : 0;
  }
  const uint64_t thread = thread_of(node);
  const uint32_t place = static_cast<uint32_t>(number) & (kNumbers - 1);
  std::lock_guard<std::mutex> held(lock);
  for (size_t i = threads.size(); i-- > 0;)
    if (threads[i]->thread == thread && threads[i]->numbers[place] == static_cast<uint32_t>(number) + 1)
      return threads[i]->stacks[place];
  return 0;
}

// ---- in and out

namespace {

void before_fork() { lock.lock(); }
void after_fork() { lock.unlock(); }

// torch_stacks(on) -> "" or why not
PyObject* torch_stacks(PyObject*, PyObject* on) {
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  std::string why;
  if (!wanted) {
    sequence.restore();
    accumulate.restore();
    // What was made before is told apart from what will be made at the same address while nobody looks.
    for (uint32_t i = 0; accumulates && i < kAccumulates; i++) accumulates[i].node.store(nullptr);
    return PyUnicode_FromString("");
  }
  if (!thread_id.load()) {
    if (!accumulates) accumulates = new (std::nothrow) Accumulate[kAccumulates];
    if (!accumulates) return PyErr_NoMemory();
    auto found = reinterpret_cast<ThreadId>(find_symbol("_ZN2at14RecordFunction15currentThreadIdEv", kLibraries));
    if (!found) return PyUnicode_FromString("symbol not found: at::RecordFunction::currentThreadId");
    if (!sequence.find(kLibraries, why) || !accumulate.find(kLibraries, why)) return PyUnicode_FromString(why.c_str());
    pthread_atfork(before_fork, after_fork, after_fork);
    thread_id.store(found);
  }
  if (node_layout.thread < 0) return PyUnicode_FromString("the layout of nodes is not known");
  if (!sequence.put(why)) return PyUnicode_FromString(why.c_str());
  if (!accumulate.put(why)) sequence.restore();
  return PyUnicode_FromString(why.c_str());
}

PyObject* torch_thread(PyObject*, PyObject*) {
  auto found = reinterpret_cast<ThreadId>(find_symbol("_ZN2at14RecordFunction15currentThreadIdEv", kLibraries));
  return PyLong_FromUnsignedLongLong(found ? found() : 0);
}

PyObject* torch_stack_number(PyObject*, PyObject* object) {
  void* node = node_behind(object);
  return PyLong_FromUnsignedLong(node && accumulates ? stack_number(node) : 0);
}

PyObject* torch_address(PyObject*, PyObject* object) { return PyLong_FromVoidPtr(node_behind(object)); }

PyObject* torch_interposed(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const Interposed* each : {&sequence, &accumulate}) {
    PyObject* entry = list ? Py_BuildValue("(sNn)", each->symbol(), PyBool_FromLong(each->on()),
                                           static_cast<Py_ssize_t>(each->slots().size()))
                           : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

PyObject* torch_abandon(PyObject*, PyObject*) {
  engine_abandon();
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef torch_methods[] = {
    {"torch_layout", guarded<torch_layout>, METH_O, "([(node, thread id), ...]) -> whether number and thread were found"},
    {"torch_edges", guarded<torch_edges>, METH_O, "([node, ...]) -> whether their edges were found in memory"},
    {"torch_leaves", guarded<torch_leaves>, METH_O, "([(accumulate node, tensor), ...]) -> whether tensors were found in nodes"},
    {"torch_walk", guarded<torch_walk>, METH_O, "([root, ...]) -> Walk, or None where nodes cannot be read"},
    {"torch_survey", guarded<torch_survey>, METH_O, "([root, ...]) -> (nodes, types, alike, alike, number), or None"},
    {"torch_objects", guarded<torch_objects>, METH_O, "(type) -> whether Python objects of nodes can be taken back"},
    {"torch_hooking", guarded<torch_hooking>, METH_VARARGS, "(node, pre hooks, post hooks) -> whether nodes can be hooked"},
    {"torch_hooked", guarded<torch_hooked>, METH_O, "(change) -> how many calls with hooked nodes run"},
    {"torch_donor", guarded<torch_donor>, METH_VARARGS, "(node, pre hooks, post hooks) -> whether lists of hooks were found"},
    {"torch_tensors", guarded<torch_tensors>, METH_VARARGS, "(tensor, keys, elements, address) -> whether tensors can be read"},
    {"torch_screening", guarded<torch_screening>, METH_O, "(change) -> how many screened calls run"},
    {"torch_events", guarded<torch_events>, METH_O, "(on) -> \"\", or why nodes cannot be written down"},
    {"torch_events_donor", guarded<torch_events_donor>, METH_VARARGS, "(node, pre hooks) -> whether its hook can be called"},
    {"torch_events_begin", guarded<torch_events_begin>, METH_VARARGS, "(walk, tensor, most, norms=True) -> what the others take, or None"},
    {"torch_events_take", guarded<torch_events_take>, METH_VARARGS, "(events, walk, positions) -> (rows, lost, shapes)"},
    {"torch_events_since", guarded<torch_events_since>, METH_VARARGS, "(events, walk, positions, start) -> rows, which stay"},
    {"torch_events_end", guarded<torch_events_end>, METH_O, "(events): the backward is over"},
    {"torch_watch", guarded<torch_watch>, METH_O, "(hand over) -> whether backwards can be watched from now on"},
    {"torch_watch_next", guarded<torch_watch_next>, METH_VARARGS, "(tensor, nodes) -> whether the next backward of this thread is watched"},
    {"torch_alike", guarded<torch_alike>, METH_O, "(walk) -> a number, or None"},
    {"torch_events_figure", guarded<torch_events_figure>, METH_VARARGS, "(norm, nonfinite) of what flows into this node"},
    {"torch_failures", guarded<torch_failures>, METH_O, "(on) -> \"\", or why the node that fails cannot be told"},
    {"torch_failed", guarded<torch_failed>, METH_O, "(walk) -> key of the node that an exception left last, or None"},
    {"torch_events_interposed", guarded<torch_events_interposed>, METH_NOARGS, "() -> as torch_interposed, of the engine's"},
    {"torch_abandon", guarded<torch_abandon>, METH_NOARGS, "in a forked child: calls of other threads never end"},
    {"torch_thread", guarded<torch_thread>, METH_NOARGS, "() -> torch's number of this thread"},
    {"torch_stacks", guarded<torch_stacks>, METH_O, "(on) -> \"\", or why the stacks cannot be taken"},
    {"torch_stack_number", guarded<torch_stack_number>, METH_O, "(node) -> the number of its stack, 0 where it has none"},
    {"torch_address", guarded<torch_address>, METH_O, "(node) -> where it lies, 0 where that is not known"},
    {"torch_interposed", guarded<torch_interposed>, METH_NOARGS, "() -> [(symbol, whether it is interposed now, slots)]"},
    {nullptr, nullptr, 0, nullptr}};

void torch_restore() {
  sequence.restore();
  accumulate.restore();
  engine_restore();
}

}  // namespace adbg
