// Three functions of torch's engine that are ours while a backward is followed: each node is seen as it begins, as its
// own work is done and as it is left, whether or not it has hooks.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>

#include "ticks.h"
#include "torch_norms.h"
#include "torch_tensors.h"

namespace adbg {

class Followed;

// A node that runs, on the stack of its thread.
struct NodeRun {
  void* node;
  Followed* followed;  // nullptr: of a backward that is not followed
  NodeRun* outer;
  uint64_t begin = 0, end = 0;  // see ticks.h; `end` is earlier by what the thread stood at stops meanwhile
  uint64_t stood = 0;           // what it had stood there as the node began
  Norms* norms = nullptr;     // what the backwards of this thread read: see torch_norms.h
  Figure figure{};
  Kept kept{};                // gradients that flowed into it
  void* const* raw = nullptr;  // where those gradients lie, as far as it is known
  uint16_t thread = 0;        // a small number of this thread's
  bool whole = false;         // its function returned
  bool only_torch = false;    // of its type nothing but torch's own C++ runs, whose changes in place are counted; and no hook
  bool hooked = false;        // a hook of ours is in its list while it runs
  std::shared_ptr<Followed> held{};  // `followed`, where a nested backward has put another one in its thread's place

  void starts() {
    stood = ticks_stood();
    begin = ticks();
  }
  void stops() { end = ticks() - (ticks_stood() - stood); }
};

// One backward that is followed. Called on the engine's threads, without the GIL.
class Followed : public std::enable_shared_from_this<Followed> {
 public:
  virtual ~Followed() = default;
  // It is about to run. `gradients`: what flows into it, before any hook; nullptr where that is not known (yet).
  virtual void begins(NodeRun& run, Tensors* gradients) = 0;
  // Its own work is done; its gradients are neither checked by torch nor seen by its hooks.
  virtual void worked(NodeRun&) {}
  // They are checked and are as its hooks will find them.
  virtual void gave(NodeRun&, Tensors&) {}
  // All of it is done, or an exception leaves it.
  virtual void left(NodeRun&) {}
};
using Follow = std::shared_ptr<Followed>;

// Of the node that runs on this thread; nullptr outside of a backward that is followed.
NodeRun* running();

// The next backward that this thread begins is followed by this one; nullptr: by nobody.
void follow_next(Follow followed);
// Nothing of it is followed any more, where it did not begin.
void follow_over(const Follow& followed);

// Told by hooks what they were given: it shows where the gradients lie that `Followed::begins` is handed.
void learn_inputs(const Tensors& gradients);
bool inputs_known();

// "" or why not. `engine_follow_none` puts back what only followed backwards need; `engine_restore` everything: any
// thread, also without Python.
bool engine_find(std::string& why);
bool engine_put(std::string& why);
bool engine_on();
void engine_follow_none();
void engine_restore();

// From here on the node is known whose exception left a backward, whether or not the backward is followed.
bool failures_put(std::string& why);
// The last of them since `failed_forget`, or nullptr. An address alone: it may be gone.
void* failed_node();
void failed_forget();
// In a forked child: calls of other threads never end.
void engine_abandon();
// [(symbol, whether it is interposed now, slots)]
PyObject* engine_interposed();

}  // namespace adbg
