// Relocation slots: where loaded libraries keep the addresses of functions that they call in others (or in themselves,
// where the symbol is exported and can be interposed).
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

namespace adbg {

struct Slot {
  void** at;
  bool relro;  // the loader made its page read-only after it had relocated it
  std::string library;
};

// Every JUMP_SLOT and GLOB_DAT of `symbol` in libraries whose path contains one of `libraries` (nullptr ends the list).
std::vector<Slot> find_slots(const char* symbol, const char* const* libraries);

// The address of `symbol` in a library that is loaded already, also one opened RTLD_LOCAL. nullptr where there is none.
void* find_symbol(const char* symbol, const char* const* libraries);

// One function of the framework's, and ours that stands in for it. Its slots are found once; `put` and `restore` may be
// called while other threads call the function: a slot is one aligned word, written atomically.
class Interposed {
 public:
  Interposed(const char* symbol, void* ours) : symbol_(symbol), ours_(ours) {}

  // False, with `why` set, where the symbol or its slots are missing. Writes nothing.
  bool find(const char* const* libraries, std::string& why);
  // All slots or none: what was written already is put back when one page cannot be made writable.
  bool put(std::string& why);
  void restore();

  const char* symbol() const { return symbol_; }
  void* real() const { return real_; }
  bool on() const { return on_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  const char* symbol_;
  void* ours_;
  void* real_ = nullptr;
  bool on_ = false;
  std::vector<Slot> slots_;
  std::vector<void*> were_;  // what stood in each slot before ours
};

}  // namespace adbg
