#include "torch_engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "slots.h"
#include "torch_nodes.h"

namespace adbg {
namespace {

const char* const kLibraries[] = {"libtorch", nullptr};

// ---- which graph task is whose: a task is an address while its call runs

struct Task {
  void* task;
  Follow followed;
};
std::mutex tasks_lock;
std::vector<Task> tasks;
std::atomic<uint64_t> tasks_changed{1};
std::atomic<uint16_t> threads{0};

struct Type {
  void* table;  // of its virtual functions
  bool own;     // it is torch's: not a Python Function's, nor one of an extension
};
constexpr size_t kTypes = 256;  // as many as the 8 bits that a place is taken from

struct Thread {
  NodeRun* innermost = nullptr;
  uint64_t seen = 0;  // value of tasks_changed that `task` was looked up at
  void* task = nullptr;
  Follow followed;
  Follow next;  // of the backward that this thread is about to begin
  uint16_t number = 0;
  Norms norms;
  Type types[kTypes];
};
thread_local Thread mine;

// Whether what runs at a node of this type is torch's own C++.
bool torchs_own(Thread& here, void* node) {
  void* table = *static_cast<void**>(node);
  size_t place = reinterpret_cast<uint64_t>(table) * 0x9E3779B97F4A7C15ull >> 56;
  const auto other = [&] { return here.types[place].table && here.types[place].table != table; };
  for (int tries = 0; tries < 8 && other(); tries++) place = (place + 1) % kTypes;
  Type& type = here.types[place];
  if (type.table != table) {
    void* info = nullptr;
    const char* name = nullptr;
    char text[96] = {0};
    const bool read = read_safely(static_cast<char*>(table) - 8, &info, 8) &&
                      read_safely(static_cast<char*>(info) + 8, &name, 8) && read_text(name, text, sizeof text);
    type = {table, read && !strncmp(text, "N5torch8autograd", 16) && !strstr(text, "PyNode") && !strstr(text, "CppNode")};
  }
  return type.own;
}

Followed* followed_of(Thread& here, void* task) {
  const uint64_t changed = tasks_changed.load(std::memory_order_acquire);
  if (here.seen != changed || here.task != task) {
    std::lock_guard<std::mutex> held(tasks_lock);
    here.seen = tasks_changed.load(std::memory_order_relaxed);
    here.task = task;
    NodeRun* const outer = here.innermost;
    if (outer && outer->followed && outer->followed == here.followed.get()) outer->held = std::move(here.followed);
    here.followed.reset();
    for (const Task& each : tasks)
      if (each.task == task) here.followed = each.followed;
  }
  return here.followed.get();
}

// The gradients that flow into a node: the first member of the engine's InputBuffer, a std::vector. That it is was seen
// at a node with a hook, which torch hands the same memory.
std::atomic<bool> inputs_seen{false};

Tensors* inputs_of(void* buffer) {
  return inputs_seen.load(std::memory_order_relaxed) ? static_cast<Tensors*>(buffer) : nullptr;
}

// ---- what stands in for functions of the engine's

void evaluate(void* engine, void* task, void* node, void* inputs, void* queue);
void validate(void* edges, void* gradients, void* format);
void* execute(void* result, void* engine, void* task, void* root, void* inputs);

Interposed evaluating(
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_"
    "INS0_10ReadyQueueEE",
    reinterpret_cast<void*>(evaluate));
Interposed validating(
    "_ZN5torch8autograd16validate_outputsERKSt6vectorINS0_4EdgeESaIS2_EERS1_IN2at6TensorESaIS8_EERKSt8functionIFNSt7__"
    "cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSI_EE",
    reinterpret_cast<void*>(validate));
Interposed executing(
    "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_"
    "4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE",
    reinterpret_cast<void*>(execute));
Interposed* const all[] = {&evaluating, &validating, &executing};
bool failures_kept = false;  // the first of them stays while failures are looked for

using Evaluate = void (*)(void*, void*, void*, void*, void*);
using Validate = void (*)(void*, void*, void*);
using Execute = void* (*)(void*, void*, void*, void*, void*);

// On the stack of the thread while the node runs; told as it is left, by an exception too. A look at what is the thread's
// own costs a call (2 % of a step of many small nodes, when each function here took its own): it is handed on.
class Running {
 public:
  Running(Thread& here, void* node, Followed* followed) : here_(here), run{node, followed, here.innermost} {
    if (!here.number) here.number = static_cast<uint16_t>(threads.fetch_add(1) + 1);
    run.norms = &here.norms;
    run.thread = here.number;
    run.only_torch = followed && torchs_own(here, node);
    here.innermost = &run;
  }
  ~Running() {
    here_.innermost = run.outer;
    if (run.followed) run.followed->left(run);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Thread& here_;

 public:
  NodeRun run;
};

// The node whose function an exception left last, on whatever thread it ran: torch does not say which one it was. An
// address, which another node may have once this one is gone: it is forgotten as the next call begins.
std::atomic<void*> failed{nullptr};
// A backward may be followed. Without one a node costs two calls more: its exception is what is looked for.
std::atomic<bool> following{false};

void run_node(void* engine, void* task, void* node, void* inputs, void* queue) {
  const auto real = reinterpret_cast<Evaluate>(evaluating.real());
  if (!following.load(std::memory_order_relaxed)) return real(engine, task, node, inputs, queue);
  Thread& here = mine;
  Followed* followed = followed_of(here, *static_cast<void**>(task));
  const bool learning = !inputs_seen.load(std::memory_order_relaxed);
  if (!followed && !here.innermost && !learning) return real(engine, task, node, inputs, queue);
  Running running(here, node, followed);
  if (learning) running.run.raw = *static_cast<void* const**>(inputs);
  if (followed) followed->begins(running.run, inputs_of(inputs));
  real(engine, task, node, inputs, queue);
  running.run.whole = true;
}

void evaluate(void* engine, void* task, void* node, void* inputs, void* queue) {
  try {
    run_node(engine, task, node, inputs, queue);
  } catch (...) {
    failed.store(node, std::memory_order_relaxed);
    throw;
  }
}

// Right behind a node's own work. The edges that are handed in lie in the node, which tells it from others.
void validate(void* edges, void* gradients, void* format) {
  NodeRun* run = mine.innermost;
  const bool own = run && run->followed && static_cast<char*>(edges) - node_layout.edges == run->node;
  if (own) run->followed->worked(*run);
  reinterpret_cast<Validate>(validating.real())(edges, gradients, format);
  if (own) run->followed->gave(*run, *static_cast<Tensors*>(gradients));
}

void* execute(void* result, void* engine, void* task, void* root, void* inputs) {
  const auto real = reinterpret_cast<Execute>(executing.real());
  Follow followed = std::move(mine.next);
  mine.next.reset();
  if (!followed) return real(result, engine, task, root, inputs);
  struct Bound {
    void* task;
    Bound(void* its, const Follow& by) : task(its) {
      std::lock_guard<std::mutex> held(tasks_lock);
      tasks.push_back({task, by});
      tasks_changed.fetch_add(1, std::memory_order_release);
    }
    ~Bound() {
      {
        std::lock_guard<std::mutex> held(tasks_lock);
        tasks.erase(std::remove_if(tasks.begin(), tasks.end(), [&](const Task& each) { return each.task == task; }),
                    tasks.end());
        tasks_changed.fetch_add(1, std::memory_order_release);
      }
      if (mine.innermost) return;
      mine.followed.reset();
      mine.task = nullptr;
      mine.norms.clear();
    }
  } bound(*static_cast<void**>(task), followed);
  return real(result, engine, task, root, inputs);
}

void before_fork() { tasks_lock.lock(); }
void after_fork() { tasks_lock.unlock(); }

}  // namespace

NodeRun* running() { return mine.innermost; }

void follow_next(Follow followed) { mine.next = std::move(followed); }

void follow_over(const Follow& followed) {
  if (mine.next == followed) mine.next.reset();
}

void learn_inputs(const Tensors& gradients) {
  const NodeRun* run = mine.innermost;
  if (run && run->raw && run->raw == gradients.data()) inputs_seen.store(true, std::memory_order_relaxed);
}

bool inputs_known() { return inputs_seen.load(std::memory_order_relaxed); }

bool engine_find(std::string& why) {
  for (Interposed* each : all)
    if (!each->find(kLibraries, why)) return false;
  static const int at_fork = pthread_atfork(before_fork, after_fork, after_fork);
  (void)at_fork;
  return true;
}

bool engine_put(std::string& why) {
  for (Interposed* each : all)
    if (!each->put(why)) {
      engine_follow_none();
      return false;
    }
  following.store(true, std::memory_order_relaxed);
  return true;
}

bool engine_on() { return executing.on(); }

bool failures_put(std::string& why) { return failures_kept = evaluating.find(kLibraries, why) && evaluating.put(why); }

void* failed_node() { return failed.load(std::memory_order_relaxed); }

void failed_forget() { failed.store(nullptr, std::memory_order_relaxed); }

void engine_follow_none() {
  following.store(false, std::memory_order_relaxed);
  for (Interposed* each : all)
    if (each != &evaluating || !failures_kept) each->restore();
}

void engine_restore() {
  failures_kept = false;
  engine_follow_none();
}

void engine_abandon() {
  std::lock_guard<std::mutex> held(tasks_lock);
  tasks.clear();
  tasks_changed.fetch_add(1);
  mine.next.reset();
}

PyObject* engine_interposed() {
  PyObject* list = PyList_New(0);
  for (const Interposed* each : all) {
    PyObject* entry = list ? Py_BuildValue("(sNn)", each->symbol(), PyBool_FromLong(each->on()),
                                           static_cast<Py_ssize_t>(each->slots().size()))
                           : nullptr;
    if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
    Py_XDECREF(entry);
  }
  return list;
}

}  // namespace adbg
