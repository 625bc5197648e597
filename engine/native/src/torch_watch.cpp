#include "torch_watch.h"

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "layouts.h"
#include "raised_later.h"
#include "torch_engine.h"
#include "torch_events.h"
#include "torch_nodes.h"
#include "torch_norms.h"
#include "torch_screen.h"
#include "torch_tensors.h"

namespace adbg {
namespace {

PyObject* hand_over_to = nullptr;

// Writes down every node, and looks at whether all gradients are finite as long as they are.
class Watch final : public NodeEvents {
 public:
  explicit Watch(size_t nodes) : NodeEvents(nodes, kMost) {}

  void begins(NodeRun& run, Tensors* gradients) override {
    if (!over_.load(std::memory_order_relaxed) && !passes(run, gradients)) hand_over(run);
    if (over_.load(std::memory_order_relaxed)) return NodeEvents::begins(run, gradients);
    run.starts();
  }

  void gave(NodeRun& run, Tensors& gradients) override {
    if (!over_.load(std::memory_order_relaxed) && !run.norms->all_finite(gradients)) {
      const bool hooked = screened_after(run.node);
      hand_over(run);
      // The engine would call a hook that came while the node ran without what flowed in.
      if (!hooked && screened_after(run.node)) {
        Tensors given = ask_after(gradients, run.kept.all());
        screen_take(run.node);
        gradients.swap(given);
        drop_tensors(given);
      }
    }
    run.kept.drop();
  }

 private:
  static constexpr size_t kMost = 1 << 20;  // nodes, as MOST of engine/backends/torch/native/events.py

  static bool passes(NodeRun& run, Tensors* gradients) {
    // The script's hooks may change what flows in, or see what flows out: those of adbg's stand behind them.
    if (!gradients || others_hook(run.node, nullptr)) return false;
    if (!run.only_torch) run.norms->clear();
    if (!run.norms->measure_finite(*gradients, run.figure)) return false;
    // For the evidence, as a node with a hook behind it keeps them. An accumulate node takes what nobody else holds.
    if (sequence_of(run.node) != UINT64_MAX) run.kept.keep(*gradients);
    return true;
  }

  // Python is handed what was written down, by the thread that finds it first.
  void hand_over(NodeRun& run) {
    run.only_torch = false;  // who stops here may change what flows
    if (over_.exchange(true) || python_is_ending()) return;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject* function = hand_over_to;
    Py_INCREF(function);  // another thread may set another one meanwhile
    PyObject* written = events_capsule(shared_from_this());
    PyObject* answer = written ? PyObject_CallOneArg(function, written) : nullptr;
    Py_XDECREF(written);
    Py_DECREF(function);
    if (!answer) raise_later();
    Py_XDECREF(answer);
    PyGILState_Release(gil);
  }

  std::atomic<bool> over_{false};
};

}  // namespace

PyObject* torch_watch(PyObject*, PyObject* hand_over) {
  if (!PyCallable_Check(hand_over)) {
    PyErr_SetString(PyExc_TypeError, "a function");
    return nullptr;
  }
  PyObject* before = hand_over_to;
  Py_INCREF(hand_over);
  hand_over_to = hand_over;
  Py_XDECREF(before);
  return PyBool_FromLong(engine_on() && screen_ready() && tensors_kept());
}

bool watch_next(PyObject* tensor, size_t nodes) {
  if (!hand_over_to || !engine_on() || !inputs_known() || !tensors_kept() || !screen_ready()) return false;
  void* impl = tensor_behind(tensor);
  if (!impl || !is_plain(impl)) return false;
  try {
    follow_next(std::make_shared<Watch>(nodes));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

PyObject* torch_watch_next(PyObject*, PyObject* arguments) {
  PyObject* tensor;
  Py_ssize_t nodes;
  if (!PyArg_ParseTuple(arguments, "On", &tensor, &nodes)) return nullptr;
  return PyBool_FromLong(nodes >= 0 && watch_next(tensor, static_cast<size_t>(nodes)));
}

}  // namespace adbg
