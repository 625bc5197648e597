"""The layers at run time.

What an import pulls in, and what it costs is not paid twice. import-linter checks the source.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import ROOT, batch, run

ENGINE_MODULES = sorted(
    f"adbg.engine.{path.stem}" for path in (ROOT / "engine").glob("*.py") if path.stem != "__init__"
)
FRAMEWORKS = {"torch", "numpy", "paddle", "mindspore"}
CORE = {"textual", "rich", "prompt_toolkit", "pygments", "networkx", "psutil", "wcwidth"}
LIST_FOREIGN = (
    "import sys, json\n"
    "import {module}\n"
    "known = set(sys.stdlib_module_names) | set(sys.builtin_module_names) | {{'adbg', '__main__'}}\n"
    "tops = {{name.partition('.')[0] for name in sys.modules}}\n"
    "site = ('__editable__', '_distutils', '_virtualenv')\n"  # what the environment itself puts in
    "print(json.dumps(sorted(top for top in tops - known if not top.startswith(site))))\n"
)


def foreign_modules(module: str) -> set[str]:
    """Top-level modules outside the standard library that ``import module`` leaves in ``sys.modules``."""
    done = run([sys.executable, "-c", LIST_FOREIGN.format(module=module)])
    assert done.status == 0, str(done)
    return set(json.loads(done.stdout))


def test_import_adbg_is_standard_library_only() -> None:
    assert foreign_modules("adbg") == set()


def test_engine_is_standard_library_only() -> None:
    assert foreign_modules(", ".join(ENGINE_MODULES)) == set()


def test_import_adbg_stays_small() -> None:
    """Nothing of the engine, and none of the heavy parts of the standard library: a script pays for what it uses."""
    code = "import sys; before = set(sys.modules); import adbg; print(*sorted(set(sys.modules) - before))"
    loaded = run([sys.executable, "-c", code]).stdout.split()
    assert not {"asyncio", "json", "sqlite3", "socket", "subprocess", "inspect", "dataclasses"} & set(loaded), loaded
    assert not [name for name in loaded if name.startswith("adbg.")], loaded


def test_help_loads_no_screen() -> None:
    """``adbg --help`` answers without Textual, prompt_toolkit or networkx."""
    code = (
        "import sys\nfrom adbg.__main__ import main\nsys.argv = ['adbg', '--help']\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print('LOADED', *[n for n in sys.modules if '.' not in n])\n"
    )
    loaded = set(run([sys.executable, "-c", code]).stdout.rpartition("LOADED")[2].split())
    assert loaded
    assert not loaded & (CORE | FRAMEWORKS), loaded & (CORE | FRAMEWORKS)


def test_inside_a_program(tmp_path: Path) -> None:
    """Under ``adbg run`` a script that imports no framework finds none, and none of adbg's dependencies, in its
    process.
    """
    script = tmp_path / "modules.py"
    script.write_text("import sys\nprint(*{name.partition('.')[0] for name in sys.modules})\n")
    outcome = batch(str(script))
    assert outcome.status == 0, str(outcome)
    loaded = set(outcome.program_output.split())
    assert "sys" in loaded
    assert not loaded & (CORE | FRAMEWORKS), loaded & (CORE | FRAMEWORKS)
    assert not loaded & {"engine", "tui", "profiles"}


# ------------------------------------------------------------------ names


def python_files() -> Iterator[Path]:
    for folder in ("adbg", "engine", "tui", "profiles", "examples", ".ci"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not {"typing", "debuggees"} & set(path.relative_to(ROOT).parts):
            yield path


COMMANDS = (ROOT / "tests" / "stress", ROOT / "tests" / "bench")


def bare_imports(path: Path) -> list[str]:
    """Imports by a bare folder name, relative imports, and dynamic ones by such a name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            packaged = path.parent in COMMANDS  # `python -m tests.stress.attach`, and `stress.attach` for the tests
            names = ["." * node.level + (node.module or "")] if not (packaged and node.level == 1) else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
        found += [name for name in names if name.partition(".")[0] in ("engine", "tui", "profiles", "")]
    return found


def test_nothing_goes_by_a_bare_folder_name() -> None:
    offenders = {str(path.relative_to(ROOT)): bare_imports(path) for path in python_files()}
    assert not {path: names for path, names in offenders.items() if names}


@pytest.mark.parametrize("folder", ["adbg", "engine", "tui", "profiles"])
def test_modules_are_named_by_nouns(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert path.stem not in ("utils", "util", "helpers", "misc", "common", "tools"), path


@pytest.mark.parametrize("folder", ["adbg", "engine", "tui", "profiles"])
def test_every_module_says_what_it_owns(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, f"{path} has no docstring"
        assert len(text) >= 20, f"{path}: {text!r}"


def test_link_farm_points_into_the_tree() -> None:
    """What mypy and import-linter read is what is shipped."""
    farm = ROOT / "tests" / "typing" / "adbg"
    for name in ("engine", "tui", "profiles"):
        assert (farm / name).resolve() == ROOT / name
        assert not Path((farm / name).readlink()).is_absolute()
    assert {path.name for path in farm.iterdir()} - {"__pycache__"} == {"engine", "tui", "profiles"} | {
        path.name
        for path in (ROOT / "adbg").iterdir()
        if path.name != "__pycache__" and not path.name.startswith("_native.")  # built by make native
    }
