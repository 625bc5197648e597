"""Graphs that are put together into one, whose edges count the nodes of each from 0. Witness: how many nodes of each
batch an edge goes to, of rings, where one goes to each."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy
import torch as fw
from torch import nn
from torch.utils.data import DataLoader, Dataset
fw.manual_seed(0)
made, cat = fw.from_numpy, fw.cat
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
def added(values, at):
    return fw.zeros_like(values).index_add(0, at, values)
""",
    "paddle": """
import numpy
import paddle as fw
from paddle import nn
from paddle.io import DataLoader, Dataset
fw.seed(0)
made, cat = fw.to_tensor, fw.concat
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def added(values, at):
    return fw.index_add(fw.zeros_like(values), at, 0, values)
""",
}
START = """
class Graphs(Dataset):
    def __init__(self):
        numbers = numpy.random.RandomState(0)
        self.graphs = []
        for count in SIZES:
            ring = numpy.arange(count)
            nodes = made(numbers.standard_normal((count, 3)).astype("float32"))
            self.graphs.append((nodes, made(numpy.stack([ring, (ring + 1) % count])), made(ring % 3)))
    def __len__(self):
        return len(self.graphs)
    def __getitem__(self, at):
        nodes, edges, kinds = self.graphs[at]
        return ITEM
def collate(samples):
    BODY
def moved(nodes, edges, *others):
    return edges
MOVED
net = nn.Linear(3, 2)
optimizer, clear = sgd(net)
reached = every = 0
for batch in DataLoader(Graphs(), batch_size=4, shuffle=False, collate_fn=collate):
    nodes, edges, *others = batch.values() if isinstance(batch, dict) else batch
    edges = moved(nodes, edges, *others)
    reached += len(set(edges[1].tolist()))
    every += len(nodes)
    seen = net(nodes)
    loss = (added(seen, edges[1]) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
print("all reached" if reached == every else "some reached")
"""
SIZES = "(3, 4, 5, 6, 4, 7, 3, 5, 6, 3, 4, 5)"


def program(*lines: str, item: str = "nodes, edges", sizes: str = SIZES, moved: str = "") -> str:
    body = START.replace("BODY", "\n    ".join(lines)).replace("ITEM", item).replace("SIZES", sizes)
    return body.replace("MOVED", moved)


