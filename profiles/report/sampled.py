"""What a sampled native stack was doing: computing, launching operators, running Python, or nothing that can be told.

By its innermost frames, outwards to the first one that is known. A function that is neither a kernel nor a part of the
dispatcher or of the interpreter (of torch's ``at::native``, of a library of the user's) computes or launches, and by
its name nobody can say which: it counts as unknown unless a kernel called it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from adbg.profiles.report.model import NATIVE, Frame
from adbg.profiles.report.phases import DATA, Phases


class Doing(str, enum.Enum):
    KERNEL = "kernel"
    SCHEDULING = "scheduling"  # the framework's own Python too
    DATA = "data"
    PYTHON = "python"
    UNKNOWN = "unknown"
    NONE = "none"  # of no step: imports, the interpreter's end, threads of a pool that spin


class _Kind(enum.Enum):
    KERNEL = 0
    LAUNCH = 1
    PYTHON = 2
    UNKNOWN = 3
    NEUTRAL = 4  # what called it decides: allocators, locks
    COPY = 5  # a kernel's, where an operator calls it
    IDLE = 6
    LOADING = 7


_LOADING = re.compile(
    r"^(PyImport_ImportModuleLevelObject|import_find_and_load|PyImport_Import\w*|call_init|_dl_init|_dl_fini|_dl_open|"
    r"dl_open_worker|dl_main|Py_FinalizeEx?|finalize_modules|__run_exit_handlers|Py_Initialize\w*|pymain_init)\b"
)
_IDLE = re.compile(r"^(blas_thread_server|gomp_(team_barrier|barrier|thread_start|sem)|do_(spin|wait)|kmp_|__kmp_)")
_IDLE_MODULES = re.compile(r"^lib(gomp|omp|iomp5)", re.I)
_NEUTRAL_MODULES = re.compile(r"^(lib(c|pthread|stdc\+\+|dl|ffi|tcmalloc\w*|jemalloc\w*)[-.]|ld-|\[vdso|\[kernel)")
_NEUTRAL = re.compile(r"^(operator (new|delete)|std::(?!__introsort|sort|__unguarded|__adjust_heap|__heap)|_ctypes_)")
_COPY = re.compile(r"^_*(memcpy|memset|memmove)")
_PYTHON_MODULES = re.compile(r"^(libpython|python\d?(\.\d+)?t?$)")
_PYTHON = re.compile(r"^_?Py[A-Z]\w+")
_DISPATCH = re.compile(
    r"^(c10::(?!function_ref|complex|Half|BFloat16)|at::(_ops|redispatch|detail|meta|impl|functorch|autocast|"
    r"Tensor\w*|ThreadLocal\w*|Context|Allocator)::(?!(serial_)?for_each)|"
    r"at::\(anonymous namespace\)::|torch::|THP\w+|pybind11::|egr::|paddle::|common::|"
    r"\w+_ad_func$|\w+GradNode::operator|phi::(Kernel(Impl|CallHelper|Context|Factory|Key|Result|Signature)|DenseTensor|"
    r"DDim|MetaTensor|InferMeta\w*|\w+InferMeta|TypeInfo\w*|memory_utils|DeviceContext|CPUContext|slice_ddim|make_ddim|TensorBase))"
)
_KERNEL_MODULES = re.compile(
    r"^(device|\[jit\]|lib(mkl|mklml|blas|openblas|dnnl|mkldnn|onednn|cublas|cudnn|cufft|nvrtc|xsmm|gomp|iomp5))", re.I
)
_KERNELS = re.compile(
    r"mkl_|_mkl|gemm|gemv|\bdnnl::|dnnl_|cpublas|vectorized_loop|VectorizedLoop|vectorized_(inner|outer)|"
    r"cpu_kernel|_kernel_impl|[kK]ernel(Impl|Functor)?[<(]|loop_2d_from_1d|parallel_for|Eigen::internal|"
    r"at::native::(DEFAULT|AVX2|AVX512)::|phi::funcs::|jit_avx|sgemm|__(svml|vml)|\bSleef|"
    r"TensorIteratorBase::(serial_)?for_each"
)
_ANONYMOUS = "(anonymous namespace)"


def is_kernel(frame: Frame) -> bool:
    """Whether a native function computes, and does not dispatch."""
    return frame.side == NATIVE and bool(_KERNEL_MODULES.match(frame.module) or _KERNELS.search(frame.name))


def function_of(name: str) -> str:
    """A demangled name without the type of what it returns and its arguments."""
    name = name.replace(_ANONYMOUS, "\0")
    depth = begin = 0
    for place, letter in enumerate(name):
        if letter == "<" and not name[:place].endswith("operator"):
            depth += 1
        elif letter == ">" and not name[:place].endswith(("operator", "-", "operator-")):
            depth -= 1
        elif letter == " " and depth == 0 and not name[begin:place].endswith("operator"):
            begin = place + 1
        elif letter == "(" and depth == 0 and place > begin:
            name = name[:place]
            break
    return name[begin:].replace("\0", _ANONYMOUS)


def _kind(frame: Frame) -> _Kind:
    if frame.side != NATIVE:
        return _Kind.LAUNCH if frame.origin == "framework" else _Kind.PYTHON
    name, module = function_of(frame.name), frame.module
    for kind, matches in (
        (_Kind.LOADING, _LOADING.match(name)),
        (_Kind.COPY, _COPY.match(name)),
        (_Kind.IDLE, _IDLE.match(name) or _IDLE_MODULES.match(module)),
        (_Kind.NEUTRAL, _NEUTRAL_MODULES.match(module) or _NEUTRAL.match(name)),
        (_Kind.LAUNCH, _DISPATCH.match(name)),
        (_Kind.KERNEL, is_kernel(frame)),
        (_Kind.PYTHON, _PYTHON_MODULES.match(module) or _PYTHON.match(name)),
    ):
        if matches:
            return kind
    return _Kind.UNKNOWN


class Stacks:
    """Asks each frame once."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._kinds = [_kind(frame) for frame in frames]
        self._framework = [frame.origin == "framework" for frame in frames]
        self._phases = Phases(frames)
        self._imports = [frame.file == "<frozen importlib._bootstrap>" for frame in frames]

    def of(self, stack: Sequence[int]) -> Doing:
        kinds = self._kinds
        if any(kinds[index] is _Kind.LOADING or self._imports[index] for index in stack):
            return Doing.NONE
        if self._phases.of(stack) == DATA:
            return Doing.DATA
        unknown = copies = False
        for index in reversed(stack):
            kind = kinds[index]
            if kind is _Kind.KERNEL or (copies and kind is _Kind.UNKNOWN and self._framework[index]):
                return Doing.KERNEL
            if kind is _Kind.IDLE and not unknown:
                return Doing.NONE
            if kind in (_Kind.LAUNCH, _Kind.PYTHON):
                return Doing.UNKNOWN if unknown else Doing.SCHEDULING if kind is _Kind.LAUNCH else Doing.PYTHON
            copies = copies or kind is _Kind.COPY
            unknown = unknown or kind is _Kind.UNKNOWN
        return Doing.UNKNOWN
