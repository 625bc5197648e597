"""Completion and highlighting of command lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.document import Document
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeInfo, SlotView
from adbg.tui.repl.candidates import OPERATORS
from adbg.tui.repl.completion import CommandCompleter, complete_line
from adbg.tui.repl.highlighting import CommandLexer

Make = Callable[..., Watched]


def with_locals(agent: ScriptedAgent) -> None:
    agent.do_scopes = lambda a: protocol.ScopesBody([protocol.Scope("Locals", 5)])  # type: ignore[attr-defined]
    agent.do_variables = lambda a: protocol.VariablesBody([protocol.Variable("learning_rate", "0.1")])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("cont", ["continue"]),
        ("b Mm", ["b MmBackward0", "b MmBackward0#2", "b MmBackward0#1"]),
        ("b relu", ["b ReluBackward0", "b ReluBackward0#1"]),
        ("b module:l", ["b module:layers", "b module:layers.0"]),
        ("b scripted_agent.py:4", ["b scripted_agent.py:41", "b scripted_agent.py:42"]),
        ("b Mm bef", ["b Mm before"]),
        ("b Mm if grad_o", ["b Mm if grad_outputs"]),
        ("info br", ["info breakpoints"]),
        ("i node #1", []),
        ("why Sum", ["why SumBackward0#1"]),
        ("p norm(grad_i", ["p norm(grad_inputs"]),
        ("p x.grad", []),
        ("p lea", ["p learning_rate"]),
        (":p lea", [":p learning_rate"]),
        ("p ", ["p grad_outputs", "p grad_inputs"]),
        ("p 1+", ["p 1+grad_outputs"]),
        ("p x if not ", ["p x if not grad_outputs"]),
        ("help tb", ["help tbreak"]),
        ("dump gra", ["dump graph", "dump grads"]),
        ("vlog o", ["vlog off"]),
        ("process ", ["process 1"]),
        ("delete ", ["delete 1"]),
        ("zzz x", []),
        ("cont x", []),
    ],
)
def test_candidates(watched: Make, line: str, wanted: list[str]) -> None:
    one = watched()
    with_locals(one.stop_at("Mm"))
    found = complete_line(one.debugger, line)
    assert found[: len(wanted)] == wanted if wanted else found == []


CHAINS = {
    "model.fc.": [("bias", "Parameter"), ("weight", "Parameter"), ("weird", ""), ("_hidden", "int")],
    "saved[0].": [("shape", ""), ("sharded", "")],
    "grad_outputs[0].": [("shape", "")],
    "d['a b'].": [("shape", "")],
}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("p model.fc.we", ["weight", "weird"]),
        ("p model.fc.", ["bias", "weight", "weird"]),
        ("p model.fc._", ["_hidden"]),
        ("p saved[0].sh", ["shape", "sharded"]),
        ("b Mm if norm(model.fc.weig", ["weight"]),
        ("! y = model.fc.b", ["bias"]),
        ("p d['a b'].s", ["shape"]),
        (":p -grad_outputs[0].sh", ["shape"]),
        ("p f(model).fc.we", []),
        ("p f()[0].sh", []),
        ("p 'model.fc.we", []),
        ("p 2.", []),
        ("p nothing.we", []),
    ],
)
def test_attributes_are_completed_behind_what_can_be_read(watched: Make, line: str, wanted: list[str]) -> None:
    one = watched()
    agent = one.stop_at("Mm")

    def answer(asked: protocol.Attributes) -> protocol.AttributesBody:
        return protocol.AttributesBody([protocol.Attribute(*row) for row in CHAINS.get(asked.expression + ".", [])])

    agent.do_attributes = answer  # type: ignore[attr-defined]
    found = complete_line(one.debugger, line)
    assert found == [line[: line.rindex(".") + 1] + name for name in wanted]


@pytest.mark.parametrize(
    "expression",
    [
        "1+1", "x", "x ", "norm(x)", "norm(x) ", "x[0]", "d['g", "d['a'] ", '"it\'s ', "1 + 2 ", "1g", "None ",
        "{1: 2}", "x  # g", "f'", "2.", "(1, 2)", "x == 'g' ", "x is not None ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["p", "b Mm if", "condition 1", "display", "!"])
def test_what_is_offered_behind_an_expression_is_python(watched: Make, command: str, expression: str) -> None:
    """No name where Python expects an operator: each suggestion that is no beginning of one can be compiled."""
    one = watched()
    with_locals(one.stop_at("Mm"))
    for line in complete_line(one.debugger, f"{command} {expression}"):
        completed = line.removeprefix(f"{command} ")
        completed += "0)" if completed.endswith("(") else " 0" if completed.split()[-1] in OPERATORS else ""
        compile(completed, "", "eval")


def test_operators_are_offered_where_one_is_begun(watched: Make) -> None:
    one = watched()
    with_locals(one.stop_at("Mm"))
    assert complete_line(one.debugger, "p x i") == ["p x in", "p x is", "p x is not", "p x if"]


def test_files(watched: Make, tmp_path: Path) -> None:
    one = watched()
    one.stop_at("Mm")
    (tmp_path / "model.py").touch()
    (tmp_path / "more").mkdir()
    assert complete_line(one.debugger, f"l {tmp_path}/mo") == [f"l {tmp_path}/model.py", f"l {tmp_path}/more/"]
    assert complete_line(one.debugger, "l /no/such/folder/x") == []


def test_names_are_asked_once_per_stop(watched: Make) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    complete_line(one.debugger, "b M")
    asked = len(agent.requests)
    complete_line(one.debugger, "b Mm")
    assert len(agent.requests) == asked


def test_without_a_program_commands_still_complete(watched: Make) -> None:
    one = watched()
    assert complete_line(one.debugger, "cont") == ["continue"]
    assert complete_line(one.debugger, "b na") == ["b nan"]


def test_prompt_toolkits_form(watched: Make) -> None:
    one = watched()
    one.stop_at("Mm")
    found = list(CommandCompleter(one.debugger).get_completions(Document("b Re"), None))  # type: ignore[arg-type]
    assert (found[0].text, found[0].start_position) == ("ReluBackward0", -2)


@pytest.mark.parametrize("text", ["p norm(x) + 'a'", "zzz y", "", "! for i in x:\n    print(i)", "c", "b Mm if x > 1"])
def test_highlighting_changes_no_text(text: str) -> None:
    lines = CommandLexer().lex_document(Document(text))
    assert "\n".join("".join(part[1] for part in lines(i)) for i in range(text.count("\n") + 1)) == text


def test_an_unknown_command_is_red_and_python_is_coloured() -> None:
    lexer = CommandLexer()
    assert "ansired" in lexer.lex_document(Document("zzz"))(0)[0][0]
    styles = {part[1]: part[0] for part in lexer.lex_document(Document("p 'text' if x else 1"))(0)}
    assert "keyword" in styles["if"].lower() and styles["p"] == "bold"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("p sav", ["p saved", "p saved['self']", "p saved['mat2']"]),
        ("p saved", ["p saved['self']", "p saved['mat2']"]),
        ("p saved[", ["p saved['self']", "p saved['mat2']"]),
        ("p norm(saved['m", ["p norm(saved['mat2']"]),
        ('p saved["s', ["p saved['self']"]),
        ("b Mm if norm(saved[", ["b Mm if norm(saved['self']", "b Mm if norm(saved['mat2']"]),
        ("p saved['zzz", []),
        ("p saved['self'] + gra", ["p saved['self'] + grad_outputs", "p saved['self'] + grad_inputs"]),
    ],
)
def test_what_the_node_saved_is_offered_by_name(watched: Make, line: str, wanted: list[str]) -> None:
    one = watched()
    agent = one.stop_at("Mm")
    saved = [SlotView("self", "saved['self']", None), SlotView("mat2", "saved['mat2']", None, text="None")]
    body = protocol.NodeBody(NodeInfo(1, "MmBackward0", "MmBackward0#1"), "here", 1, [], [], saved)
    agent.do_node = lambda a: body  # type: ignore[attr-defined]
    agent.do_scopes = lambda a: protocol.ScopesBody([])  # type: ignore[attr-defined]
    assert complete_line(one.debugger, line) == wanted


def test_where_no_node_is_at_hand_nothing_saved_is_offered(watched: Make) -> None:
    one = watched()
    assert complete_line(one.debugger, "p saved[") == []
