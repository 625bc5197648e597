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

template <class T>
T& at_offset(void* base, int offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

}  // namespace adbg
