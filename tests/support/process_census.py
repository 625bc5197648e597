"""All that a library could have changed in a Python process, taken from inside it, and what differs between two such
lists. Not by adbg's own word: by /proc, the interpreter, and the identity of every attribute of the framework."""

from __future__ import annotations

import atexit
import collections
import contextlib
import faulthandler
import gc
import os
import random
import signal
import socket
import sys
import threading
import types
import warnings
from typing import Any

Facts = dict[str, Any]


def take(framework: str = "") -> Facts:
    """``framework``: "torch" or "paddle", whose modules and classes are looked at too."""
    facts: Facts = {}
    facts.update(_of_the_system())
    facts.update(_of_the_interpreter())
    if framework:
        facts.update(_of_attributes(framework))
        facts.update(_of_torch() if framework == "torch" else _of_paddle())
    return facts


def differences(before: Facts, after: Facts) -> list[str]:
    """One line each. A module that came whole is one line, its attributes are not listed."""
    found = []
    for name in sorted({**before, **after}):
        if name.startswith("attributes of ") and not (name in before and name in after):
            continue
        old, new = before.get(name, "(absent)"), after.get(name, "(absent)")
        if isinstance(old, dict) and isinstance(new, dict):
            for key in sorted({**old, **new}, key=str):
                if old.get(key, "(absent)") != new.get(key, "(absent)"):
                    found.append(
                        f"{name}: {key}: {_short(old.get(key, '(absent)'))} -> {_short(new.get(key, '(absent)'))}"
                    )
        elif old != new:
            found.append(f"{name}: {_short(old)} -> {_short(new)}")
    return found


class Same:
    """Compared by identity, and kept alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self.value).__name__} {_short(self.value)}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: {error}>"
    return text if len(text) < 200 else text[:200] + "..."


def lines_of(name: str) -> list[str]:
    """Of this process's /proc."""
    with open(f"/proc/self/{name}") as file:
        return file.read().splitlines()


def _of_the_system() -> Facts:
    facts: Facts = {}
    tasks = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that ends meanwhile
            tasks += lines_of(f"task/{task}/comm")[:1]
    facts["system threads"] = sorted(tasks)
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            facts[f"descriptor {number}"] = os.readlink(f"/proc/self/fd/{number}")
    mapped = collections.Counter()
    for line in lines_of("maps"):
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            mapped[words[5].strip() + " " + words[1]] += 1
        elif len(words) < 6 and "x" in words[1]:
            mapped["anonymous memory that can be executed"] += 1
        elif len(words) < 6 and "s" in words[1]:
            mapped["shared memory"] += 1
    facts.update({f"mapped {name}": count for name, count in mapped.items()})
    for line in lines_of("status"):
        if line.startswith(("SigCgt", "SigIgn", "SigBlk", "TracerPid", "Umask", "Seccomp", "NoNewPrivs")):
            name, value = line.split()[:2]
            # The C library takes signals 32 and 33 for itself as the first thread is made.
            facts["status " + name] = f"{int(value, 16) & ~(3 << 31):x}" if name.startswith("Sig") else value
    facts["environment"] = dict(os.environ)
    facts["folder"] = os.getcwd()
    return facts


def _of_the_interpreter() -> Facts:
    facts: Facts = {}
    for name in ("breakpointhook", "excepthook", "displayhook", "unraisablehook", "stdin", "stdout", "stderr",
                 "__stdout__", "__stderr__"):  # fmt: skip
        facts["sys." + name] = Same(getattr(sys, name))
    for name in ("stdout", "stderr"):
        buffer = getattr(getattr(sys, name), "buffer", None)
        facts[f"sys.{name}.buffer"] = Same(buffer)
        facts[f"sys.{name}.buffer.raw"] = Same(getattr(buffer, "raw", None))
    facts["sys attributes"] = sorted(vars(sys))
    facts["builtins"] = {name: Same(value) for name, value in vars(__import__("builtins")).items() if name != "_"}
    facts["sys.path"] = list(sys.path)
    facts.update({f"read folder {folder}": True for folder in sys.path_importer_cache})
    facts["sys.path_hooks"] = [Same(hook) for hook in sys.path_hooks]
    facts["sys.meta_path"] = [Same(finder) for finder in sys.meta_path]
    facts.update({f"module {name}": True for name in sys.modules})
    facts["trace and profile"] = [Same(sys.gettrace()), Same(sys.getprofile())]
    facts["threading's"] = [Same(getattr(threading, n, None)) for n in ("_trace_hook", "_profile_hook", "excepthook")]
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        facts["monitoring"] = [monitoring.get_tool(number) for number in range(6)]
    facts["switch interval"] = sys.getswitchinterval()
    facts["recursion limit"] = sys.getrecursionlimit()
    facts["threads"] = sorted(thread.name for thread in threading.enumerate())
    facts["gc"] = (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count())
    facts["gc.callbacks"] = [Same(callback) for callback in gc.callbacks]
    facts["signal handlers"] = {int(n): Same(signal.getsignal(n)) for n in signal.valid_signals()}
    facts["faulthandler"] = faulthandler.is_enabled()
    facts["warnings"] = (list(map(Same, warnings.filters)), Same(warnings.showwarning))
    facts["atexit"] = atexit._ncallbacks()
    facts["socket time-out"] = socket.getdefaulttimeout()
    facts["random"] = random.getstate()
    for name in ("traceback", "linecache", "threading", "socket", "os", "io", "atexit", "signal", "subprocess"):
        module = sys.modules.get(name)
        if module is not None:
            for key, value in list(vars(module).items()):
                if callable(value):
                    facts[f"{name}.{key}"] = Same(value)
    return facts


def _of_attributes(framework: str) -> Facts:
    """Every attribute of every module and class of the framework, by identity."""
    facts: Facts = {}
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in (framework, "numpy") or not isinstance(module, types.ModuleType):
            continue
        held = facts[f"attributes of {name}"] = {}
        for key, value in list(vars(module).items()):
            if key not in ("__warningregistry__", "__builtins__"):
                held[key] = Same(value)
            if isinstance(value, type) and id(value) not in seen:
                seen.add(id(value))
                for attribute, inside in list(vars(value).items()):
                    if attribute != "__abstractmethods__":
                        held[f"{key}.{attribute}"] = Same(inside)
    return facts


def _of_torch() -> Facts:
    import torch

    hooks = torch.nn.modules.module
    return {
        "torch modes": (
            torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(),
            torch._C.is_anomaly_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
            torch.autograd._profiler_enabled(), torch.is_autocast_enabled("cpu"),
        ),
        "torch global hooks": {
            name: list(map(id, held)) for name, held in vars(hooks).items() if name.startswith("_global_") and held
        },
        "torch engine": Same(torch.autograd.Variable._execution_engine),
    }  # fmt: skip


def _of_paddle() -> Facts:
    import paddle
    from paddle.base import core

    flags = core.globals()
    return {
        "paddle flags": {name: flags[name] for name in list(flags.keys())},
        "paddle modes": (core._has_grad(), paddle.get_default_dtype(), paddle.in_dynamic_mode(), paddle.get_device()),
    }


def objects() -> collections.Counter[str]:
    """Objects that the collector tracks, by type."""
    gc.collect()
    return collections.Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def resident() -> int:
    """Bytes."""
    return int(lines_of("statm")[0].split()[1]) * os.sysconf("SC_PAGE_SIZE")
