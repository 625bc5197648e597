"""The command table and every command in it, on scripted agents."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import StopReason
from adbg.tui.commands.breakpoints import split_commands
from adbg.tui.commands.places import checked_place
from adbg.tui.commands.reference import reference, renewed
from adbg.tui.commands.startup import join_blocks, lines_of_file, opens_block, stop_commands
from adbg.tui.commands.table import ELSEWHERE, GROUPS, TABLE, execute, repeatable, resolve, split
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State

Make = Callable[..., Watched]


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *{
            "c": "continue", "s": "step", "n": "next", "f": "finish", "t": "until", "b": "break",
            "tb": "tbreak", "p": "print",
            "bt": "where", "w": "where", "u": "up", "d": "down", "l": "list", "q": "quit", "h": "help",
            "i": "info", "r": "run",
            "cond": "condition", "cont": "continue", "dis": "", "conti": "continue", "?": "help", "unw": "undisplay",
            "disa": "disable", "disp": "display", "rest": "restart", "gr": "graph", "comm": "commands", "!": "!",
        }.items()
    ],
)  # fmt: skip
def test_prefixes_and_aliases(word: str, name: str) -> None:
    if name:
        assert resolve(word).name == name
    else:
        with pytest.raises(CommandError, match="ambiguous"):
            resolve(word)


def test_an_unknown_command_names_the_closest() -> None:
    with pytest.raises(CommandError) as caught:
        resolve("contniue")
    assert "continue" in caught.value.hint


@pytest.mark.parametrize("word", [*ELSEWHERE])
def test_a_word_of_another_debugger_says_what_it_is_called_here(word: str) -> None:
    """And that is a command."""
    with pytest.raises(CommandError) as caught:
        resolve(word)
    for named in re.findall(r"`([^`]+)`", caught.value.hint):
        assert resolve(split(named)[0])


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("p/s grad_outputs[0]", ("p", "/s grad_outputs[0]")),
        ("! x = 1", ("!", "x = 1")),
        ("!x", ("!", "x")),
        ("?break", ("help", "break")),
        ("  b  Mm if x > 1 ", ("b", "Mm if x > 1")),
        ("c", ("c", "")),
    ],
)
def test_splitting_a_line(line: str, parts: tuple[str, str]) -> None:
    assert split(line) == parts


def test_every_row_is_complete() -> None:
    for row in TABLE.commands():
        assert row.group in GROUPS
        assert row.summary.rstrip(".:`)").strip(), row.name
        assert len(row.summary) < 130, f"{row.name}: the first line of its help is one sentence"
        assert resolve(row.name) is row and all(resolve(alias) is row for alias in row.aliases)
    wanted = (
        "run restart continue step next finish until pause after break tbreak condition ignore enable disable delete"
    )
    wanted += " commands trace watch display undisplay print set ! where up down list info graph path why"
    wanted += " vlog dump profile detach kill"
    assert set(wanted.split()) <= {row.name for row in TABLE.commands()}


def test_the_reference_has_every_command() -> None:
    text = reference()
    assert all(f"| `{row.name}" in text for row in TABLE.commands())
    assert text.count("|---|---|---|") == len(GROUPS)
    for line in text.splitlines():
        if line.startswith("| `"):
            assert line.replace("\\|", "").count("|") == 4, line


def test_the_reference_in_the_readme_is_current() -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text()
    assert renewed(text) == text, "python -m adbg.tui.commands.reference README.md"


@pytest.mark.parametrize(
    ("line", "again"), [("s 3", True), ("n", True), ("c", True), ("p 1", False), ("b Mm", False), ("zzz", False)]
)
def test_what_an_empty_line_repeats(line: str, again: bool) -> None:
    assert repeatable(line) is again


def test_help(watched: Make) -> None:
    one = watched()
    text = execute(one.debugger, "help").text
    assert all(row.summary in text for row in TABLE.commands())
    assert "every N" in execute(one.debugger, "help b").text
    with pytest.raises(CommandError):
        execute(one.debugger, "help zzz")


def test_empty_lines_and_comments_do_nothing(watched: Make) -> None:
    one = watched()
    assert execute(one.debugger, "   ").text == "" and execute(one.debugger, "# note").text == ""


def test_a_defect_becomes_an_error_of_one_line(watched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched()
    one.stop_at("Mm")
    monkeypatch.setattr(one.debugger.view, "evaluate", lambda *a, **k: 1 / 0)
    with pytest.raises(AdbgError, match="adbg itself failed: ZeroDivisionError"):
        execute(one.debugger, "p 1")


# ------------------------------------------------------------------ running


def test_run_then_run_again(watched: Make) -> None:
    one = watched()
    one.start()
    one.run("b Mm")
    assert one.run("run").running
    with pytest.raises(CommandError, match="already running"):
        execute(one.debugger, "run")
    one.run("delete")
    one.run("c")
    assert one.debugger.state is State.EXITED
    one.run("b Relu")
    one.run("run")
    assert one.program.starts == 2 and one.debugger.state is State.STOPPED


@pytest.mark.parametrize("word", ["step", "next", "finish"])
def test_steps_move(watched: Make, word: str) -> None:
    one = watched()
    one.stop_at("Sum")
    one.run(word)
    assert one.debugger.stop is not None and one.debugger.stop.index == 2


def test_a_count_repeats_and_a_breakpoint_ends_it(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Sum")
    one.run("s 3")
    assert one.debugger.stop is not None and one.debugger.stop.index == 4
    assert sum(isinstance(r, protocol.StepIn) for r in agent.requests) == 3
    one = watched()
    agent = one.stop_at("Sum")
    agent.do_stepIn = lambda arguments: (agent.go(lambda: agent.stop_at(2, StopReason.BREAKPOINT)), protocol.Empty())[1]  # type: ignore[method-assign, assignment, return-value, func-returns-value]
    one.run("s 3")
    assert one.debugger.stop is not None and one.debugger.stop.index == 2


@pytest.mark.parametrize("line", ["s x", "s 0", "s -1", "n 1.5"])
def test_a_bad_count(watched: Make, line: str) -> None:
    one = watched()
    one.stop_at("Sum")
    with pytest.raises(CommandError, match="count from 1"):
        execute(one.debugger, line)


def test_until_after_and_continue_with_a_count(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Sum")
    one.run("until Relu")
    assert one.debugger.stop is not None and one.debugger.stop.index == 3
    one.run("after")
    assert one.debugger.stop is not None and one.debugger.stop.phase.value == "after"
    with pytest.raises(CommandError, match="not at a breakpoint"):
        execute(one.debugger, "c 3")
    one.run("b MmBackward0#1")
    one.run("c")
    one.run("c 3")
    assert agent.breakpoints[1].hitCondition == "4"
    with pytest.raises(CommandError, match="the node to run to"):
        execute(one.debugger, "until")


def test_background_is_not_waited_for(watched: Make) -> None:
    one = watched()
    one.stop_at("Sum")
    result = execute(one.debugger, "c &")
    assert result.running and result.background


def test_not_stopped_says_what_to_do(watched: Make) -> None:
    one = watched(prepare=lambda agent: setattr(agent, "on_begin", lambda: None))
    one.start()
    execute(one.debugger, "run")
    for line in ("s", "graph", "up", "list", "break"):
        with pytest.raises(NotStopped) as caught:
            execute(one.debugger, line)
        assert caught.value.hint, line


# ------------------------------------------------------------------ breakpoints


def test_break_without_a_spec_is_the_node_at_hand(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    result = one.run("b")
    assert result.value["spec"] == "ReluBackward0#1" and "1 node of this graph" in result.text


def test_conditions_counts_and_switches(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Sum")
    one.run("tb Relu")
    one.run("trace Mm")
    assert [(b.temporary, b.trace) for b in agent.breakpoints] == [(False, False), (True, False), (False, True)]
    one.run("cond 1 index > 2")
    one.run("ignore 1 3")
    one.run("disable 1-2")
    first = agent.breakpoints[0]
    assert (first.condition, first.hitCondition, first.enabled) == ("index > 2", "5", False)
    one.run("enable")
    assert all(b.enabled for b in agent.breakpoints)
    one.run("disable error")
    assert protocol.SetExceptionBreakpoints([]) in agent.requests
    table = one.run("i br")
    assert [row["id"] for row in table.value] == [1, 2, 3] and "index > 2" in table.text and "trace" in table.text
    assert one.run("delete 2").text == "deleted: 2 (tbreak Relu)"
    assert [b.id for b in agent.breakpoints] == [1, 3]
    assert one.run("delete").text == "deleted: 1 (break Sum if index > 2), 3 (trace Mm)"
    assert agent.breakpoints == []


@pytest.mark.parametrize(
    "line", ["delete 9", "condition 9 x", "ignore 9 1", "enable 9", "delete x", "condition", "ignore 1"]
)
def test_bad_breakpoint_numbers(watched: Make, line: str) -> None:
    one = watched()
    one.stop_at("Sum")
    with pytest.raises(CommandError):
        execute(one.debugger, line)
    assert len(one.debugger.settings.breakpoints) == 1


def test_commands_of_a_breakpoint(watched: Make) -> None:
    one = watched()
    one.stop_at("Sum")
    one.run("commands 1 p f(';', [1; 2]); c")
    assert one.debugger.settings.breakpoint(1).commands == ("p f(';', [1; 2])", "c")
    assert stop_commands(one.debugger) == ["p f(';', [1; 2])", "c"]
    one.run("commands\np 1\np 2")
    assert one.run("commands").value == ["p 1", "p 2"]
    one.run("commands 1 end")
    assert stop_commands(one.debugger) == []


def test_splitting_commands() -> None:
    assert split_commands("a; b\nc ;; d") == ["a", "b", "c", "d"]
    assert split_commands("p x['a;b'] ; c") == ["p x['a;b']", "c"]
    assert split_commands('p "it\'s; so"; n') == ['p "it\'s; so"', "n"]


# ------------------------------------------------------------------ values


def test_print(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    assert one.run("p 1 + 1").value == 2
    shown = one.run("p grad_outputs[0]").text.split("\n")
    assert shown[0].startswith("f32[2]") and shown[1].startswith("norm 2.236") and shown[-1] == "tensor([1., 2.])"
    assert one.run("p/t grad_outputs[0]").text == "tensor([1., 2.])"
    assert one.run("p grad_outputs[0]").value == {"tensor": "f32[2]", "shape": [2], "dtype": "f32"}
    assert "norm 2.236" in one.run("p/s grad_outputs[0]").text
    assert one.run("p/exact grad_outputs[0]").value["stats"]["positive"] == 2
    assert agent.requests[-1].exact
    assert "norm" not in one.run("p/m grad_outputs[0]").text
    for line in ("p", "p/zz x", "p nope"):
        with pytest.raises(CommandError):
            execute(one.debugger, line)


@pytest.mark.parametrize(
    ("line", "target", "value"),
    [
        ("set grad_outputs[0] = g * 2", "grad_outputs[0]", "g * 2"),
        ("set x['='] = y == 1", "x['=']", "y == 1"),
        ("set lr *= 0.5 + 1", "lr", "lr * (0.5 + 1)"),
        ("set a.b=f(c=1)", "a.b", "f(c=1)"),
    ],
)
def test_set(watched: Make, line: str, target: str, value: str) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    one.run(line)
    assert agent.requests[-1] == protocol.SetExpression(target, value, 0)
    assert one.wait(events.Edited)


@pytest.mark.parametrize("line", ["set", "set x", "set x == 1", "set = 1", "set x ="])
def test_a_set_that_is_none(watched: Make, line: str) -> None:
    one = watched()
    one.stop_at("Mm")
    with pytest.raises(CommandError, match="TARGET = EXPR"):
        execute(one.debugger, line)


def test_statements(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    assert one.run("! print('x')\nprint('y')").text == "printed"
    assert agent.requests[-1] == protocol.Evaluate("print('x')\nprint('y')", 0, "statement")


def test_displays_and_watches(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Sum")
    assert one.run("watch index").text == "1: index = 1"
    one.run("display 1 + 1")
    asked = len(agent.requests)
    assert [row.changed for row in one.debugger.displays.values()] == [None, None]
    assert not [r for r in agent.requests[asked:] if isinstance(r, protocol.Evaluate)], "read when they were added"
    one.run("s")
    rows = one.debugger.displays.values()
    one.debugger.displays.values()
    reads = [r for r in agent.requests[asked:] if isinstance(r, protocol.Evaluate)]
    assert len(reads) == 2, "read once per stop"
    assert [(row.text, row.changed, row.before) for row in rows] == [("2", True, "1"), ("2", None, "")]
    assert one.run("i display").text.splitlines()[0] == "* 1: index = 2, was 1"
    one.run("watch nope")
    assert one.debugger.displays.values()[2].error
    one.run("undisplay 1")
    assert [row.number for row in one.debugger.displays.rows()] == [2, 3]
    with pytest.raises(CommandError, match="no display or watch number 1"):
        execute(one.debugger, "undisplay 1")
    one.run("unwatch")
    assert not one.debugger.displays.rows()


# ------------------------------------------------------------------ stack, graph, information


def test_the_stack(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    text = one.run("bt").text
    assert "made by the forward call" in text and "running now" in text
    assert one.run("up 2").value["name"] == "train"
    assert one.run("down").value["frame"] == 1
    assert one.run("frame 3").value["name"] == "<module>"
    assert one.run("frame 0").value["frame"] == 0
    far = one.run("up 9")
    assert far.value["frame"] == 3 and "frame 3 is the outermost" in far.text
    assert one.run("down 2").value["frame"] == 1 and "innermost" not in one.run("up").text
    back = one.run("down 9")
    assert back.value["frame"] == 0 and "frame 0 is the innermost" in back.text
    with pytest.raises(CommandError, match="no frame 77 here: frames are 0 to 3"):
        execute(one.debugger, "frame 77")
    with pytest.raises(CommandError, match="already at the innermost frame, 0"):
        execute(one.debugger, "down")
    one.run("up 9")
    for line in ("up", "frame 9", "frame x"):
        with pytest.raises(CommandError):
            execute(one.debugger, line)
    assert one.debugger.current is not None and one.debugger.current.view.frame == 3


def test_an_address_names_the_node_that_stands_there_now(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    name = agent.node(3).unique_name
    assert one.run("b 0x1003 after if index > 0").value["spec"] == f"{name} after if index > 0"
    assert one.run("info node 0x1003").text == one.run("info node #3").text
    with pytest.raises(CommandError, match="nodes are called '0x9999'"):
        execute(one.debugger, "b 0x9999")


def test_list(watched: Make, tmp_path: Path) -> None:
    one = watched()
    one.stop_at("Mm")
    shown = one.run("l")
    assert shown.value == {"file": str(Path(__file__).parents[2] / "support" / "scripted_agent.py"), "line": 42}
    assert "▶ 42" in shown.text
    source = tmp_path / "model.py"
    source.write_text("one = 1\ntwo = 2\n")
    assert "two = 2" in one.run(f"l {source}:2").text
    for line in ("l nope.py:3", "l 99999", "l x"):
        with pytest.raises(CommandError):
            execute(one.debugger, line)


def test_the_neighbourhood(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    result = one.run("graph #4")
    assert result.value == {"node": 4, "name": "MmBackward0#1", "fed_by": [2, 3], "feeds": [5]}
    text = result.text
    assert "║ ○ #4 MmBackward0#1" in text and "│ ○ #5 AccumulateGrad#1" in text and "#2" in text
    widths = {len(line) for line in text.splitlines() if "║" in line}
    assert len(widths) <= 3


def test_paths(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    assert one.run("path 1 5").value == [1, 2, 4, 5], "the shortest way"
    with pytest.raises(CommandError, match="no gradient flows"):
        execute(one.debugger, "path 5 1")
    with pytest.raises(CommandError, match="two nodes"):
        execute(one.debugger, "path 1")


def test_why(watched: Make) -> None:
    one = watched()
    one.stop_at("MmBackward0#1")
    result = one.run("why")
    expected = {"node": 4, "path": [1, 2, 3, 4], "ancestors": 3, "contributions": [2, 3]}
    assert result.value == {**expected, "nonfinite": 3, "maker": None}, "through the NaN"
    assert "sum of 2 contributions" in result.text and "there are 2 paths" in result.text
    assert "first non-finite gradient flows into #3 ReluBackward0#1" in result.text


def test_why_tells_each_gradient_of_a_node_by_itself(watched: Make) -> None:
    """Two gradients that flow into two slots are no sum; one that is added twice counts twice."""
    one = watched()
    agent = one.stop_at("MmBackward0#1")
    agent.values["slots"] = [[2], [3, 3]]
    text = one.run("why").text
    assert "grad_outputs[0] comes from #2 " in text
    assert "grad_outputs[1] is the sum of 2 contributions: #3 ReluBackward0#1, #3 ReluBackward0#1" in text
    agent.values["slots"] = [[], [2]]
    assert "contributions" not in one.run("why").text


def test_info(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    assert "saved:" in one.run("info node").text
    assert one.run("i node #3").value["index"] == 3
    graph = one.run("i graph")
    assert graph.value["total"] == 5 and "▶" in graph.text
    assert one.run("i mem").value == [{"what": "rss", "bytes": 1024, "MiB": 0.0}]
    assert one.run("i proc").value[0]["pid"] == 1000
    assert one.run("i stop").value["reason"] == "breakpoint"
    assert one.run("i prog").value["state"] == "stopped"
    assert "info params" in one.run("info").text
    for line in ("info nothing", "info p", "i mem x"):
        with pytest.raises(CommandError):
            execute(one.debugger, line)


# ------------------------------------------------------------------ session


def test_vlog_dump_record_stacks(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    assert one.run("vlog 5").text == "vlog 5"
    assert one.run("dump graph out").value == [f"{Path('out').absolute()}/graph.dot"]
    assert one.run("record on").value["recording"] is True
    one.run("stacks off")
    assert agent.requests[-1] == protocol.Stacks(False)
    for line in ("dump", "dump x y", "record maybe", "stacks maybe"):
        with pytest.raises(CommandError):
            execute(one.debugger, line)


def test_processes(watched: Make) -> None:
    one = watched(ranks=2)
    one.start()
    one.run("b Relu")
    execute(one.debugger, "run")
    one.wait(events.StopQueued)
    table = one.run("process")
    assert len(table.value) == 2
    other = next(p.number for p in one.debugger.processes if p is not one.debugger.current)
    one.run(f"process {other}")
    assert one.debugger.current is not None and one.debugger.current.number == other


def test_quit_and_kill_and_interrupt(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    assert execute(one.debugger, "q").quit
    execute(one.debugger, "interrupt")
    assert one.program.signals == [2]
    one.run("kill")
    assert one.debugger.run.exit_code == 137


# ------------------------------------------------------------------ command files


def test_errors_of_a_command_file_say_where(watched: Make, tmp_path: Path) -> None:
    path = tmp_path / "setup.adbg"
    path.write_text("# first\n\nb Mm\nnonsense\ncommands 7\n  p 1\nend\n")
    one = watched()
    one.start()
    said = []
    for line in lines_of_file(str(path)):
        try:
            execute(one.debugger, line)
        except CommandError as error:
            said.append(error.message)
    assert said[0].startswith(f"{path}:4: unknown command 'nonsense'")
    assert said[1].startswith(f"{path}:5: no breakpoint number 7") and len(said) == 2
    with pytest.raises(CommandError, match=r"^unknown command 'nonsense'"):
        execute(one.debugger, "nonsense")
    with pytest.raises(CommandError, match=r"^x:2: .* has no `end`"):
        join_blocks(["p 1", "commands", "p 1"], "x")


@pytest.mark.parametrize("line", ["vlog 4 at", "vlog 4 at ", "vlog bw 4 at", "vlog bw 4", "vlog bw"])
def test_a_region_without_lines_is_asked_for(watched: Make, line: str) -> None:
    one = watched()
    one.start()
    with pytest.raises(CommandError, match="expected a level and source lines"):
        execute(one.debugger, line)


def test_pause_is_the_first_command_to_a_program_that_was_found(watched: Make) -> None:
    """`adbg attach PID -e pause`: it runs, though the front end has not let it go yet."""

    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = lambda: None

    one = watched(prepare=prepare)
    one.program.launched = False
    one.start()
    assert one.run("pause").running
    assert one.debugger.stop is not None and one.debugger.stop.reason is StopReason.PAUSE


def test_command_files(tmp_path: Path) -> None:
    path = tmp_path / "x.adbg"
    path.write_text("# a comment\nb Mm\n\ncommands 1\n  p 1\n  # inside\n  c\nend\nc\n")
    assert lines_of_file(str(path)) == ["b Mm", "commands 1\np 1\nc", "c"]
    with pytest.raises(CommandError, match="has no `end`"):
        join_blocks(["commands", "p 1"], "x")
    with pytest.raises(CommandError, match="cannot read the command file"):
        lines_of_file(str(tmp_path / "none"))
    assert (
        opens_block("commands 1") and opens_block("comm") and not opens_block("commands 1 p 1") and not opens_block("c")
    )


def test_the_first_commands_of_several_threads_find_the_whole_table() -> None:
    """The app's workers ask at once, and the first question loads the commands (0.1 s)."""
    program = (
        "import threading\n"
        "from adbg.tui.commands import resolve\n"
        "start, problems = threading.Barrier(8), []\n"
        "def ask(word):\n"
        "    start.wait()\n"
        "    try: resolve(word)\n"
        "    except Exception as error: problems.append(str(error))\n"
        "words = ['b', 'capture', 'print', 'quit', 'vlog', 'step', 'dump', 'graph']\n"
        "threads = [threading.Thread(target=ask, args=(word,)) for word in words]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(problems)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_places_are_looked_at_before_the_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("a = 1\nb = 2\n")
    assert checked_place("model.py:1-2") == (f"{tmp_path.resolve()}/model.py:1-2", "")
    assert checked_place("model.py:2-900")[1] == "", "up to the end is what somebody means who does not know it"
    place, remark = checked_place("nets/model.py:1-2")
    assert place == "nets/model.py:1-2" and remark.startswith("no file nets/model.py here")
    assert checked_place("deep.py:1", ["python", "nets/deep.py"])[1].startswith("no file"), "nor there"
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "deep.py").write_text("a = 1\n")
    assert checked_place("deep.py:1", ["python", "nets/deep.py"]) == (f"{tmp_path.resolve()}/nets/deep.py:1", "")
    with pytest.raises(CommandError, match=r"model\.py has only 2 lines"):
        checked_place("model.py:3-4")
    with pytest.raises(CommandError, match="invalid source lines 'nonsense'"):
        checked_place("nonsense")


def test_what_is_long_of_a_breakpoint_stands_below_it(watched: Callable[..., Watched]) -> None:
    """The table fits 80 cells, also behind the prefix of batch mode."""
    session = watched()
    session.stop_at("MmBackward0")
    session.run("break Conv2dBackward0")
    session.run("condition 2 index > 10 and norm(grad_outputs[0]) > 1e-3 and module.startswith('layers.3')")
    session.run("commands 2 where; continue")
    result = session.run("info breakpoints")
    lines = result.text.splitlines()
    assert max(map(len, lines)) <= 74, result.text
    assert "note" not in lines[1] and lines[3].endswith("Conv2dBackward0"), result.text
    below = " ".join(line.strip() for line in lines[4:])
    assert "if index > 10 and norm(" in below and "closest: MmBackward0" in below and "where continue" in below
    assert result.columns[-2:] == ("condition", "note") and "closest" in str(result.rows[1][-1])
