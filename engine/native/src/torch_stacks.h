// The stacks of torch's nodes.
#pragma once

#include <cstdint>

namespace adbg {

// The number of the stack of a node that is alive; 0 where it has none.
uint32_t stack_number(void* node);

}  // namespace adbg
