"""Functions by address, against nm, c++filt and a library of our own whose local functions have no symbols."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from adbg.profiles.report.symbols import demangle
from adbg.profiles.report.symbols.elf import build_id, functions
from adbg.profiles.report.symbols.resolve import Mapping, Resolver

needs_binutils = pytest.mark.skipif(not shutil.which("nm"), reason="nm (binutils) is not installed")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("strip")), reason="gcc and binutils are not installed"
)

SOURCE = """
__attribute__((noinline)) int first_public(int x) { return x * 3 + 1; }
__attribute__((noinline)) static int hidden(volatile int *x) { *x += 7; return *x * 5; }
__attribute__((noinline)) int last_public(int x) { volatile int y = x; return hidden(&y) + first_public(y); }
"""
Library = tuple[Path, dict[str, int]]


def nm(path: Path, *options: str) -> dict[str, int]:
    """{name: address} of the functions that nm knows."""
    command = ["nm", *options, "--defined-only", str(path)]
    rows = map(str.split, subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3 and row[1] in "tTwWi"}


def libpython() -> Path:
    for name in (sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LDLIBRARY")):
        path = Path(str(sysconfig.get_config_var("LIBDIR"))) / str(name)
        if path.suffix != ".a" and path.is_file():
            return path.resolve()
    return Path(str(sysconfig.get_config_var("BINDIR"))).joinpath("python3").resolve()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A stripped library, and its functions before that."""
    folder = tmp_path_factory.mktemp("elf")
    (folder / "three.c").write_text(SOURCE)
    path = folder / "libthree.so"
    command = [
        "gcc",
        "-O1",
        "-fno-toplevel-reorder",
        "-fPIC",
        "-shared",
        "-Wl,--build-id",
        "-o",
        str(path),
        str(folder / "three.c"),
    ]
    subprocess.run(command, check=True, timeout=60)
    known = nm(path)
    subprocess.run(["strip", str(path)], check=True, timeout=60)
    return path, known


def mapped(library: Library, base: int) -> tuple[Mapping, dict[str, int]]:
    """A mapping of its code at ``base``, and where its functions are then."""
    path, known = library
    code = known["last_public"]
    offset, size, address = next(row for row in functions(path).segments if row[2] <= code < row[2] + row[1])
    return Mapping(base, base + size, offset, str(path)), {name: base + at - address for name, at in known.items()}


@needs_binutils
def test_every_function_of_libpython_has_the_name_that_nm_gives() -> None:
    path = libpython()
    known = nm(path) or nm(path, "-D")
    table = functions(path)
    names: dict[int, set[str]] = {address: set() for address in known.values()}
    for name, address in known.items():
        names[address].add(name.partition("@")[0])
    sample = random.Random(0).sample(sorted(names), min(2000, len(names)))
    found = {address: table.name(address) for address in sample}
    assert not {address: name for address, name in found.items() if name and name not in names[address]}
    assert sum(map(bool, found.values())) > 0.98 * len(sample), "all but labels within functions, which have no size"


@needs_compiler
def test_a_local_function_is_not_given_to_its_neighbour(library: Library) -> None:
    path, known = library
    assert known["first_public"] < known["hidden"] < known["last_public"]
    table = functions(path)
    for name in ("first_public", "last_public"):
        assert table.name(known[name]) == table.name(known[name] + 2) == name
    assert table.name(known["hidden"] + 3) == ""
    assert table.begin(known["hidden"] + 3) == known["hidden"]


@needs_compiler
def test_counters_of_a_process_are_found_in_its_files(library: Library, tmp_path: Path) -> None:
    mapping, at = mapped(library, 0x7F0000000000)
    resolver = Resolver([mapping, Mapping(0x1000, 0x2000, 0, "")], tmp_path)
    found = resolver.locate([*at.values(), at["hidden"] + 4, 0x1500, 0x9999])
    assert (found[at["first_public"]].name, found[at["first_public"]].module) == ("first_public", "libthree.so")
    assert found[at["hidden"]].name == "" and found[at["hidden"]].offset == found[at["hidden"] + 4].offset
    assert found[0x1500].module == "[jit]" and found[0x9999].module == ""
    assert not resolver.notes


