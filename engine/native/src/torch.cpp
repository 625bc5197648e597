#include "torch.h"

namespace adbg {

PyMethodDef torch_methods[] = {{nullptr, nullptr, 0, nullptr}};

void torch_restore() {}

}  // namespace adbg
