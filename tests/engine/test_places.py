"""Sources are parsed on several threads."""

from __future__ import annotations

import ast
import threading

import pytest

from adbg.engine import places
from adbg.engine.places import parsed

DEEP = "x = " + "(" * 60 + "1" + " + 1)" * 60


def test_threads_that_parse_at_once_all_get_their_tree() -> None:
    """Python 3.11 mixes up their depths where a collection runs in the middle (SystemError)."""
    texts = [DEEP.replace("x", f"name_{number}") for number in range(4)]
    failed: list[BaseException] = []

    def parse(text: str) -> None:
        try:
            for _ in range(200):
                assert ast.unparse(parsed(text)).startswith(text.partition(" ")[0])
        except BaseException as error:  # told to the test
            failed.append(error)

    threads = [threading.Thread(target=parse, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_one_of_the_programs_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = ast.parse, [2]

    def parse(*args: object, **kwargs: object) -> ast.AST:
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=46)")
        return real(*args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(ast, "parse", parse)
    assert isinstance(parsed("x = 1"), ast.Module)
    left[0] = places._TRIES
    with pytest.raises(ValueError, match="other threads parse"):
        parsed("x = 1")
    with pytest.raises(SyntaxError):
        parsed("x =")