@needs_compiler
def test_names_are_kept_by_build_id(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping, at = mapped(library, 0x10000)
    counter = at["last_public"]

    def named(cache: Path) -> str:
        return Resolver([mapping], cache).locate([counter])[counter].name

    assert named(tmp_path) == "last_public"
    kept = tmp_path / f"{build_id(library[0])}.json"
    assert kept.is_file()
    with monkeypatch.context() as patch:
        patch.setattr("adbg.profiles.report.symbols.resolve.functions", lambda path: pytest.fail("read again"))
        assert named(tmp_path) == "last_public"
    kept.write_text("{cut o")
    assert named(tmp_path) == "last_public", "a damaged one is made anew"
    unwritable = tmp_path / "file"
    unwritable.write_text("")
    assert named(unwritable) == "last_public"


@needs_compiler
def test_the_build_id_is_what_readelf_says(library: Library) -> None:
    said = subprocess.run(["readelf", "-n", str(library[0])], capture_output=True, text=True, check=True).stdout
    assert f"Build ID: {build_id(library[0])}\n" in said


def test_what_is_gone_or_no_library_is_told(tmp_path: Path) -> None:
    one, other = tmp_path / "libx.so", tmp_path / "liby.so"
    one.write_text("no ELF")
    resolver = Resolver([Mapping(0x1000, 0x2000, 0, str(one)), Mapping(0x3000, 0x4000, 0, str(other))], tmp_path / "c")
    found = resolver.locate([0x1004, 0x3004])
    assert [found[0x1004].module, found[0x3004].module] == ["libx.so", "liby.so"]
    assert len(resolver.notes) == 2 and "not a 64-bit" in resolver.notes[0] and "No such file" in resolver.notes[1]


@needs_compiler
def test_a_file_that_was_replaced_gives_no_names(library: Library, tmp_path: Path) -> None:
    """The functions of the library of today would be told for those of the one that was profiled."""
    path = tmp_path / "libthree.so"
    shutil.copy2(library[0], path)
    plain, at = mapped(library, 0x10000)
    file = path.stat()
    device = (os.major(file.st_dev), os.minor(file.st_dev))
    mapping = plain._replace(path=str(path), device=device, inode=file.st_ino)
    counter = at["last_public"]

    def named(mapping: Mapping) -> tuple[str, list[str]]:
        resolver = Resolver([mapping], tmp_path / "names", until=file.st_mtime + 5)
        return resolver.locate([counter])[counter].name, resolver.notes

    assert named(mapping) == ("last_public", [])
    os.utime(path, (file.st_mtime + 9,) * 2)
    name, notes = named(mapping)
    assert name == "" and "written again" in notes[0]
    other = tmp_path / "other.so"
    shutil.copy2(library[0], other)
    os.replace(other, path)  # another file, as old as the first
    name, notes = named(mapping)
    assert name == "" and "another one" in notes[0]
    assert named(mapping._replace(device=(250, 250)))[0] == "last_public", "a device that stat knows by another number"


NAMES = ["_ZN2at6native3addERKNS_6TensorES3_", "_ZNSt6vectorIiSaIiEE9push_backERKi", "main", "_Znot_a_name", "_Z1fv"]


@pytest.mark.skipif(not shutil.which("c++filt"), reason="c++filt (binutils) is not installed")
def test_names_are_demangled_with_and_without_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = subprocess.run(["c++filt", *NAMES], capture_output=True, text=True, check=True).stdout.splitlines()
    assert list(demangle.demangled(NAMES).values()) == wanted
    assert wanted[0] == "at::native::add(at::Tensor const&, at::Tensor const&)"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert list(demangle.demangled(NAMES).values()) == wanted

    def none(name: Any) -> None:
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", none)
    assert list(demangle.demangled(NAMES).values()) == NAMES
