"""The extension for these tests: the one that lies in the tree, or one built into a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, run


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the extension for this Python."""
    if os.path.sep in os.environ.get("ADBG_NATIVE", ""):
        return Path(os.environ["ADBG_NATIVE"])
    in_tree = sorted((ROOT / "adbg").glob(f"_native.{sys.implementation.cache_tag}*.so"))
    if in_tree:
        return in_tree[0]
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.skip("adbg._native is not built, and there is no C++ compiler")
    folder = tmp_path_factory.mktemp("native")
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-temp", folder, "--build-lib", folder]
    done = run(build, cwd=ROOT, env={**os.environ, "ADBG_BUILD_NATIVE": "1"}, limit=110)
    found = sorted(folder.rglob("_native*.so"))
    assert done.status == 0 and found, str(done)
    return found[0]


@pytest.fixture(scope="session")
def core(extension: Path) -> Any:
    """The extension itself, in this process, beside whatever adbg uses here."""
    from adbg.engine.native import load

    return load.loaded(str(extension))


@pytest.fixture
def native(core: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The extension; every backend that is made here uses it, and leaves no hook of it in a node."""
    from adbg.engine.native import load

    assert load.check(core) == ""
    monkeypatch.setattr(load, "_answer", [(core, "")])
    yield core
    core.torch_stacks(False)
    assert core.torch_hooked(0) == 0
