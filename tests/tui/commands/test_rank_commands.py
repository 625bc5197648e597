"""``rank``: which ranks, what of their answers differs, what is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
from support.program import wait_until
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.names import ranks_of, ranks_text
from adbg.tui.commands.ranks import compared
from adbg.tui.commands.table import CommandResult, execute
from adbg.tui.debugger.debugger import State
from adbg.tui.text.ranks import verdict_text

Make = Callable[..., Watched]


def answers(*values: object) -> dict[int, CommandResult | AdbgError]:
    return {rank: v if isinstance(v, AdbgError) else CommandResult(f"{v:.3g}", v) for rank, v in enumerate(values)}


def test_ranks_as_text() -> None:
    for text, ranks in (("0", (0,)), ("0,2", (0, 2)), ("1-3", (1, 2, 3)), ("0,2-4,7", (0, 2, 3, 4, 7))):
        assert ranks_of(text) == ranks and ranks_text(ranks) == text
    assert [ranks_of(text) for text in ("", "a", "1-", "2-1", "-1", "1,,2", "9999999")] == [None] * 7


def test_one_bit_is_a_difference() -> None:
    (next_up,) = struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", 1.0))[0] + 1))
    assert next_up != 1.0 and f"{next_up:.3g}" == "1"
    result = compared("p x", answers(1.0, 1.0, next_up, 1.0))
    assert result.value["differing"] == [2] and not result.value["same"]
    assert result.text.splitlines()[0] == "rank 2 differs from the other 3, which agree"
    assert [row[0] for row in result.rows] == ["", "", "≠", ""]


def test_the_sign_of_zero_is_one_and_nan_is_not() -> None:
    assert not compared("p x", answers(0.0, -0.0)).value["same"]
    assert compared("p x", answers(math.nan, math.nan)).value["same"]


def test_without_a_majority_all_are_marked() -> None:
    result = compared("p x", answers(1.0, 2.0))
    assert result.value["differing"] == [] and [row[0] for row in result.rows] == ["≠", "≠"]
    assert "2 different answers: rank 0 | rank 1" in result.text
    assert verdict_text([[0, 1], [2, 3]]) == "2 different answers: rank 0,1 | rank 2,3"


def test_who_cannot_answer_is_said_and_differs_from_nobody() -> None:
    result = compared("p x", answers(1.0, NotStopped("the program is running"), 1.0))
    assert result.text.splitlines()[0] == "the same on the other 2 ranks; no answer from rank 1"
    assert [row[0] for row in result.rows] == ["", "", ""] and result.rows[1][2] == "the program is running"
    with pytest.raises(NotStopped):
        compared("p x", answers(NotStopped("a"), NotStopped("b")))


def test_tensors_that_look_the_same_are_told_apart_by_their_statistics() -> None:
    same = [CommandResult("tensor([1., 2.])", {"shape": [2]}, exact=norm) for norm in (2.236, 2.2360000000000007)]
    assert not compared("p x", dict(enumerate(same))).value["same"]


def test_long_answers_are_shown_once_for_those_that_agree() -> None:
    texts = ["a\nb", "a\nb", "a\nc"]
    result = compared("where", {rank: CommandResult(text) for rank, text in enumerate(texts)})
    assert result.text.splitlines()[1:] == ["── rank 0,1 ──", "a", "b", "── rank 2 ≠ ──", "a", "c"]


def standing(watched: Make) -> Watched:
    def prepare(agent: ScriptedAgent) -> None:
        agent.values["x"] = 1.5 if agent.rank != 1 else 2.5

    one = watched(ranks=3, prepare=prepare)
    one.start()
    one.debugger.settings.add_breakpoint("Relu")
    one.debugger.begin()
    one.settle(State.STOPPED)
    wait_until(lambda: all(process.stop for process in one.debugger.processes), "all stand", 10)
    return one


def test_the_same_question_to_all_and_to_some(watched: Make) -> None:
    one = standing(watched)
    current = one.debugger.current
    result = execute(one.debugger, "rank all p x")
    assert [row["value"] for row in result.value["ranks"]] == [1.5, 2.5, 1.5] and result.value["differing"] == [1]
    assert [row["rank"] for row in execute(one.debugger, "rank 0,2 p x").value["ranks"]] == [0, 2]
    assert one.debugger.current is current, "nobody is selected by being asked"
    assert execute(one.debugger, "rank 2").value["rank"] == 2
    assert one.debugger.current is not None and one.debugger.current.rank == 2


@pytest.mark.parametrize(
    "line, says",
    [
        ("rank 7", "no rank 7"),
        ("rank 7 p x", "no rank 7"),
        ("rank x p x", "expected ranks"),
        ("rank 0,1", "what are ranks 0,1 to do"),
        ("rank all break Mm", "for the whole program"),
        ("rank all quit", "for the whole program"),
        ("rank all p nope", "not defined"),
        ("rank all nonsense", "unknown command"),
    ],
)
def test_what_is_refused(watched: Make, line: str, says: str) -> None:
    one = standing(watched)
    with pytest.raises(CommandError, match=says):
        execute(one.debugger, line)


def test_a_program_without_ranks(watched: Make) -> None:
    one = watched()
    one.start()
    process = one.debugger.processes[0]
    from dataclasses import replace

    process.info = replace(process.info, rank=None)
    assert "no process of this program has told a rank" in execute(one.debugger, "info ranks").text
    with pytest.raises(CommandError, match="has no ranks"):
        execute(one.debugger, "rank all p x")


def test_info_ranks(watched: Make) -> None:
    one = standing(watched)
    table = execute(one.debugger, "info ranks")
    assert [(row["rank"], row["state"], row["node"]) for row in table.value] == [
        (rank, "stopped", "ReluBackward0#1") for rank in range(3)
    ]
    assert execute(one.debugger, "rank").value == table.value or table.text.startswith("3 ranks: 3 stopped")


def test_what_can_be_typed(watched: Make) -> None:
    from adbg.tui.repl.candidates import Candidates

    one = standing(watched)
    candidates = Candidates(one.debugger)

    def offered(line: str) -> list[str]:
        return [candidate.text for candidate in candidates.of(line)]

    assert {"0", "1", "2", "all", "diff"} <= set(offered("rank "))
    assert offered("rank a") == ["all"]
    assert "step" in offered("rank all st") and "where" in offered("rank 0,2 whe")
