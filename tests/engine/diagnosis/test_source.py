"""What lines of a file are in, against a plain walk over its syntax tree and against what Python compiled."""

from __future__ import annotations

import ast
import inspect
import json.decoder
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import adbg.engine.session.session as of_adbg
from adbg.engine.diagnosis.source import function_named, nodes_of, scope_at
from adbg.engine.own_files import is_programs

_FILES = [inspect.__file__, json.decoder.__file__]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes(each)


@pytest.mark.parametrize("file", _FILES)
def test_the_innermost_function_of_every_line(file: str) -> None:
    text = Path(file).read_text()
    functions = [
        each for each in ast.walk(ast.parse(text)) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for line in range(1, len(text.splitlines()) + 1):
        around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
        wanted = min(around, key=lambda each: (each.end_lineno or 0) - each.lineno, default=None)
        found = scope_at(file, line)
        if wanted is None:
            assert isinstance(found, ast.Module), line
        else:
            assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)), line
            assert (found.name, found.lineno) == (wanted.name, wanted.lineno), line


@pytest.mark.parametrize("file", _FILES)
def test_the_function_of_every_code_object(file: str) -> None:
    every = _codes(compile(Path(file).read_text(), file, "exec"))
    known = [each for each in every if not each.co_name.startswith("<")]
    classes = {each.name for each in nodes_of(file) if isinstance(each, ast.ClassDef)}
    functions = [each for each in known if each.co_name not in classes]
    assert len(functions) > 5
    for code in functions:
        found = function_named(file, code.co_firstlineno)
        assert found is not None, code
        assert found.name == code.co_name, code


def test_a_file_that_is_none() -> None:
    assert nodes_of("<string>") == ()
    assert scope_at("<string>", 1) is None
    assert function_named("<string>", 1) is None


def test_neither_adbgs_nor_a_librarys(tmp_path: Path) -> None:
    assert is_programs(str(tmp_path / "train.py"))
    assert is_programs(os.path.abspath(__file__))
    for theirs in (of_adbg.__file__, inspect.__file__, pytest.__file__):
        assert not is_programs(theirs), theirs
    assert not is_programs(str(Path(sys.prefix, "lib", "site-packages", "torch", "nn", "functional.py")))
