"""Watching an import: told once and in time, and the import is what it would have been."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adbg.engine.agent.import_watch import ImportWatcher, watch

Modules = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """Writes an importable module of a name that nobody has."""
    finders, names = list(sys.meta_path), []
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str = "value = 1", name: str = "") -> str:
        name = name or f"watched_{tmp_path.name}_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    yield write
    sys.meta_path[:] = finders
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]


def watchers() -> list[Any]:
    return [finder for finder in sys.meta_path if isinstance(finder, ImportWatcher)]


def test_called_once_when_the_module_is_complete(module: Modules) -> None:
    name, seen = module("value = 1\nlast = 2"), []
    watch({name: lambda: seen.append(sys.modules[name].last)})
    assert seen == [] and len(watchers()) == 1
    imported = importlib.import_module(name)
    assert seen == [2] and watchers() == []
    importlib.reload(imported)
    importlib.import_module(name)
    assert seen == [2]


def test_called_at_once_when_imported_already(module: Modules) -> None:
    name, seen = module(), []
    importlib.import_module(name)
    watch({name: lambda: seen.append(1)})
    assert seen == [1] and watchers() == []


def test_nothing_about_the_module_changes(module: Modules) -> None:
    name = module("value = 1\ndef f(): return 5\n")
    plain = importlib.import_module(name)
    del sys.modules[name]
    watch({name: lambda: None})
    ours = importlib.import_module(name)
    assert type(ours.__loader__) is type(plain.__loader__) is SourceFileLoader
    assert ours.__spec__ is not None and ours.__spec__.loader is ours.__loader__
    assert set(vars(ours.__loader__)) == set(vars(plain.__loader__))
    assert sorted(vars(ours)) == sorted(vars(plain))
    assert "return 5" in inspect.getsource(ours.f)


def test_other_imports_pass_by(module: Modules) -> None:
    name, other = module(), module()
    watch({name: lambda: None})
    assert watchers()[0].find_spec(other) is None
    assert importlib.import_module(other).value == 1
    assert len(watchers()) == 1


def test_several_names_and_several_watches(module: Modules) -> None:
    one, two, seen = module(), module(), []
    watch({one: lambda: seen.append("one"), two: lambda: seen.append("two")})
    watch({one: lambda: seen.append("one again")})
    importlib.import_module(two)
    importlib.import_module(one)
    assert sorted(seen) == ["one", "one again", "two"] and watchers() == []
    assert "exec_module" not in vars(sys.modules[one].__loader__)


def test_find_spec_does_not_fire(module: Modules) -> None:
    """What ``is_torch_available()`` of many libraries does."""
    name, seen = module(), []
    watch({name: lambda: seen.append(1)})
    spec = importlib.util.find_spec(name)
    assert spec is not None and isinstance(spec.loader, SourceFileLoader) and seen == []
    importlib.import_module(name)
    assert seen == [1]


def test_spec_executed_by_hand(module: Modules) -> None:
    name, seen = module(), []
    watch({name: lambda: seen.append(1)})
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    assert seen == [1]


def test_lazy_loader(module: Modules) -> None:
    name, seen = module(), []
    watch({name: lambda: seen.append(1)})
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    assert seen == []
    assert made.value == 1 and seen == [1]


def test_failing_import_is_watched_again(module: Modules, tmp_path: Path) -> None:
    name, seen = module("raise ImportError('no libcuda')"), []
    watch({name: lambda: seen.append(1)})
    for _ in range(2):
        with pytest.raises(ImportError, match="no libcuda"):
            importlib.import_module(name)
        assert name not in sys.modules and seen == []
    module("value = 'fixed now'", name)
    assert importlib.import_module(name).value == "fixed now" and seen == [1]


def test_missing_module(module: Modules) -> None:
    watch({"watched_but_not_there": lambda: None})
    with pytest.raises(ModuleNotFoundError, match="No module named 'watched_but_not_there'"):
        importlib.import_module("watched_but_not_there")
    assert importlib.util.find_spec("watched_but_not_there") is None


def test_submodule_first(module: Modules, tmp_path: Path) -> None:
    name, seen = module(), []
    (tmp_path / f"{name}.py").unlink()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("ready = True")
    (tmp_path / name / "sub.py").write_text(f"import {name}; assert {name}.ready")
    importlib.invalidate_caches()
    watch({name: lambda: seen.append(f"{name}.sub" in sys.modules)})
    importlib.import_module(f"{name}.sub")
    assert seen == [False]  # right after the package itself


def test_folder_of_that_name_is_not_it(module: Modules, tmp_path: Path) -> None:
    """A bare folder ``torch/`` beside the script: imported as ever, and the real one is still waited for."""
    name, seen = module(), []
    (tmp_path / f"{name}.py").unlink()
    (tmp_path / name).mkdir()
    importlib.invalidate_caches()
    watch({name: lambda: seen.append(1)})
    folder = importlib.import_module(name)
    assert folder.__file__ is None and str(tmp_path / name) in list(folder.__path__) and seen == []
    assert len(watchers()) == 1


def test_from_a_zip(module: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loader object for the whole archive: another module of it must not fire."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("zipped_one.py", "value = 1")
        archive.writestr("zipped_two.py", "value = 2")
    monkeypatch.syspath_prepend(str(tmp_path / "a.zip"))
    seen: list[str] = []
    watch({"zipped_one": lambda: seen.append("one")})
    assert importlib.util.find_spec("zipped_one") is not None
    assert importlib.import_module("zipped_two").value == 2 and seen == []
    assert importlib.import_module("zipped_one").value == 1 and seen == ["one"]
    for name in ("zipped_one", "zipped_two"):
        del sys.modules[name]


def test_loader_that_takes_no_attribute(module: Modules) -> None:
    class Frozen:
        __slots__ = ()

        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, made: ModuleType) -> None:
            made.value = 7  # type: ignore[attr-defined]

        def extra(self) -> str:
            return "its own"

    class Finder:
        @staticmethod
        def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
            return importlib.util.spec_from_loader(fullname, Frozen()) if fullname == "watched_frozen" else None  # type: ignore[arg-type]

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    seen: list[int] = []
    watch({"watched_frozen": lambda: seen.append(1)})
    spec: Any = importlib.util.find_spec("watched_frozen")
    assert spec.loader.extra() == "its own"
    made = importlib.import_module("watched_frozen")
    assert made.value == 7 and seen == [1]
    assert type(made.__loader__) is Frozen and made.__spec__ is not None and type(made.__spec__.loader) is Frozen
    del sys.modules["watched_frozen"]


def test_callback_that_raises(
    module: Modules, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module()
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    watch({name: lambda: 1 / 0})  # type: ignore[arg-type, return-value]
    assert importlib.import_module(name).value == 1
    assert capsys.readouterr().err == f"adbg: not watching {name}: ZeroDivisionError: division by zero\n"


def test_callback_may_wait_for_a_thread_that_imports_it(module: Modules) -> None:
    """The agent waits for its client inside the callback, while its reader thread uses the framework."""
    name, seen = module(), []

    def callback() -> None:
        reader = threading.Thread(target=lambda: seen.append(importlib.import_module(name).value), daemon=True)
        reader.start()
        reader.join(10)
        seen.append("waited")

    watch({name: callback})
    importlib.import_module(name)
    assert seen == [1, "waited"]


def test_many_threads_import_at_once(module: Modules) -> None:
    name, seen = module("import time; time.sleep(0.05); value = 1"), []
    watch({name: lambda: seen.append(1)})
    start = threading.Barrier(8)
    values: list[int] = []

    def load() -> None:
        start.wait()
        values.append(importlib.import_module(name).value)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert values == [1] * 8 and seen == [1]


def test_import_under_way_on_another_thread(module: Modules) -> None:
    """``adbg attach`` may come in the middle of ``import torch``."""
    gate, inside, fired = threading.Event(), threading.Event(), threading.Event()
    sys.modules["watched_gate"] = ModuleType("watched_gate")
    sys.modules["watched_gate"].gate, sys.modules["watched_gate"].inside = gate, inside  # type: ignore[attr-defined]
    name = module("import watched_gate\nwatched_gate.inside.set()\nassert watched_gate.gate.wait(30)\nlast = 1")
    seen = []
    importer = threading.Thread(target=importlib.import_module, args=(name,))
    importer.start()
    assert inside.wait(30)
    watch({name: lambda: (seen.append(sys.modules[name].last), fired.set())[0]})
    assert not fired.wait(0.1)
    gate.set()
    importer.join(30)
    assert fired.wait(30) and seen == [1]
    del sys.modules["watched_gate"]
