"""The promise of ``detach``: a program that adbg came to late is, when adbg has left, the process that it was. A census
taken inside it before and after is compared; so is what it computes, with a run that nobody came to."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.front_end import Peer, Refused
from support.late import Late, Session, leave
from support.patience import patience
from support.program import ROOT

LIMIT = 30.0
_MODULE = "|".join(map(re.escape, sorted(sys.stdlib_module_names)))
#: What stays in the process, and why; docs/attach.md says it too.
STAYS = {
    rf"module (adbg|_adbg_attach|{_MODULE})(\..+)?: '\(absent\)' -> True": "kept for the next attach",
    r"module torch\._subclasses\.schema_check_mode: '\(absent\)' -> True": "torch's own, for its modes",
    r"attributes of torch\._subclasses: schema_check_mode: .*": "that one",
    rf"read folder {re.escape(str(ROOT))}/(adbg|engine)(/.*)?: .*": "Python's list of folders that it has looked into",
    rf"read folder {re.escape(sys.base_prefix)}/lib/python[\d.]+(/.*)?: .*": "its own too",
    r"atexit: \d+ -> \d+": "two functions that do nothing while there is no agent, once a process",
    r"mapped \S*/(?:lib-dynload/|adbg/_native)\S+ \S+: '\(absent\)' -> \d": "Python unloads no extension module",
    r"attributes of \S+: RemovableHandle\.next_id: .*": "torch counts the module hooks that were ever registered",
}


def unexpected(lines: list[str]) -> list[str]:
    return [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in STAYS)]


def gone(program: Late) -> list[str]:
    """What still differs, once the threads of adbg had time to end."""
    deadline = time.monotonic() + patience(LIMIT)
    while (left := unexpected(program.ask("differences"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def use(peer: Peer, program: Late) -> None:
    """Whatever changes something in the process: stacks, log levels and regions, aids, captures, expressions at a stop
    on the main thread, stepping."""
    peer.request("adbg/stacks", on=True)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("adbg/vlog", {"levels": "4"}),
        ("adbg/vlog", {"levels": "3", "at": "late.py:30-33"}),
        ("adbg/vlog", {"levels": "3", "at": "late.py:30-33", "backward": True}),
        ("adbg/aids", {"name": "call_stack_level", "value": "2"}),
        ("adbg/capture", {"region": "late.py:1-2"}),
        ("adbg/frames", {"all": True}),
    ]
    for command, arguments in asked:
        try:
            peer.request(command, **arguments)
        except Refused as refused:
            assert program.framework == "torch" and refused.error["hint"], refused
    program.post("train", 3)
    assert peer.stopped()["node"]
    assert isinstance(peer.value("float(grad_outputs[0].sum()) + sum(range(9))"), float)
    peer.request("setExpression", expression="grad_outputs[0]", value="grad_outputs[0] * 1")
    peer.go("next")
    peer.go("stepIn")
    for table in ("threads", "memory", "params"):
        peer.request("adbg/info", what=table)


def detached(peer: Peer) -> None:
    leave(peer)


def killed(peer: Peer) -> None:
    peer.close()


@on_frameworks()
@pytest.mark.parametrize("end", [detached, killed])
def test_nothing_stays_in_the_process(framework: str, end: Callable[[Peer], None]) -> None:
    """By both ways out, at a stop, with everything on that can be on."""
    with Late(framework) as alone:
        alone.ask("train", 2 * (5 + 3 + 5))
        expected = alone.ask("digest")
    with Late(framework) as program:
        program.ask("train", 5)
        program.ask("census")  # imports of the census' own
        program.ask("census")
        assert program.ask("differences") == []
        for number in range(2):
            with Session() as session:
                peer = session.enter(program)
                peer.begin("Tanh*")
                use(peer, program)
                end(peer)
                program.answer()
                assert gone(program) == [], f"after attach {number}"
            program.ask("train", 5 if number else 10)
            assert gone(program) == []
            if number == 0:
                program.ask("census")  # what stayed may not stay a second time
        counted = {line for line in program.ask("differences") if "next_id" not in line}
        assert not counted, counted
        assert program.ask("digest") == expected
        assert program.end() == 0