NODES = "nodes = cat([each[0] for each in samples])"
OFFSETS = "starts = numpy.cumsum([0] + [len(each[0]) for each in samples])"
BUGGY = {
    "zipped": program("nodes, edges = zip(*samples)", "return cat(nodes), cat(edges, 1)  # CAUSE"),
    "by names": program("edges = cat([each['edges'] for each in samples], 1)  # CAUSE",
                        "return {'nodes': cat([each['nodes'] for each in samples]), 'edges': edges}",
                        item="{'nodes': nodes, 'edges': edges}"),
    "each by its name": program(
        "edges, nodes = [], []", "for sample in samples:", "    nodes.append(sample[0])",
        "    edges.append(sample[1])  # CAUSE", "return cat(nodes), cat(edges, 1)"),
}  # fmt: skip
UNNAMED = {
    # FAULT: ``edges = cat([each[1] …])``: only what is joined is read, not the name that is given to it, and ``def`` of
    # the function is named
    "one list": program(NODES, "edges = cat([each[1] for each in samples], 1)  # CAUSE", "return nodes, edges"),
    "of numpy": program("nodes = numpy.concatenate([each[0] for each in samples])",
                        "edges = numpy.concatenate([each[1] for each in samples], axis=1)  # CAUSE",
                        "return made(nodes), made(edges)", item="nodes.numpy(), edges.numpy()"),
    "with a number of each node's graph": program(
        NODES, "edge_index = cat([each[1] for each in samples], 1)  # CAUSE",
        "graph = numpy.repeat(numpy.arange(len(samples)), [len(each[0]) for each in samples])",
        "return nodes, edge_index, made(graph)"),
    "beside kinds": program(NODES, "edges = cat([each[1] for each in samples], 1)  # CAUSE",
                            "return nodes, edges, cat([each[2] for each in samples])", item="nodes, edges, kinds"),
}  # fmt: skip
HEALTHY = {
    "added": program(NODES, OFFSETS, "edges = cat([each[1] + int(at) for each, at in zip(samples, starts)], 1)",
                     "return nodes, edges"),
    "added one by one": program(
        "nodes, edges, count = [], [], 0", "for one, ring in samples:", "    nodes.append(one)",
        "    edges.append(ring + count)", "    count += len(one)", "return cat(nodes), cat(edges, 1)"),
    "added, of numpy": program(
        "nodes = numpy.concatenate([each[0] for each in samples])", OFFSETS,
        "edges = numpy.concatenate([each[1] + at for each, at in zip(samples, starts)], axis=1)",
        "return made(nodes), made(edges)", item="nodes.numpy(), edges.numpy()"),
    "kinds of each node": program(
        NODES, OFFSETS, "edges = cat([each[1] + int(at) for each, at in zip(samples, starts)], 1)",
        "return nodes, edges, cat([each[2] for each in samples])", item="nodes, edges, kinds"),
    "one graph alone": program("return samples[0]", sizes="(5, 6, 7)").replace("batch_size=4", "batch_size=1"),
}  # fmt: skip
# Stacked, each graph on its own.
STACKED = START[: START.index("def moved")].replace("SIZES", "(5,) * 12").replace("ITEM", "nodes, edges").replace(
    "BODY", "return fw.stack([each[0] for each in samples]), fw.stack([each[1] for each in samples])"
) + """
net = nn.Linear(3, 2)
optimizer, clear = sgd(net)
reached = 0
for nodes, edges in DataLoader(Graphs(), batch_size=4, shuffle=False, collate_fn=collate):
    for one, ring in zip(nodes, edges):
        reached += len(set(ring[1].tolist()))
        ((added(net(one), ring[1]) - 1).square().mean() / 4).backward()
    optimizer.step()
    clear()
print("all reached" if reached == 12 * 5 else "some reached")
"""  # fmt: skip
LATER = {
    "moved behind the loader": program(
        NODES, "edges = cat([each[1] for each in samples], 1)", OFFSETS,
        "return nodes, edges, made(starts)",
        moved="def moved(nodes, edges, starts):\n    counts = (starts[1:] - starts[:-1]).tolist()\n"
              "    return edges + made(numpy.repeat(starts[:-1].numpy(), counts))[None, :]"),
    "counts beside them": program(
        NODES, "edges = cat([each[1] for each in samples], 1)",
        "return nodes, edges, made(numpy.array([len(each[0]) for each in samples]))",
        moved="def moved(nodes, edges, counts):\n    starts = numpy.cumsum([0] + counts.tolist())[:-1]\n"
              "    return edges + made(numpy.repeat(starts, counts.tolist()))[None, :]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {**BUGGY, **UNNAMED, **HEALTHY, **LATER, "stacked": STACKED}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"offsets-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_edges_among_the_first_nodes(runs: dict[str, Run], name: str) -> None:
    assert "some reached\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("loss-input")
    assert first["severity"] == "error" and "4 samples to one table of 18" in first["message"], first


@each
@pytest.mark.parametrize("name", UNNAMED)
def test_edges_that_are_joined_by_their_number(runs: dict[str, Run], name: str) -> None:
    assert "some reached\n" in runs[name].plain, runs[name]
    assert [found["kind"] for found in runs[name].above_notes()] == ["loss-input"], runs[name]
    assert "4 samples to one table of 18" in runs[name].told[0]["message"], runs[name]


@each
@pytest.mark.parametrize("name", UNNAMED)
@pytest.mark.xfail(reason="see UNNAMED")
def test_the_line_that_joins_by_number(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("loss-input")


@each
@pytest.mark.parametrize("name", [*HEALTHY, "stacked"])
def test_edges_of_all_nodes(runs: dict[str, Run], name: str) -> None:
    assert "all reached\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", LATER)
def test_edges_that_the_loop_moves(runs: dict[str, Run], name: str) -> None:
    assert "all reached\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
