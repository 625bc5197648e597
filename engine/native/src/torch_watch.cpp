#include "torch_watch.h"

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "layouts.h"
#include "torch_engine.h"
#include "torch_nodes.h"
#include "torch_norms.h"
#include "torch_screen.h"
#include "torch_tensors.h"

namespace adbg {
namespace {

PyObject* hand_over_to = nullptr;

class Watch final : public Followed {
 public:
  void begins(NodeRun& run, Tensors* gradients) override {
    if (over_.load(std::memory_order_relaxed)) return;
    // The script's hooks may change what flows in, or see what flows out: those of adbg's stand behind them.
    if (!gradients || others_hook(run.node, nullptr)) return hand_over();
    if (!only_torch(run.node, nullptr)) norms().clear();
    if (!norms().all_finite(*gradients)) return hand_over();
    // For the evidence, as a node with a hook behind it keeps them. An accumulate node takes what nobody else holds.
    if (sequence_of(run.node) != UINT64_MAX) keep_tensors(*gradients, run.kept);
  }

  void gave(NodeRun& run, Tensors& gradients) override {
    if (!over_.load(std::memory_order_relaxed) && !norms().all_finite(gradients)) {
      const bool hooked = screened_after(run.node);
      hand_over();
      // The engine would call a hook that came while the node ran without what flowed in.
      if (!hooked && screened_after(run.node)) {
        Tensors given = ask_after(gradients, run.kept);
        screen_take(run.node);
        gradients.swap(given);
        drop_tensors(given);
      }
    }
    drop_tensors(run.kept);
  }

  void left(NodeRun& run) override {
    if (!only_torch(run.node, nullptr)) norms().clear();
  }

 private:
  void hand_over() {
    if (over_.exchange(true) || python_is_ending()) return;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject* function = hand_over_to;
    Py_INCREF(function);  // another thread may set another one meanwhile
    PyObject* answer = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (!answer) {
      if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // the program's next line raises it
      PyErr_Clear();
    }
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

bool watch_next(PyObject* tensor) {
  if (!hand_over_to || !engine_on() || !inputs_known() || !tensors_kept() || !screen_ready()) return false;
  void* impl = tensor_behind(tensor);
  if (!impl || !is_plain(impl)) return false;
  try {
    follow_next(std::make_shared<Watch>());
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

PyObject* torch_watch_next(PyObject*, PyObject* tensor) { return PyBool_FromLong(watch_next(tensor)); }

}  // namespace adbg
