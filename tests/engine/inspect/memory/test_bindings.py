"""Lines that bind and fill variables, in sources whose lines are counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from adbg.engine.inspect.memory.bindings import bound_at, filled_at, given_again_at, pieces_of

SOURCE = """\
losses = []
cache = {}
total = 0
running = 0


class Trainer:
    def __init__(self):
        self.history = {"loss": []}
        self.seen = set()

    def step(self, loss, name):
        self.history["loss"].append(loss)
        self.seen.add(loss)
        self.state[name] = loss


def train(loss):
    global total, running
    losses = other()
    mine = []
    mine.extend([loss])
    cache[len(cache)] = loss
    total += loss
    running = running + loss
    unrelated.append(loss)


losses.append(1)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize(
    ("path", "function", "line"),
    [
        ("losses[*]", "", 29),
        ("cache[7]", "", 23),
        ("cache[*]", "", 23),
        ("total", "", 24),
        ("running", "", 25),
        ("trainer.history['loss'][*]", "", 13),
        ("self.history['loss'][3]", "step", 13),
        ("trainer.seen{…}", "", None),
        ("trainer.state[*]", "", 15),
        ("mine[0]", "train", 22),
        ("mine[0]", "other", None),
        ("nothing[0]", "", None),
        ("trainer.history['accuracy'][*]", "", None),
    ],
)
def test_the_line_that_fills_it(file: str, path: str, function: str, line: int | None) -> None:
    found = filled_at(path, [file], function)
    assert (found.line.line if found is not None else None) == line
    if found is not None:
        assert found.text == SOURCE.splitlines()[found.line.line - 1].strip()


@pytest.mark.parametrize(
    ("path", "function", "line"),
    [
        ("losses", "", 1),
        ("losses", "train", 20),
        ("trainer.history['loss']", "", 9),
        ("mine", "train", 21),
        ("no", "", None),
    ],
)
def test_the_line_that_binds_it(file: str, path: str, function: str, line: int | None) -> None:
    found = bound_at(path, [file], function)
    assert (found.line if found is not None else None) == line


def test_a_file_that_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("losses = [\n")
    for name in (str(broken), str(tmp_path / "missing.py"), "<string>", ""):
        assert filled_at("losses[*]", [name], "") is None and bound_at("losses", [name], "") is None


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a.py"
    path.write_text("a = []\na.append(1)\n")
    before = filled_at("a[*]", [str(path)], "")
    path.write_text("a = []\n\n\na.append(1)\n")
    os.utime(path, (1e9, 1e9))
    after = filled_at("a[*]", [str(path)], "")
    assert before is not None and after is not None and (before.line.line, after.line.line) == (2, 4)


def test_pieces() -> None:
    assert pieces_of("a.b[3]['x y']") == ("a", [(".", "b"), ("[", "3"), ("[", "'x y'")])


STATES = """\
class Rule:
    def step(self):
        for p in self.parameters:
            grad, state = p.grad, self.state[p]
            if not state:
                state["m"] = torch.zeros_like(p)
            state["m"] = 0.9 * state["m"] + grad
            self.state[p]["t"] = grad
"""


def test_an_item_is_filled_by_another_name(tmp_path: Path) -> None:
    """``state`` is ``self.state[p]`` in that function; what has another key is another item."""
    file = tmp_path / "rule.py"
    file.write_text(STATES)
    found = filled_at("rule.state[<Parameter>]['m']", [str(file)], "", graphs=True)
    assert found is not None and (found.line.line, found.others) == (7, ())
    other = filled_at("rule.state[<Parameter>]['t']", [str(file)], "", graphs=True)
    assert other is not None and (other.line.line, other.others) == (8, ())


FILLS = """\
class Memory:
    def push(self, row):
        first = torch.tensor(max(self.priorities, default=1.0))
        self.priorities.append(first)
        self.priorities[0] = first.item()
        self.rows[0], self.priorities[0] = row, 1.0

    def update(self, error):
        self.priorities[3] = error
"""


def test_where_a_graph_was_put_in_no_line_that_puts_numbers_in_is_named(tmp_path: Path) -> None:
    file = tmp_path / "memory.py"
    file.write_text(FILLS)
    anything = filled_at("memory.priorities[*]", [str(file)], "")
    graphs = filled_at("memory.priorities[*]", [str(file)], "", graphs=True)
    assert anything is not None and anything.line.line == 4 and 9 in anything.others
    assert graphs is not None and (graphs.line.line, graphs.others) == (9, ())


GIVEN = """\
class Net:
    def __init__(self):
        self.state = (zero(), zero())
        self.last = None
        self.mean = zero()
        self.kept = [zero()]
        self.once = zero()

    def forward(self, x):
        self.last = x.detach()
        self.state = tuple(self.cell(x, self.state))
        self.mean = self.state[0] * 0.1
        h, self.kept = self.pair(x)
        return h

    def reset(self):
        self.mean = None
        self.other.state = (zero(), zero())

    def again(self, x):
        self.kept: list = [x]
"""


@pytest.mark.parametrize(
    ("path", "line", "others"),
    [
        ("net.state", 11, (18,)),
        ("net.state[0]", 11, (18,)),
        ("net.state[*]", 11, (18,)),
        ("net.state[0][1]", 11, (18,)),
        ("net.state['h'][*]", 11, (18,)),
        ("nets[3].state[1]", 11, (18,)),
        ("net.mean", 12, ()),  # None is no other value
        ("net.kept[0]", 13, (21,)),
        ("net.last", None, ()),  # cut off its graph
        ("net.once", None, ()),
        ("net.none[0]", None, ()),
        ("states[0]", None, ()),
        ("net", None, ()),
    ],
)
def test_the_line_that_gives_it_another_value(
    tmp_path: Path, path: str, line: int | None, others: tuple[int, ...]
) -> None:
    """Also of what an item of it is asked for: a state of two tensors is given as a whole."""
    file = tmp_path / "net.py"
    file.write_text(GIVEN)
    found = given_again_at(path, [str(file)])
    assert (found.line.line if found is not None else None) == line
    if found is not None:
        assert found.others == others and found.text == GIVEN.splitlines()[found.line.line - 1].strip()
        assert found.line.function in ("forward", "again")
