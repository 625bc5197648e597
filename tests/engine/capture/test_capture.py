"""Regions, their pictures and files on a graph made by hand: the one of Paddle's own dump files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adbg.engine.backends.base import DumpDialect, Graph, SavedValue, Stray
from adbg.engine.capture.drawing import (
    Drawing,
    DrawnEdge,
    DrawnNode,
    backward_drawing,
    capture_of,
    forward_drawing,
    long_dtype,
    size_text,
)
from adbg.engine.capture.paddle_files import Folder, dot_text, pieces, stack_text
from adbg.engine.capture.svg import MOST_NODES, svg_text
from adbg.engine.errors import CommandError
from adbg.engine.graph.region import BOUNDARY, INSIDE, LEAF, Region, marks_of, parse_region, select
from adbg.engine.graph.region import mark as remember
from adbg.engine.types import Edge, NodeInfo, SourceLine, TensorMeta

SAMPLES = Path(__file__).parents[2] / "data" / "paddle_dumps"
FILE = "/home/me/samples/../snip/s14_fwd.py"
F32_2x3 = TensorMeta((2, 3), "f32", "cpu", 24, 6)
NODE = re.compile(r'\tnode_(\d+)\[label="([^"]*)".*? color="([^"]*)"')
EDGE = re.compile(r'\tnode_(\d+)->node_(\d+)\[label="([^"]*)"\]')


class SampleGraph(Graph):
    """sum1 -> multiply3 -> {PyLayer Sq, tanh1}, Sq -> tanh1, tanh1 -> leaf: what the committed sample was made from."""

    NAMES = ("sum1GradNode", "multiply3GradNode", "GradNodePyLayer_Sq", "tanh1GradNode", "GradNodeAccumulation")
    BELOW = ((1,), (2, 3), (3,), (4,), ())
    LINES = (17, 15, 15, 13, None)
    POINTERS = (0x561A45E88020, 0x561A45E89070, 0x561A42098530, 0x561A420980E0, 0x561A42090000)

    def count(self) -> int:
        return len(self.NAMES)

    def order(self) -> Sequence[int]:
        return range(len(self.NAMES))

    def roots(self) -> Sequence[int]:
        return [0]

    def describe(self, key: int) -> NodeInfo:
        return NodeInfo(key, self.NAMES[key], self.NAMES[key], accumulate=key == 4)

    def edges(self, key: int) -> Sequence[Edge]:
        return [Edge(slot, to) for slot, to in enumerate(self.BELOW[key])]

    def saved(self, key: int) -> Sequence[SavedValue]:
        return ()

    def attributes(self, key: int) -> Mapping[str, str]:
        return {}

    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        return [F32_2x3]

    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        line = self.LINES[key]
        return ((SourceLine(FILE, line, "<module>"),), "") if line else ((), "")

    def node(self, key: int) -> Any:
        return self

    def address(self, key: int) -> int:
        return self.POINTERS[key]

    @staticmethod
    def op_of(unique_name: str) -> str:
        return unique_name.replace("GradNode", "")


REGION = parse_region("s14_fwd.py:15-16")


def shape_of(dot: str) -> tuple[dict[str, tuple[str, str]], list[tuple[str, str, str]]]:
    """Nodes (number -> label, colour) and edges of a .dot file."""
    nodes = {number: (label, colour) for number, label, colour in NODE.findall(dot)}
    return nodes, EDGE.findall(dot)


@pytest.mark.parametrize("text", ["m.py", "m.py:", ":3-4", "m.py:0-4", "m.py:5-4", "m.py:a-b", "m.py:3-"])
def test_what_is_no_region_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_region(text)


def test_a_region_takes_lines_of_its_file_by_whole_components() -> None:
    region = parse_region("pkg/model.py:10-12")
    assert region.has_line(SourceLine("/me/pkg/model.py", 12, "f"))
    assert not region.has_line(SourceLine("/me/pkg/model.py", 13, "f"))
    assert not region.has_line(SourceLine("/me/mypkg/model.py", 11, "f"))
    assert parse_region("model.py:7") == Region("model.py", 7, 7)


def test_inside_boundary_and_leaves() -> None:
    graph = SampleGraph()
    found = select(graph, REGION)
    assert found.inside == (1, 2)
    assert found.marks == {1: INSIDE, 2: INSIDE, 0: BOUNDARY, 3: BOUNDARY}
    whole = select(graph, None)
    assert whole.marks == {0: INSIDE, 1: INSIDE, 2: INSIDE, 3: INSIDE, 4: LEAF}
    assert marks_of(graph) == {}
    remember(graph, found)
    assert marks_of(graph) == found.marks


def test_graphs_are_those_of_paddle_to_the_character() -> None:
    """But for the names of the two gradients that a PyLayer gave: Paddle takes them from tensors of its own."""
    graph = SampleGraph()
    capture = capture_of(graph, select(graph, REGION))
    theirs = (SAMPLES / "subgraph" / "backward_graph.dot").read_text()
    ours = dot_text(backward_drawing(capture, ""))
    renamed = ours.replace("Sq_out_float32_2x3@Grad", "Sq2_out0_0_float32_2x3@Grad")
    edge = 'node_2->node_3[label="'
    renamed = renamed.replace(f"{edge}tanh1_out_float32_2x3@Grad", f"{edge}multiply4_out_float32_2x3")
    assert renamed == theirs
    assert dot_text(forward_drawing(capture, "")) == (SAMPLES / "subgraph" / "ref_forward_graph.dot").read_text()


def test_leaves_and_whole_graphs_have_the_colours_and_attributes_of_paddle() -> None:
    theirs = (SAMPLES / "backward" / "backward_graph.dot").read_text()
    graph = SampleGraph()
    ours = dot_text(backward_drawing(capture_of(graph, select(graph, None)), ""))
    blank = re.compile(r'label="[^"]*"')
    leaf = next(line for line in ours.splitlines() if "GradNodeAccumulation" in line)
    assert blank.sub("", leaf).partition("[")[2] == blank.sub("", theirs.splitlines()[1]).partition("[")[2]
    inside = next(line for line in ours.splitlines() if "tanh1GradNode" in line)
    assert blank.sub("", inside).partition("[")[2] == blank.sub("", theirs.splitlines()[2]).partition("[")[2]
    assert 'label="Node\\nGradNode: 0x' in dot_text(forward_drawing(capture_of(graph, select(graph, None)), ""))


def test_call_stacks_have_the_form_of_paddle() -> None:
    graph = SampleGraph()
    theirs = (SAMPLES / "subgraph" / "call_stack.log").read_text()
    dialect = DumpDialect(stack_note=theirs.partition("\n")[0] + "\n")
    nodes = capture_of(graph, select(graph, REGION)).nodes
    ours = stack_text(graph, [node.key for node in reversed(nodes)], dialect)
    head = re.compile(r"^(?:Note.*|GradNodeBase .*|  File .*s14_fwd.*)$", re.M)
    assert [line for line in head.findall(ours) if "sum1" not in line and "17" not in line] == head.findall(theirs)
    assert ours.endswith("\n\n")


def test_ops_without_a_part_in_the_loss_stand_apart_and_are_marked() -> None:
    graph = SampleGraph()
    capture = capture_of(graph, select(graph, REGION))
    stray = Stray('y = "a\\b".sin()', (SourceLine("/me/m.py", 9, "f"),))
    nodes, edges = shape_of(dot_text(forward_drawing(capture, "", [stray], "some are missing")).replace('\\"', "'"))
    assert nodes["4"][0].endswith("m.py:9\\n(no part in the loss)") and len(nodes) == 5
    assert not any("4" in edge[:2] for edge in edges)
    assert "\t// some are missing\n" in dot_text(forward_drawing(capture, "", [], "some are missing"))


def test_unknown_shapes_leave_names_only_and_are_counted() -> None:
    class Blind(SampleGraph):
        def input_meta(self, key: int) -> Sequence[TensorMeta]:
            return ()

    graph = Blind()
    capture = capture_of(graph, select(graph, REGION))
    assert (capture.unknown, capture.nbytes) == (4, 0)
    assert 'label="tanh1_out@Grad"' in dot_text(backward_drawing(capture, ""))


def test_svg_is_well_formed_coloured_and_without_overlap() -> None:
    graph = SampleGraph()
    capture = capture_of(graph, select(graph, None))
    root = ElementTree.fromstring(svg_text(backward_drawing(capture, "a < b & \x00c")))
    space = {"s": "http://www.w3.org/2000/svg"}
    boxes = root.findall(".//s:g[@class='inside']/s:rect", space) + root.findall(".//s:g[@class='leaf']/s:rect", space)
    assert len(boxes) == 5 and {box.get("fill") for box in boxes} == {"#999999", "#148b97"}
    spots = [tuple(float(box.get(name, "")) for name in ("x", "y", "width", "height")) for box in boxes]
    for i, (x, y, w, h) in enumerate(spots):
        assert all(x + w <= a or a + c <= x or y + h <= b or b + d <= y for a, b, c, d in spots[i + 1 :])
    assert len(root.findall(".//s:g[@class='edge']/s:path", space)) == 5


def test_a_large_picture_is_bounded_and_says_so() -> None:
    count = MOST_NODES * 3
    nodes = tuple(DrawnNode(i, f"n{i}", INSIDE, i) for i in range(count))
    edges = tuple(DrawnEdge(i, i + 1, "") for i in range(count - 1))
    text = svg_text(Drawing("large", nodes, edges))
    assert text.count('<g class="inside">') == MOST_NODES
    assert f"drawn: {MOST_NODES} of {count} nodes" in text


@pytest.mark.parametrize("shape", [(), (5,), (5000,), (2, 3), (700, 3), (2, 5000), (2, 1, 3), (2, 0, 3)])
def test_pieces_cover_a_tensor_in_row_major_order(shape: tuple[int, ...]) -> None:
    numel = 1
    for size in shape:
        numel *= size
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]

    def flat(piece: str) -> list[int]:
        found = [0]
        for part, stride in zip(piece.strip("[]").split(", ") if piece else [], strides):
            first, colon, last = part.partition(":")
            span = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
            found = [base + i * stride for base in found for i in span]
        return found

    assert [i for piece in pieces(shape) for i in flat(piece)] == list(range(numel))


def test_a_folder_never_touches_what_is_there(tmp_path: Path) -> None:
    folders = [Folder(str(tmp_path / "new")) for _ in range(3)]
    for folder in folders:
        folder.write("backward_graph.dot", "x")
        with pytest.raises(CommandError):
            folder.write("backward_graph.dot", "y")
    assert len({file for folder in folders for file in folder.files}) == len(list((tmp_path / "new").iterdir()))
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot write"):
        Folder(str(tmp_path / "file" / "below"))


def test_words() -> None:
    assert [long_dtype(short) for short in ("f32", "bf16", "i64", "b1", "c64", "odd")] == [
        "float32", "bfloat16", "int64", "bool", "complex64", "odd",
    ]  # fmt: skip
    assert [size_text(size) for size in (96, 3_400_000, 5 * 10**12)] == ["96 bytes", "3.4 MB", "5000.0 GB"]
