#include "paddle_tensors.h"

#include <cmath>

#include "slots.h"

namespace adbg {

PaddleTensors paddle;

namespace {

const char* const kLibraries[] = {"libpaddle", "libphi", nullptr};

template <typename F>
bool symbol(F& function, const char* name, std::string& why) {
  function = reinterpret_cast<F>(find_symbol(name, kLibraries));
  if (!function) why = std::string("symbol not found: ") + name;
  return function != nullptr;
}

}  // namespace

bool PaddleTensors::find(std::string& why) {
  return symbol(is_initialized, "_ZNK6paddle6Tensor11initializedEv", why) &&
         symbol(is_dense, "_ZNK6paddle6Tensor15is_dense_tensorEv", why) &&
         symbol(is_cpu, "_ZNK6paddle6Tensor6is_cpuEv", why) &&
         symbol(is_contiguous, "_ZNK6paddle6Tensor13is_contiguousEv", why) &&
         symbol(numel, "_ZNK6paddle6Tensor5numelEv", why) && symbol(dtype, "_ZNK6paddle6Tensor5dtypeEv", why) &&
         symbol(dims, "_ZNK6paddle6Tensor4dimsEv", why) && symbol(strides, "_ZNK6paddle6Tensor7stridesEv", why) &&
         symbol(data, "_ZNK6paddle6Tensor4dataEv", why) && symbol(copy, "_ZN6paddle6TensorC1ERKS0_", why) &&
         symbol(destroy, "_ZN6paddle6TensorD1Ev", why) &&
         symbol(to_python, "_ZN6paddle6pybind10ToPyObjectERKNS_6TensorEb", why);
}

PaddleView PaddleTensors::view(const void* tensor) const {
  PaddleView view;
  if (!is_initialized(tensor)) return view;
  view.seen = PaddleView::other;
  if (!is_dense(tensor) || !is_cpu(tensor)) return view;
  view.count = numel(tensor);
  const int type = dtype(tensor);
  int kind = 0;
  while (kind < 4 && kinds[kind] != type) kind++;
  if (view.count <= 0) {
    view.count = 0;
    view.seen = PaddleView::floats;
    return view;
  }
  if (kind == 4) return view;
  view.kind = static_cast<Kind>(kind);
  view.data = data(tensor);
  view.together = is_contiguous(tensor);
  if (!view.together) {
    view.dims = dims(tensor);
    view.strides = strides(tensor);
    if (view.dims->rank < 1 || view.dims->rank > 9 || view.strides->rank != view.dims->rank) return view;
  }
  if (view.data) view.seen = PaddleView::floats;
  return view;
}

bool PaddleTensors::squares(const PaddleView& view, double& found, bool& bad) {
  found = 0;
  bad = false;
  if (view.seen != PaddleView::floats) return false;
  if (!view.count) return true;
  const int64_t *sizes = view.together ? nullptr : view.dims->values, *strides = view.together ? nullptr : view.strides->values;
  if (view.together) found = squares_of(view.kind, view.data, view.count);
  else if (!squares_strided(view.kind, view.data, sizes, strides, view.dims->rank, found)) return false;
  if (std::isfinite(found)) return true;
  if (view.together) bad = any_nonfinite(view.kind, view.data, view.count);  // else squares of doubles overflowed
  else any_nonfinite_strided(view.kind, view.data, sizes, strides, view.dims->rank, bad);
  return true;
}

}  // namespace adbg
