// Reading memory whose layout is only assumed: a wrong address is an answer, never a fault.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace adbg {

// False where not all of it can be read. A system call (0.3 us): for checks, not for every node.
inline bool read_safely(const void* from, void* into, size_t bytes) {
  iovec local{into, bytes}, remote{const_cast<void*>(from), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

// A text that ends within `bytes`, or is cut there: what lies behind it may be nobody's.
inline bool read_text(const char* from, char* into, size_t bytes) {
  size_t at = 0;
  for (; at + 1 < bytes; at += 8) {
    const size_t piece = bytes - 1 - at < 8 ? bytes - 1 - at : 8;
    if (!read_safely(from + at, into + at, piece)) return at > 0;
    for (size_t i = at; i < at + piece; i++)
      if (!into[i]) return true;
  }
  return true;
}

template <class T>
T& at_offset(void* base, int offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

}  // namespace adbg
