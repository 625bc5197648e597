"""What a completion offers behind a dot, on real frameworks: what the object's own ``dir`` says, without its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.dialled import Dialled
from support.frameworks import node_of, on_frameworks

SCRIPTS = {
    "torch": """
import torch
Module, Linear, List = torch.nn.Module, torch.nn.Linear, torch.nn.ModuleList
ones, leaf = torch.ones, lambda: torch.ones(3, 2, requires_grad=True)
""",
    "paddle": """
import paddle
Module, Linear, List = paddle.nn.Layer, paddle.nn.Linear, paddle.nn.LayerList
ones = lambda *shape: paddle.ones(shape)
def leaf():
    x = paddle.ones([3, 2]); x.stop_gradient = False
    return x
""",
}
REST = """
ran = []
class Trap:
    def __init__(self): self.inside, self._hidden = 1, 2
    def __getattr__(self, name): ran.append(name); raise AttributeError(name)
    def __dir__(self): ran.append("dir"); return ["made_up"]
    def __getitem__(self, key): ran.append(key); return self
    @property
    def value(self): ran.append("value"); return self
    @property
    def __class__(self): ran.append("class"); return int
class Slots:
    __slots__ = ("full", "empty")
    def __init__(self): self.full = Trap()
class Odd:
    @property
    def __dict__(self): ran.append("__dict__"); return {"made_up": 1}
class Net(Module):
    def __init__(self):
        super().__init__()
        self.fc = Linear(2, 2)
        self.layers = List([Linear(2, 4), Linear(4, 2)])
        self.register_buffer("scale", ones(1))
        self.trap, self.rate = Trap(), 0.1
    def fit(self):
        table = {"net": self, "many": [1, (self,)]}
        slots, odd = Slots(), Odd()
        x = leaf()
        y = x.exp()
        ran.clear()
        y.sum().backward()
        print(ran, sorted(n for n in dir(self.layers[1]) if n[0] != "_"), sep="|")
model = Net()
model.fit()
"""


def asked(run: Dialled, expression: str) -> dict[str, str]:
    rows: list[dict[str, Any]] = run.peer.request("adbg/attributes", expression=expression)["attributes"]
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row["type"] for row in rows}


@on_frameworks()
def test_names_behind_a_dot_are_those_of_dir_and_nothing_of_the_programs_runs(framework: str, tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPTS[framework] + REST) as run:
        run.peer.begin(node_of(framework, "exp"))
        run.peer.stopped()
        found = asked(run, "self")
        assert {name: found[name] for name in ("fc", "rate", "trap")} == {
            "fc": "Linear", "rate": "float", "trap": "Trap",
        }  # fmt: skip
        assert {"layers", "scale", "fit"} <= set(found) and list(found).index("fc") < list(found).index("_parameters")
        for chain in ("model.fc", "self.layers[1]", "table['net'].layers[-1]", "table['many'][1][0].fc"):
            assert asked(run, chain)["weight"], chain
        layer = asked(run, "self.layers[1]")
        for chain in ("x", "grad_outputs[0]", "x.grad", "self.fc.weight", "model.scale"):
            assert {"shape", "backward", "dtype"} <= set(asked(run, chain)), chain
        assert next(iter(asked(run, "self.trap"))) == "inside" and "made_up" not in asked(run, "self.trap")
        assert "value" in asked(run, "self.trap")
        assert asked(run, "slots.full")["inside"] == "int"
        assert "made_up" not in asked(run, "odd")
        assert {"exp", "nn"} <= set(asked(run, framework)) and asked(run, "Net")["fit"] == ""
        for nothing in (
            "self.trap.value", "self.trap[0]", "slots.empty", "nobody", "x.shape", "self.fit()", "table['none']", "",
            "x +", "table[[]]", "self.layers[9]", "saved[9]", "x" + ".T" * 3000,
        ):  # fmt: skip
            assert asked(run, nothing) == {} or nothing.endswith(".T"), nothing
        run.peer.request("continue")
        code, out, error = run.end()
    assert code == 0, error
    ran, names = out.strip().split("|")
    assert ran == "[]", "code of the program's ran"
    assert set(eval(names)) <= set(layer), "the framework's own list"


@on_frameworks(frameworks=("torch",))
def test_what_a_node_saved_completes(framework: str, tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPTS[framework] + REST) as run:
        run.peer.begin(node_of(framework, "exp"))
        run.peer.stopped()
        assert "result" in asked(run, "saved")
        for chain in ("saved[0]", "saved['result']", "saved.result"):
            assert "shape" in asked(run, chain), chain


@on_frameworks()
def test_statistics_come_with_the_value_and_the_expression_runs_once(framework: str, tmp_path: Path) -> None:
    script = SCRIPTS[framework] + REST.replace("ran.clear()", "ran.clear(); self.count = []")
    with Dialled(tmp_path, script) as run:
        run.peer.begin(node_of(framework, "exp"))
        run.peer.stopped()
        body = run.peer.request("evaluate", expression="self.count.append(1) or y * 3", context="repl", stats=True)
        assert run.peer.request("evaluate", expression="len(self.count)", context="repl")["value"] == 1
        own = run.peer.request("evaluate", expression="float(((y * 3) ** 2).sum()) ** 0.5", context="repl")["value"]
        assert abs(body["stats"]["norm"] - own) < 1e-3 * own and body["stats"]["positive"] == 6
        assert run.peer.request("evaluate", expression="y", context="repl").get("stats") is None, "nobody asked"
        for one in ("y.sum()", "self.rate"):
            assert run.peer.request("evaluate", expression=one, context="repl", stats=True).get("stats") is None
