"""Findings as they are read: ranked, folded, told once for several ranks; and which kinds there are."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.launch.command_line import program_python
from adbg.engine.protocol.messages import Cause, DiagnosisBody, DiagnosisEnds, Examined, Finding, FoundAt
from adbg.engine.types import SourceLine
from adbg.tui.debugger.findings import kinds
from adbg.tui.debugger.findings.own_words import in_own_words, words_of
from adbg.tui.debugger.findings.ranking import Told, is_error, merged, ranked
from adbg.tui.debugger.findings.store import Findings
from adbg.tui.text.findings import NOBODY, Progress, Ranked, examined_lines, finding_lines, headline, told_line


def made(id: int, kind: str = "nonfinite", severity: str = "error", **fields: Any) -> Finding:
    line = fields.pop("line", None)
    cause = Cause("train.py", line, "step", "loss.backward()") if line else None
    told = Finding(id, kind, severity, fields.pop("confidence", 0.95), fields.pop("message", f"{kind} {id}"))
    return replace(told, cause=cause, **fields)


def rows(*findings: Finding, ranks: tuple[int | None, ...] = (None,)) -> list[Ranked]:
    return ranked(Told(n + 1, rank, each) for n, rank in enumerate(ranks) for each in findings)


def order(found: list[Ranked]) -> list[int]:
    assert [row.number for row in found] == list(range(1, len(found) + 1))
    return [row.finding.id for row in found]


def test_order() -> None:
    late = made(1, iteration=9)
    backward = made(2, iteration=2, backward=2)
    forward = made(3, iteration=2)
    surer = made(4, iteration=2, confidence=0.99)
    warning = made(5, severity="warning", iteration=1)
    note = made(6, severity="note", iteration=1, confidence=0.4)
    assert order(rows(note, late, warning, backward, forward, surer)) == [4, 3, 2, 1, 5, 6]


def test_consequences_are_under_their_cause_and_gone_ones_are_gone() -> None:
    cause, victim = made(1, iteration=5), made(2, iteration=1, victim_of=1)
    grandchild = made(3, iteration=1, victim_of=2)
    (row,) = rows(cause, victim, grandchild)
    assert row.finding.id == 1 and [each.id for each in row.also] == [2, 3]
    taken_back = replace(cause, confidence=0.0, severity="note")
    (row,) = rows(taken_back, victim, grandchild)
    assert row.finding.id == 2 and [each.id for each in row.also] == [3], "its cause was taken back"
    assert rows(taken_back) == []
    assert sorted(order(rows(made(1, victim_of=2), made(2, victim_of=1)))) in ([1], [2], [1, 2]), "none is lost"
    assert order(rows(made(1, victim_of=1), made(2, victim_of=77))) == [1, 2]


def test_two_of_one_line_are_one() -> None:
    found = rows(made(1, "a", "warning", line=7), made(2, "b", line=7), made(3, "c", line=8), made(4, "d"))
    assert order(found) == [2, 3, 4] and [each.id for each in found[0].also] == [1]
    both = rows(made(1, "a", line=7), made(2, "b", line=7, iteration=2), made(3, "c", victim_of=2))
    assert order(both) == [1] and {each.id for each in both[0].also} == {2, 3}, "under what its cause is under"


def test_the_same_of_several_ranks_is_told_once_with_them() -> None:
    (row,) = rows(made(1, line=7), ranks=(0, 1, 3))
    assert row.ranks == (0, 1, 3) and "ranks 0, 1, 3" in finding_lines(row, 100)[0].text
    other = [Told(1, 0, made(1, line=7)), Told(2, 1, made(1, line=9)), Told(2, 1, made(2, "x", victim_of=1))]
    found = ranked(other)
    assert [row.ranks for row in found] == [(0,), (1,)] and [len(row.also) for row in found] == [0, 1]
    apart = FoundAt("A", "A#1"), FoundAt("A", "A#2")
    assert len(rows(made(1, line=7, node=apart[0]), made(2, line=8, node=apart[1]))) == 2


def test_whether_something_is_certainly_wrong() -> None:
    assert is_error(rows(made(1)))
    assert not is_error(rows(made(1, severity="warning"), made(2, severity="note")))
    assert is_error(rows(made(1, severity="warning", line=7, iteration=1), made(2, line=7, iteration=3)))


def test_what_processes_came_to_is_one_row_a_kind() -> None:
    found = merged(
        [
            Examined("b", "not applicable"),
            Examined("a", "clear"),
            Examined("b", "clear"),
            Examined("a", "could not look", "why"),
        ]
    )
    assert [(row.kind, row.result, row.why) for row in found] == [("a", "could not look", "why"), ("b", "clear", "")]


def test_the_store_tells_what_is_new() -> None:
    store, process = Findings(("python", "train.py")), SimpleNamespace(number=1, info=SimpleNamespace(rank=None))
    first = made(1, severity="warning")

    def add(finding: Finding) -> str:
        return store.add(process, finding)  # type: ignore[arg-type]

    assert [add(first), add(first), add(replace(first, severity="error"))] == ["told", "", "changed"]
    assert not store.known
    store.learn(process, DiagnosisBody(True, [first], [Examined("a", "clear")], 4))  # type: ignore[arg-type]
    assert store.known and not store.told_end and store.iterations == 4 and store.ranked()[0].finding == first
    store.ended(process, DiagnosisEnds([Examined("a", "finding")], 5))  # type: ignore[arg-type]
    assert store.told_end and store.progress(True, True).iterations == 5
    store.learn(process, DiagnosisBody(True, [first], [Examined("a", "finding")], 6))  # type: ignore[arg-type]
    assert not store.told_end, "it was started again"
    assert store.examined() == [Examined("a", "finding")]
    assert add(replace(first, confidence=0.0)) == "taken back" and store.ranked() == []
    store.begin()
    assert not store.told_end and not store.known


def test_in_words() -> None:
    node = FoundAt("MmBackward0", "MmBackward0#2", "fc1", None)
    forward = SourceLine("model.py", 3, "forward")
    finding = made(1, line=7, node=node, forward=forward, backward=2, evidence=["norm 3.1"], next=["b nan"])
    assert told_line(finding) == "error: nonfinite: nonfinite 1 (train.py:7)"
    assert told_line(finding, "taken back", 3) == "taken back: nonfinite of rank 3: nonfinite 1"
    (row,) = rows(replace(finding, confidence=0.7), made(2, "other", "warning", line=7, confidence=0.6))
    text = "\n".join(line.text for line in finding_lines(row, 80))
    expected = (
        *("change    train.py:7 in step", "loss.backward()", "MmBackward0#2, of module fc1, made at model.py:3"),
        *("evidence  norm 3.1", "next      b nan", "also      warning: other: other 2", "certainty 70%"),
    )
    for words in expected:
        assert words in text, text
    order = ("change  ", "what proves it", "node  ", "evidence  ", "also  ", "certainty", "what to try", "next  ")
    places = [text.index(each) for each in order]
    assert places == sorted(places), f"advice stands apart from evidence\n{text}"
    advised = replace(finding, evidence=["norm 3.1", "use a mask"], advice=["use a mask"])
    text = "\n".join(line.text for line in finding_lines(rows(advised)[0], 80))
    assert text.count("use a mask") == 1 and text.index("what to try") < text.index("advice    use a mask"), text
    short = finding_lines(row, 80, whole=False)
    assert "what" not in short[-1].text
    assert "evidence" not in "\n".join(line.text for line in short)
    assert all(len(line.text) <= 60 for line in finding_lines(row, 60) if "loss" not in line.text)


def test_what_is_about_no_node_says_when_it_was_seen() -> None:
    """Not that its line was made in that iteration."""

    def seen(finding: Finding) -> str:
        (row,) = rows(finding)
        return "\n".join(line.text for line in finding_lines(row, 100))

    line = SourceLine("train.py", 7, "step")
    told = made(1, line=7, iteration=8, forward=line)
    assert "seen      in iteration 8" in seen(told) and "node" not in seen(told)
    other = replace(told, forward=SourceLine("model.py", 3, "forward"), node=FoundAt(parameter="fc1.weight"))
    assert "seen      parameter fc1.weight, at model.py:3 in forward, in iteration 8" in seen(other)
    named = replace(other, node=FoundAt("A", "A#1", None, "fc1.weight"))
    assert "node      A#1, of parameter fc1.weight, made at model.py:3 in forward, in iteration 8" in seen(named)


def test_what_was_looked_at() -> None:
    examined = [Examined("a", "clear"), Examined("b", "not applicable"), Examined("c", "could not look", "no stacks")]
    examined += [Examined("d", "could not look", "it failed"), Examined("e", "could not look", "no stacks")]
    ended = Progress(3)
    assert examined_lines(examined, ended, False) == [
        "could not look for c, e: no stacks",
        "could not look for d: it failed",
        "looked for in 3 iterations, and not found: a",
        "what only several iterations show (what grows, what stays away) needs 8 or so",
        "nothing there to look at: b",
    ]
    assert not any("several" in line for line in examined_lines(examined, Progress(8), False))
    assert examined_lines(examined, ended, True)[-1] == "not found, in 3 iterations: 1 other kind of findings"
    assert examined_lines(examined[:2], Progress(0), False) == [], "no kind is listed as looked for"
    assert "no backward has begun" in examined_lines(examined[:2], Progress(0), True)[0]
    assert "did not come to its end" in examined_lines([], Progress(known=False, ended=False), True)[0]
    under_way = examined_lines(examined, Progress(1, alive=True, ended=False), False)
    assert any("under way" in line for line in under_way) and not any("looked for in" in line for line in under_way)


def test_no_headline_reads_as_all_clear_where_it_is_not() -> None:
    clear, failed = Examined("a", "clear"), Examined("b", "could not look", "it failed")
    some = Progress(3)
    assert headline([], [clear], some) == "nothing found"
    assert headline([], [clear, failed], some) == "nothing found, and 1 kind of findings could not be looked for"
    assert headline([], [failed], some) == "1 kind of findings could not be looked for"
    assert headline([], [clear], Progress(0)) == "no backward began while it watched: next to nothing was looked at"
    assert not any("spawn" in line for line in examined_lines([clear], some, False))
    killed = headline([], [], Progress(known=False, ended=False))
    assert killed.startswith("cut short") and "os._exit" in killed and "nothing found" not in killed
    assert "1 finding" in headline(rows(made(1)), [], Progress(known=False, ended=False))
    late = Progress(4, ended=False, cut="SIGKILL")
    assert headline([], [clear], late) == "cut short by SIGKILL after 4 iterations: nothing was told; more may be there"
    none = Progress(known=False, ended=False, cut=NOBODY)
    assert headline([], [], none) == f"nothing was looked at: {NOBODY}" and examined_lines([], none, False) == []
    assert "was not on" in headline([], [], Progress(known=False, ended=False, on=False))


def test_a_program_that_runs_may_tell_more() -> None:
    live = Progress(0, alive=True, ended=False)
    assert headline([], [], live) == "nothing is known so far: no backward has ended since diagnosis was switched on"
    assert headline([], [], replace(live, iterations=1)) == "nothing found so far, in 1 iteration"
    assert headline(rows(made(1)), [], replace(live, iterations=4)) == "1 finding so far, an error, in 4 iterations"
    assert headline([], [], replace(live, on=False)) == "diagnosis is not on"
    assert headline([], [], replace(live, iterations=4, ended=True)) == "nothing found", "it was switched off"
    two = rows(made(1, severity="warning"), made(2, severity="warning"))
    assert headline(two, [], Progress(3)) == "2 findings, all warnings"


def test_commands_name_the_script() -> None:
    """A detector writes SCRIPT for the program; what is copied into a shell has to run."""
    here = program_python()
    assert words_of([here, "train.py", "--lr", "1 e"]) == "train.py --lr '1 e'"
    assert words_of([here, "-m", "pkg.train", "4"]) == "-m pkg.train 4"
    assert words_of(["/opt/bin/python3.12", "train.py"]) == "--python /opt/bin/python3.12 train.py"
    assert words_of(["torchrun", "--nproc", "2", "train.py"]) == "-- torchrun --nproc 2 train.py"
    assert words_of([here, "-O", "train.py"]) == f"-- {here} -O train.py", "its own options are kept"
    assert words_of([here, "train.py"], "/elsewhere") == "/elsewhere/train.py"
    assert words_of([]) == words_of([here]) == words_of([here, "-"]) == ""
    evidence = "not watched: `adbg diagnose --only nonfinite SCRIPT` does, and SCRIPT is a word"
    finding = made(1, next=["adbg diagnose --deep SCRIPT", "p SCRIPT"], evidence=[evidence])
    own = in_own_words(finding, "train.py --lr 1")
    assert own.next == ["adbg diagnose --deep train.py --lr 1", "p SCRIPT"]
    assert own.evidence == ["not watched: `adbg diagnose --only nonfinite train.py --lr 1` does, and SCRIPT is a word"]
    assert in_own_words(finding, "") == finding


def test_kinds_are_those_of_the_detectors() -> None:
    """Read from their files here, and from the classes themselves, which only the program imports."""
    from adbg.engine.diagnosis.detector import known

    assert kinds.kinds() == tuple(
        sorted({kinds.REPEATED, kinds.CRASHED, *(kind for each in known() for kind in each.kinds)})
    )
    texts = [(each.kinds, each.docstring.split()) for each in kinds.detectors()]  # several may find the same kind
    for each in known():
        assert (each.kinds, (each.__doc__ or "").split()) in texts


def test_a_kind_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    source = '@detector("zero-grad", "twice-backward")\nclass A(Detector):\n    """Finds it."""\n'
    (read,) = kinds.read(source, "training")
    assert (read.kinds, read.family, read.docstring) == (("zero-grad", "twice-backward"), "training", "Finds it.")
    monkeypatch.setattr(kinds, "detectors", lambda: (read,))
    assert kinds.check(["zero-grad", "zero-grad"]) == ["zero-grad"]
    with pytest.raises(CommandError, match="closest: zero-grad"):
        kinds.check(["zerograd"])
