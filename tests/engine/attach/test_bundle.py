"""What an attached process loads adbg from: complete, unlike nothing else, and never a must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.late import ATTACH, Session, leave
from support.patience import patience

from adbg.engine.attach import bundle
from adbg.engine.protocol.rendezvous import CODE

LIMIT = 60.0
CLOSURE = """
import sys
before = set(sys.modules)
import adbg.engine.agent.arrival
for name in sorted(set(sys.modules) - before):
    module = sys.modules[name]
    spec = vars(module).get("__spec__")
    loader = type(spec.loader).__name__ if spec else ""
    if loader in ("SourceFileLoader", "ExtensionFileLoader") and not name.startswith(("adbg", "__editable__")):
        print(name)
"""

#: Attached to, it tells of each module that is new what PathFinder finds under the same name, beside what it is.
TELLS = """
import sys, json
namespace = {"__name__": "adbg.engine.bootstrap.attach"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), namespace)
before = set(sys.modules)
calls = []
sys.addaudithook(lambda event, arguments: calls.append(str(arguments[0])) if event == "open" else None)
namespace["begin"](sys.argv[2])
sys.stdin.readline()
opened = list(calls)
from importlib.machinery import PathFinder
def facts(spec):
    return [spec.name, spec.origin, spec.cached, type(spec.loader).__name__, getattr(spec.loader, "path", None),
            sorted(vars(spec.loader)), spec.submodule_search_locations and list(spec.submodule_search_locations)]
differ = []
new = [name for name in list(sys.modules) if name not in before]
for name in new:
    module, parent = sys.modules[name], name.rpartition(".")[0]
    spec = vars(module).get("__spec__")
    if name in ("adbg", "adbg.engine") or spec is None or spec.origin in (None, "built-in", "frozen"):
        continue
    found = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
    places = module.__file__, getattr(module, "__cached__", None)
    if facts(found) != facts(spec) or places != (found.origin, found.cached):
        differ.append([facts(found), facts(spec)])
print(json.dumps({"differ": differ, "new": new, "opened": opened}))
"""


def attached(change: object = None) -> dict[str, list[str]]:
    """What a process tells of the modules that an attach brought; ``change`` is called with the bundle's path."""
    with Session() as session:
        bundle.write(session.file)
        if change is not None:
            change(session.file.with_name(CODE))  # type: ignore[operator]
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", TELLS, str(ATTACH), str(session.file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        peer = session.accept()
        peer.begin()
        leave(peer)
        out, err = process.communicate("\n", timeout=patience(LIMIT))
        assert process.returncode == 0 and err == "", err
        told: dict[str, list[str]] = json.loads(out)
        return told


def test_the_list_of_the_library_is_what_an_agent_imports() -> None:
    """Python's own word for it: what importing the agent adds to a process that has imported nothing."""
    found = subprocess.run([sys.executable, "-c", CLOSURE], capture_output=True, text=True, check=True).stdout.split()
    missing = [
        name for name in found if name not in bundle.LIBRARY and not name.startswith(("_sysconfigdata", "encodings"))
    ]
    assert found and not missing, f"add to bundle.LIBRARY: {missing}"


def test_modules_are_as_the_import_system_makes_them() -> None:
    """Their files are not opened, and afterwards nobody can tell."""
    told = attached()
    assert "adbg.engine.session.session" in told["new"] and "dataclasses" in told["new"]
    assert told["differ"] == []
    modules = [path for path in told["opened"] if path.endswith((".py", ".pyc")) and path != str(ATTACH)]
    assert [path for path in modules if "_sysconfigdata" not in path] == []  # its name is the platform's


@pytest.mark.parametrize("wrong", ["gone", "readable", "a link", "of another Python", "cut", "not this"])
def test_without_it_imports_are_as_ever(wrong: str, tmp_path: Path) -> None:
    def change(path: Path) -> None:
        data = path.read_bytes()
        if wrong == "readable":
            path.chmod(0o644)
        elif wrong == "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        elif wrong == "gone":
            path.unlink()
        else:
            spoilt = {
                "of another Python": b"xxxx" + data[4:],
                "cut": data[:100_000],
                "not this": data[:4] + b"i\0\0\0\0",
            }
            path.write_bytes(spoilt[wrong])

    told = attached(change)
    assert "adbg.engine.session.session" in told["new"] and told["differ"] == []
    assert any(path.endswith(("session.py", ".pyc")) for path in told["opened"])


def test_another_installation_of_the_library_is_not_used() -> None:
    """Its path is part of the file."""

    def change(path: Path) -> None:
        import marshal

        data = path.read_bytes()
        modules, version, _, library = marshal.loads(data[4:])
        path.write_bytes(data[:4] + marshal.dumps((modules, version, "/elsewhere/os.py", library)))

    told = attached(change)
    assert told["differ"] == []
    assert any("dataclasses" in path for path in told["opened"])
    assert not any("/session/session." in path for path in told["opened"])
