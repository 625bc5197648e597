"""The breakpoint grammar: every row of the table, its suffixes, what is refused and how, and what names take."""

from __future__ import annotations

import random

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.names import closest_names, file_matches, name_matches, path_matches, short_names
from adbg.engine.session.breakpoints.grammar import Spec, SpecKind, parse_spec, spec_matches
from adbg.engine.types import NodeInfo, Phase, SourceLine

HEADS = {
    "BmmBackward0": Spec(SpecKind.NAME, "BmmBackward0"),
    "Bmm": Spec(SpecKind.NAME, "Bmm"),
    "Bmm*": Spec(SpecKind.NAME, "Bmm*"),
    "[AB]mm?ackward0": Spec(SpecKind.NAME, "[AB]mm?ackward0"),
    "op:Bmm": Spec(SpecKind.NAME, "Bmm"),
    "op:error": Spec(SpecKind.NAME, "error"),
    "matmul2GradNode": Spec(SpecKind.NAME, "matmul2GradNode"),
    "GradNodePyLayer_Outer": Spec(SpecKind.NAME, "GradNodePyLayer_Outer"),
    "MmBackward0#3": Spec(SpecKind.NAME, "MmBackward0#3"),
    "torch::autograd::AccumulateGrad": Spec(SpecKind.NAME, "torch::autograd::AccumulateGrad"),
    "#112": Spec(SpecKind.INDEX, number=112),
    "model.py:16": Spec(SpecKind.LINE, "model.py", 16),
    "pkg/model.py:16": Spec(SpecKind.LINE, "pkg/model.py", 16),
    r"C:\x\model.py:16": Spec(SpecKind.LINE, r"C:\x\model.py", 16),
    "<string>:3": Spec(SpecKind.LINE, "<string>", 3),
    "'my model.py:16'": Spec(SpecKind.LINE, "my model.py", 16),
    "module:layers.3.*": Spec(SpecKind.MODULE, "layers.3.*"),
    "param:fc.*": Spec(SpecKind.PARAMETER, "fc.*"),
    "nan": Spec(SpecKind.NAN),
    "NaN": Spec(SpecKind.NAN),
    "inf": Spec(SpecKind.INF),
    "nonfinite": Spec(SpecKind.NONFINITE),
    "backward": Spec(SpecKind.BACKWARD),
    "backward-begin": Spec(SpecKind.BACKWARD),
    "op:backward-begin": Spec(SpecKind.NAME, "backward-begin"),
    "backward-end": Spec(SpecKind.BACKWARD_END),
    "error": Spec(SpecKind.ERROR),
}

SUFFIXES = {
    "after": {"phase": Phase.AFTER},
    "every 7": {"every": 7},
    "ignore 2": {"ignore": 2},
    "backward 3": {"backward": 3},
    "rank 0,2-4": {"ranks": (0, 2, 3, 4)},
    "if index > 2": {"condition": "index > 2"},
}

CONDITIONS = [
    "norm(grad_outputs[0]) > 1e-2",
    "x if y else after",
    "d['every 2'] == 'before'",
    "(lambda a: a)(1)",
    "[t for t in grad_outputs if t is not None]",
    "not before",
]


@pytest.mark.parametrize("text", HEADS)
def test_each_head_of_the_table(text: str) -> None:
    assert parse_spec(text) == HEADS[text]
    assert parse_spec(f"  {text}  ") == HEADS[text]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_is_the_longest_expression(condition: str) -> None:
    assert parse_spec(f"Bmm if {condition}").condition == condition
    spec = parse_spec(f"Bmm if {condition} after every 2")
    assert (spec.condition, spec.phase, spec.every) == (condition, Phase.AFTER, 2)


def test_every_combination_of_suffixes_in_any_order() -> None:
    """Heads x subsets of suffixes x orders: each parses to what it says, and its normal form parses to the same."""
    dice = random.Random(1)
    for head, base in HEADS.items():
        for _ in range(60):
            chosen = dice.sample(list(SUFFIXES), dice.randint(0, len(SUFFIXES)))
            if not (base.of_node or base.of_values):
                chosen = [suffix for suffix in chosen if suffix != "after"]
            text = " ".join([head, *chosen])
            spec = parse_spec(text)
            expected = {name: value for suffix in chosen for name, value in SUFFIXES[suffix].items()}
            for field in ("phase", "every", "ignore", "backward", "condition"):
                assert getattr(spec, field) == expected.get(field, getattr(base, field)), text
            assert (spec.kind, spec.pattern, spec.number) == (base.kind, base.pattern, base.number)
            assert parse_spec(spec.normalised()) == spec, text


def test_words_of_the_grammar_read_as_people_write_them() -> None:
    assert parse_spec("backward 3") == parse_spec("backward backward 3") == Spec(SpecKind.BACKWARD, backward=3)
    assert parse_spec("Bmm before") == parse_spec("Bmm")
    assert parse_spec("nan before").phase is Phase.BEFORE  # only a gradient that flows in
    assert parse_spec("op:Bmm after").normalised() == "Bmm after"


