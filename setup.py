"""The optional extension; everything else is in pyproject.toml. ``ADBG_BUILD_NATIVE=0`` leaves it out, ``=sanitized``
builds it with the address and undefined-behaviour sanitizers."""

import glob
import os
import sys

from setuptools import Extension, setup

WANTED = os.environ.get("ADBG_BUILD_NATIVE", "1")
COMPILE = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g"]
extra = SANITIZED if WANTED == "sanitized" else []

native = Extension(
    "adbg._native",
    sources=sorted(glob.glob("engine/native/src/*.cpp")),
    depends=sorted(glob.glob("engine/native/src/*.h")),
    language="c++",
    extra_compile_args=COMPILE + extra,
    extra_link_args=extra,
    optional=True,  # without a compiler the Python hooks do everything
)
setup(ext_modules=[native] if WANTED != "0" and sys.platform == "linux" else [])
