#include "paddle.h"

namespace adbg {

PyMethodDef paddle_methods[] = {{nullptr, nullptr, 0, nullptr}};

void paddle_restore() {}

}  // namespace adbg