BAD = {
    "": "no breakpoint given",
    "#0": "invalid node number '#0'",
    "#x": "invalid node number '#x'",
    "112": "'112' alone is neither",
    "model.py": "has no line",
    "model.py:": "invalid line number ''",
    "model.py:0": "invalid line number '0'",
    "model.py:ten": "invalid line number 'ten'",
    "modul:fc": "unknown prefix 'modul:'",
    "module:": "nothing after 'module:'",
    "Bmm evry 2": "did you mean 'every'",
    "Bmm every": "got nothing",
    "Bmm every 0": "got '0'",
    "Bmm every x": "got 'x'",
    "Bmm backward -1": "got '-1'",
    "Bmm if": "nothing after 'if'",
    "Bmm if a >": "not a Python expression",
    "Bmm if a = 1": "not a Python expression",
    "Bmm every 2 every 3": "every is given twice",
    "Bmm before after": "given twice",
    "backward after": "'after' does not go with 'backward'",
    "error before": "does not go with 'error'",
    "'my model.py:3": "not closed",
    "if a > 1": "begins with 'if'",
    "every 2": "begins with 'every'",
    "Bmm(": "invalid node name",
    "Bmm#x": "invalid node name",
    "nan 3": "unexpected '3'",
    "\0": "invalid node name",
    "''": "invalid line number",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_spec_names_the_part_what_is_expected_and_an_example(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_spec(text)
    assert BAD[text] in caught.value.message
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_noise_gives_a_spec_or_a_command_error_and_nothing_else() -> None:
    dice = random.Random(2)
    alphabet = [
        "Bmm",
        "if",
        "every",
        "#",
        ":",
        "nan",
        "backward",
        "2",
        "'",
        '"',
        "(",
        "x>1",
        "*",
        "::",
        "after",
        " ",
        "\t",
        "é",
        "=",
    ]
    parsed = 0
    for _ in range(3000):
        text = "".join(dice.choice(alphabet) + dice.choice(["", " "]) for _ in range(dice.randint(0, 8)))
        try:
            spec = parse_spec(text)
        except CommandError:
            continue
        parsed += 1
        assert parse_spec(spec.normalised()) == spec, text
    assert parsed > 20


NAMES = [
    ("Bmm", "BmmBackward0", True),
    ("BmmBackward", "BmmBackward0", True),
    ("Bmm*", "BmmBackward0", True),
    ("*Backward0", "BmmBackward0", True),
    ("mm", "BmmBackward0", False),
    ("Bmm", "BaddbmmBackward0", False),
    ("Outer", "OuterBackward", True),
    ("Outer", "GradNodePyLayer_Outer", True),
    ("matmul2", "matmul2GradNode", True),
    ("matmul", "matmul2GradNode", True),
    ("matmul1", "matmul2GradNode", False),
    ("Matmul", "MatmulGradNode", True),
    ("AccumulateGrad", "torch::autograd::AccumulateGrad", True),
    ("bmm", "BmmBackward0", False),
]


@pytest.mark.parametrize(("pattern", "name", "taken"), NAMES)
def test_names_and_short_names(pattern: str, name: str, taken: bool) -> None:
    assert name_matches(pattern, name) is taken
    if taken:
        assert name_matches(pattern.lower(), name, "", fold=True)
        assert name_matches(pattern, name, f"{name}#2")


def test_unique_names() -> None:
    assert name_matches("MmBackward0#3", "MmBackward0", "MmBackward0#3")
    assert name_matches("Mm#3", "MmBackward0", "MmBackward0#3")
    assert not name_matches("Mm#3", "MmBackward0", "MmBackward0#13")
    assert name_matches("Mm#*3", "MmBackward0", "MmBackward0#13")
    assert name_matches("Mm#3", "MmBackward0"), "without a unique name: whether one of these nodes could match"
    assert short_names("BmmBackward0") == ("BmmBackward0", "BmmBackward", "Bmm")


def test_paths_and_files() -> None:
    assert path_matches("layers.3.*", "layers.3.attn.q")
    assert path_matches("layers.3", "layers.3.attn"), "made inside layers.3"
    assert not path_matches("layers.3.*", "layers.3"), "made in layers.3 itself, not in something below it"
    assert not path_matches("layers.3", "layers.31")
    assert file_matches("model.py", "/home/me/train/model.py")
    assert file_matches("./train/model.py", "/home/me/train/model.py")
    assert not file_matches("odel.py", "/home/me/train/model.py")
    assert file_matches("/home/me/train/model.py", "/home/me/train/model.py")
    assert not file_matches("/me/train/model.py", "/home/me/train/model.py")


def test_a_line_matches_any_frame_of_the_forward_stack() -> None:
    stack = (SourceLine("/lib/torch/nn/linear.py", 125, "forward"), SourceLine("/me/model.py", 16, "forward"))
    info = NodeInfo(1, "AddmmBackward0", "AddmmBackward0#1")
    assert spec_matches(parse_spec("model.py:16"), info, stack, 1)
    assert not spec_matches(parse_spec("model.py:17"), info, stack, 1)
    assert not spec_matches(parse_spec("model.py:125"), info, stack, 1)


def test_closest_names() -> None:
    names = ["BmmBackward0", "MulBackward0", "SoftmaxBackward0", "LogSoftmaxBackward0", "AccumulateGrad"]
    assert closest_names("Bnm", names) == ["BmmBackward0"]
    assert closest_names("softmax*", names) == ["SoftmaxBackward0", "LogSoftmaxBackward0"]
    assert closest_names("zzz", names) == []
    assert closest_names("", names) == []


@pytest.mark.parametrize("ranks", ["", "x", "1,", "-1", "2-1", "1-", "0 1", "1234567"])
def test_ranks_that_are_none(ranks: str) -> None:
    with pytest.raises(CommandError):
        parse_spec(f"Mm rank {ranks}")


def test_a_condition_before_ranks() -> None:
    spec = parse_spec("Mm if index > 1 rank 0,1 every 2")
    assert (spec.condition, spec.ranks, spec.every) == ("index > 1", (0, 1), 2)
    assert parse_spec(spec.normalised()) == spec
