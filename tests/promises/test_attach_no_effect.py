"""The promise "no effect" of an attach: a program that somebody stopped, looked into and left computes what a run of as
many steps computes to which nobody attached, and has drawn the same random numbers."""

from __future__ import annotations

from stress import catalog
from stress.attaching import Session
from stress.running import Running, witness
from support.frameworks import on_frameworks
from support.patience import patience

from adbg.engine.protocol import messages as p

OLD_GRAPH = {"torch": "in the middle of a torch backward", "paddle": "in the middle of a Paddle backward"}
STOPS = 3


def look_around(session: Session, client: object) -> list[str]:
    """Three stops before a node, with questions at each; the names of the nodes."""
    seen = []
    for _ in range(STOPS):
        while not isinstance(stop := session.events.get(timeout=patience(60)), p.Stopped):
            pass
        seen.append(stop.adbg.node.unique_name if stop.adbg and stop.adbg.node else "")
        answer = client.request(p.Evaluate("norm(grad_outputs[0])"), patience(60))  # type: ignore[attr-defined]
        assert answer.result
        client.request(p.StepIn() if len(seen) == 1 else p.Continue(), patience(60))  # type: ignore[attr-defined]
    return seen


def attach_look_and_leave(target: Running, spec: str) -> list[str]:
    with Session() as session:
        client = session.begin(target.pid, patience(60))
        (state,) = client.request(p.SetFunctionBreakpoints([p.BreakpointRequest(spec, id=1)])).breakpoints
        assert state.verified, state
        seen = look_around(session, client)
        client.request(p.Disconnect(), patience(60))
        assert session.lost.wait(patience(30)), "the agent hung up"
    return seen


@on_frameworks()
def test_result_and_random_numbers(framework: str) -> None:
    kind = catalog.SLOW[framework]
    python = catalog.python_of(framework)
    with Running(kind, python) as target:
        for _ in range(2):
            seen = attach_look_and_leave(target, "Relu*")
            assert len(seen) == STOPS
        steps, digest = target.end()
    assert steps > 0
    assert witness(kind, python, steps) == digest


@on_frameworks()
def test_graph_built_before(framework: str) -> None:
    """The nodes that stop were made before anybody attached."""
    kind = catalog.kind(OLD_GRAPH[framework])
    python = catalog.python_of(framework)
    with Running(kind, python) as target:
        seen = attach_look_and_leave(target, "Tanh*")
        assert any("anh" in name for name in seen), seen
        steps, digest = target.end()
    assert witness(kind, python, steps) == digest
