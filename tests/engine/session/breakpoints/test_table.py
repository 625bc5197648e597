"""The breakpoint table: what is hooked, what is a hit, what is counted, from one thread and from many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.protocol.messages import BreakpointRequest, BreakpointState
from adbg.engine.session.breakpoints.table import FILTER_IDS, BreakpointTable, Hit, HitEvent
from adbg.engine.types import NodeInfo, Phase, SourceLine, SpecKind, StopReason
from tests.fake_backend import FakeGraph

BMM = NodeInfo(1, "BmmBackward0", "BmmBackward0#2", module="layers.3.attn")
ADD = NodeInfo(2, "AddBackward0", "AddBackward0#1")
LEAF = NodeInfo(3, "AccumulateGrad", "AccumulateGrad#1", parameter="fc.weight", accumulate=True)


def never(text: str) -> Any:
    raise AssertionError(f"evaluated {text!r}")


def table_of(*specs: str, **fields: Any) -> BreakpointTable:
    table = BreakpointTable()
    states = table.replace([BreakpointRequest(spec, id, **fields) for id, spec in enumerate(specs, 1)])
    assert all(state.verified for state in states), states
    return table


def node(
    info: NodeInfo = BMM, phase: Phase = Phase.BEFORE, index: int = 1, backward: int = 1, **facts: Any
) -> HitEvent:
    return HitEvent(phase, backward, index, info, **facts)


def ids(hits: list[Hit]) -> list[int]:
    return [hit.id for hit in hits]


def stops(table: BreakpointTable, count: int, evaluate: Callable[[str], Any] = never) -> list[int]:
    """Which of ``count`` crossings of the same node stop, from 1."""
    return [i for i in range(1, count + 1) if table.check(node(), evaluate)]


@pytest.mark.parametrize(
    ("spec", "event", "hit"),
    [
        ("Bmm", node(), True),
        ("Bmm", node(phase=Phase.AFTER), False),
        ("Bmm after", node(phase=Phase.AFTER), True),
        ("Bmm after", node(), False),
        ("Bmm#2", node(), True),
        ("Bmm#3", node(), False),
        ("bmm", node(), True),
        ("#4", node(index=4), True),
        ("#4", node(index=5), False),
        ("module:layers.3", node(), True),
        ("module:layers.4", node(), False),
        ("module:layers.3", node(ADD), False),
        ("param:fc.*", node(LEAF), True),
        ("param:fc.*", node(), False),
        ("model.py:16", node(stack=(SourceLine("/a/model.py", 16, "f"),)), True),
        ("model.py:16", node(stack=(SourceLine("/a/model.py", 17, "f"),)), False),
        ("model.py:16", node(), False),
        ("nan", node(nonfinite=(1, 0)), True),
        ("nan", node(nonfinite=(0, 1)), False),
        ("nan", node(phase=Phase.AFTER, nonfinite=(1, 0)), True),
        ("nan before", node(phase=Phase.AFTER, nonfinite=(1, 0)), False),
        ("inf", node(nonfinite=(0, 1)), True),
        ("nonfinite", node(nonfinite=(0, 1)), True),
        ("nonfinite", node(), False),
        ("backward", HitEvent(Phase.BEGIN, 1), True),
        ("backward", HitEvent(Phase.END, 1), False),
        ("backward-end", HitEvent(Phase.END, 1), True),
        ("backward 2", HitEvent(Phase.BEGIN, 1), False),
        ("backward 2", HitEvent(Phase.BEGIN, 2), True),
        ("Bmm backward 3", node(backward=2), False),
        ("Bmm backward 3", node(backward=3), True),
    ],
)
def test_place(spec: str, event: HitEvent, hit: bool) -> None:
    assert ids(table_of(spec).check(event, never)) == ([1] if hit else [])


def test_reasons() -> None:
    table = table_of("Bmm", "nonfinite", "backward")
    assert [hit.reason for hit in table.check(node(nonfinite=(0, 2)), never)] == [StopReason.BREAKPOINT, StopReason.INF]
    assert [hit.reason for hit in table.check(HitEvent(Phase.BEGIN, 2), never)] == [StopReason.BACKWARD]
    assert [hit.reason for hit in table.check(HitEvent(Phase.ERROR, 2), never)] == [StopReason.ERROR]


def test_error_is_on_by_default_and_needs_nothing_armed() -> None:
    table = BreakpointTable()
    assert not table.armed and table.plan().empty
    assert ids(table.check(HitEvent(Phase.ERROR, 1), never)) == [FILTER_IDS["error"]]
    table.set_filters([])
    assert table.check(HitEvent(Phase.ERROR, 1), never) == []
    states = table.set_filters(["error", "nan", "wrong"])
    assert [state.verified for state in states] == [True, True, False]
    assert "wrong" in states[2].message and "nonfinite" in states[2].message
    assert table.armed and table.plan().screen


def test_case_counts_first_and_is_ignored_only_where_no_name_has_it() -> None:
    table = table_of("outer", "RELU")
    upper, lower = NodeInfo(1, "OuterBackward", "OuterBackward#1"), NodeInfo(2, "outerBackward", "outerBackward#1")
    name = table.plan().name
    assert name is not None
    assert [name(n) for n in ("OuterBackward", "outerBackward", "ReluBackward0")] == [True, True, True]
    assert table.check(node(upper), never) == []
    assert ids(table.check(node(lower), never)) == [1]
    assert ids(table.check(node(NodeInfo(3, "ReluBackward0", "ReluBackward0#1")), never)) == [2]


def test_condition_is_asked_only_where_the_place_fits() -> None:
    table = table_of("Bmm if index > 3")
    assert table.check(node(ADD), never) == []
    asked = []
    assert table.check(node(), lambda text: asked.append(text) or False) == []
    assert asked == ["index > 3"]
    assert ids(table.check(node(), lambda text: 1)) == [1]


def test_a_condition_that_raises_stops_and_says_so() -> None:
    def fails(text: str) -> Any:
        raise CommandError("name 'nope' is not defined")

    class Ambiguous:
        def __bool__(self) -> bool:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    table = table_of("Bmm ignore 9 if nope")
    (hit,) = table.check(node(), fails)
    assert hit.error == "condition 'nope': name 'nope' is not defined"
    (hit,) = table.check(node(), lambda text: Ambiguous())
    assert "ambiguous" in hit.error


def test_counts_in_gdbs_order() -> None:
    assert stops(table_of("Bmm every 3"), 7) == [3, 6]
    assert stops(table_of("Bmm ignore 2"), 5) == [3, 4, 5]
    assert stops(table_of("Bmm ignore 2 every 2"), 7) == [4, 6]
    crossings = iter([True, False, True, False, True, True])
    table = table_of("Bmm every 2 if flag")
    assert stops(table, 6, lambda text: next(crossings)) == [3, 6], "the condition comes before the count"
    assert table.states()[0].hits == 4


@pytest.mark.parametrize(
    ("hit_condition", "expected"),
    [("3", [3, 4, 5, 6]), (">= 3", [3, 4, 5, 6]), ("> 3", [4, 5, 6]), ("% 3", [3, 6]), ("%2", [2, 4, 6])],
)
def test_hit_conditions_of_dap(hit_condition: str, expected: list[int]) -> None:
    assert stops(table_of("Bmm", hitCondition=hit_condition), 6) == expected


def test_a_changed_ignore_counts_from_now() -> None:
    table = table_of("Bmm")
    assert stops(table, 4) == [1, 2, 3, 4]
    table.replace([BreakpointRequest("Bmm", 1, hitCondition="3")])
    assert stops(table, 4) == [3, 4], "gdb: 'ignore 1 2' ignores the next two"
    assert table.states()[0].hits == 8


def test_condition_of_the_request_comes_on_top() -> None:
    table = table_of("Bmm if a", condition="b")
    asked: list[str] = []
    table.check(node(), lambda text: asked.append(text) or True)
    assert asked == ["a", "b"]


def test_replace_keeps_hits_by_id_and_reports_bad_ones() -> None:
    table = table_of("Bmm", "#7")
    stops(table, 3)
    states = table.replace(
        [
            BreakpointRequest("Bmm if index", 1),
            BreakpointRequest("Add", 2),
            BreakpointRequest("Bmm evry 2", 3),
            BreakpointRequest("Bmm", 4, condition="a >"),
            BreakpointRequest("Bmm", 5, hitCondition="often"),
        ]
    )
    assert [(s.id, s.verified, s.hits) for s in states] == [
        (1, True, 3),
        (2, True, 0),
        (3, False, 0),
        (4, False, 0),
        (5, False, 0),
    ]
    assert "did you mean 'every'" in states[2].message
    assert "not a Python expression" in states[3].message
    assert "hit condition 'often'" in states[4].message
    assert ids(table.check(node(), lambda text: True)) == [1]


def test_requests_without_id_keep_theirs_by_text() -> None:
    table = BreakpointTable()
    first = table.replace([BreakpointRequest("Bmm"), BreakpointRequest("Add")])
    stops(table, 2)
    second = table.replace([BreakpointRequest("Mul"), BreakpointRequest("Bmm")])
    assert [s.id for s in first] == [1, 2]
    assert [(s.id, s.hits) for s in second] == [(3, 0), (1, 2)]


def test_disabled_and_trace() -> None:
    table = table_of("Bmm", enabled=False)
    assert not table.armed and table.plan().empty and stops(table, 2) == []
    table = table_of("Bmm", trace=True)
    assert [hit.trace for hit in table.check(node(), never)] == [True]


def test_temporary_goes_with_its_hit_and_does_not_come_back_under_its_id() -> None:
    table = table_of("Bmm", "Add", temporary=True)
    (hit,) = table.check(node(), never)
    assert hit.temporary and [s.id for s in table.states()] == [2]
    (late, _) = table.replace(
        [BreakpointRequest("Bmm", 1, temporary=True), BreakpointRequest("Add", 2, temporary=True)]
    )
    assert not late.enabled and table.check(node(), never) == []
    table.replace([BreakpointRequest("Bmm", 3, temporary=True)])
    assert ids(table.check(node(), never)) == [3]


def test_nan_stops_at_the_first_node_of_each_backward_and_then_at_origins_only() -> None:
    table = table_of("nan")
    assert ids(table.check(node(nonfinite=(1, 0), inherited=(1, 0)), never)) == [1]
    assert table.check(node(phase=Phase.AFTER, nonfinite=(1, 0), inherited=(1, 0)), never) == []
    assert ids(table.check(node(phase=Phase.AFTER, nonfinite=(1, 0)), never)) == [1]
    born = node(phase=Phase.AFTER, nonfinite=(1, 0), inherited=(0, 1))
    assert ids(table.check(born, never)) == [1], "inf became nan here"
    assert ids(table.check(node(backward=2, nonfinite=(1, 0), inherited=(1, 0)), never)) == [1]


def test_nonfinite_takes_an_infinite_gradient_that_came_in_for_a_victim_too() -> None:
    table = table_of("nonfinite")
    assert ids(table.check(node(nonfinite=(0, 1)), never)) == [1]
    assert table.check(node(phase=Phase.AFTER, nonfinite=(1, 0), inherited=(0, 1)), never) == []


def test_costly_facts_are_asked_when_needed_and_once() -> None:
    asked: list[str] = []

    def fact(name: str, value: Any) -> Callable[[], Any]:
        return lambda: asked.append(name) or value

    def event() -> HitEvent:
        asked.clear()
        stack = (SourceLine("m.py", 1, "f"),)
        return HitEvent(Phase.BEFORE, 1, 9, fact("node", BMM), fact("stack", stack), fact("nonfinite", (0, 0)))

    table_of("#4", "backward").check(event(), never)
    assert asked == []
    table_of("Bmm", "Add", "module:x", "param:y").check(event(), never)
    assert asked == ["node"]
    table_of("m.py:1", "m.py:2", "nan", "inf").check(event(), never)
    assert sorted(asked) == ["node", "nonfinite", "stack"]


def test_plan_is_the_union_and_no_more_than_needed() -> None:
    plan = table_of("Bmm", "#3", "#9").plan()
    assert plan.name is not None and plan.name("BmmBackward0") and not plan.name("AddBackward0")
    assert (plan.info, plan.indices, plan.screen, plan.post) == (None, {3, 9}, False, False)
    plan = table_of("model.py:1", "param:w after").plan()
    assert plan.name is None and plan.info is not None and plan.needs == {"forward_stack", "parameter"} and plan.post
    assert plan.info(LEAF, ()) is False
    assert plan.info(BMM, (SourceLine("/x/model.py", 1, "f"),)) is True
    unique = table_of("Bmm#3").plan()
    assert unique.info is None and unique.name is not None and unique.name("BmmBackward0")
    table = table_of("Bmm backward 2", "#1")
    assert table.plan(1).name is None and table.plan(1).indices == {1}
    assert table.plan(2).name is not None
    assert table_of("backward").plan().empty


def test_match_counts_and_closest_names() -> None:
    graph = FakeGraph.chain(6)
    specs = (
        "Mul",
        "Mul#2",
        "mul*",
        "Nul",
        "Mul#9",
        "#7",
        "#8",
        "model.py:3",
        "model.py:30",
        "mdel.py:3",
        "module:layer.2",
    )
    table = table_of(*specs, "module:layers.2", "param:w", "param:v", "nan")
    counts = dict(zip((*specs, "module:layers.2", "param:w", "param:v"), table.match(graph).values()))
    assert counts == {
        "Mul": 3, "Mul#2": 1, "mul*": 3, "Nul": 0, "Mul#9": 0, "#7": 1, "#8": 0, "model.py:3": 1, "model.py:30": 0,
        "mdel.py:3": 0, "module:layer.2": 0, "module:layers.2": 1, "param:w": 1, "param:v": 0,
    }  # fmt: skip
    states = {state.spec: state for state in table.states()}
    assert states["Nul"].verified and "closest: MulBackward0" in states["Nul"].message
    assert "fewer nodes of that name" in states["Mul#9"].message
    assert "it has 7 nodes" in states["#8"].message
    assert "made nodes: 1, 2, 3, 4, 5, 6, 100" in states["model.py:30"].message
    assert "files that made nodes: model.py" in states["mdel.py:3"].message
    assert "closest: layers.2" in states["module:layer.2"].message
    assert "'v'" in states["param:v"].message
    assert states["Mul"].message == "" and states["nan"].matches is None


def test_match_without_stacks_says_why() -> None:
    graph = FakeGraph()
    graph.add("MulBackward0", graph.leaf("w"))
    table = table_of("model.py:3")
    table.match(graph)
    assert "made before stacks were on" in table.states()[0].message


def test_marks_of_rows() -> None:
    table = table_of("Bmm", "#5", "module:layers.*", "model.py:3", "nan", "Add")
    assert table.matching_ids(BMM, lambda: (SourceLine("/a/model.py", 3, "f"),), 5) == (1, 2, 3, 4)
    assert table.matching_ids(ADD, (), 1) == (6,)


def test_changed_states_are_told_once() -> None:
    table = table_of("Bmm", "Add")
    assert table.take_changed() == []
    table.check(node(), never)
    assert [(s.id, s.hits) for s in table.take_changed()] == [(1, 1)]
    assert table.take_changed() == []
    table.match(FakeGraph.chain(2))
    assert {s.id: s.matches for s in table.take_changed()} == {1: 0, 2: 1}


def run_together(*jobs: Callable[[], None]) -> None:
    """All jobs at the same time, each on a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def guarded(job: Callable[[], None]) -> None:
        start.wait(10)
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]


def test_hits_are_counted_exactly_from_many_threads_while_the_list_changes() -> None:
    table = table_of("Bmm every 4")
    stopped: list[int] = []

    def hook() -> None:
        stopped.extend(len(table.check(node(), never)) for _ in range(2000))

    def reader() -> None:
        for i in range(400):
            table.replace([BreakpointRequest("Bmm every 4", 1), BreakpointRequest(f"#{i + 100}", i + 2)])
            table.states()
            table.plan(1)

    run_together(hook, hook, hook, hook, reader)
    assert table.states()[0].hits == 8000
    assert sum(stopped) == 2000


def test_one_thread_alone_takes_a_temporary_breakpoint() -> None:
    for _ in range(30):
        table = table_of("Bmm", temporary=True)
        hits: list[Hit] = []
        run_together(*[partial(lambda table, hits: hits.extend(table.check(node(), never)), table, hits)] * 4)
        assert len(hits) == 1


def test_states_are_wire_values() -> None:
    (state,) = table_of("op:Bmm  every 2").states()
    assert state == BreakpointState(1, True, spec="Bmm every 2", kind=SpecKind.NAME)


@pytest.mark.parametrize(
    ("spec", "kind", "file", "line"),
    [
        ("a/model.py:16 after every 2", SpecKind.LINE, "a/model.py", 16),
        ("'my model.py:3'", SpecKind.LINE, "my model.py", 3),
        ("#12", SpecKind.INDEX, "", 0),
        ("param:fc.*", SpecKind.PARAMETER, "", 0),
        ("nonfinite", SpecKind.NONFINITE, "", 0),
        ("op:nan", SpecKind.NAME, "", 0),
        ("#x", None, "", 0),
    ],
)
def test_a_state_says_what_its_spec_looks_at(spec: str, kind: SpecKind | None, file: str, line: int) -> None:
    (state,) = BreakpointTable().replace([BreakpointRequest(spec, 1)])
    assert (state.kind, state.file, state.line, state.verified) == (kind, file, line, kind is not None)


# ------------------------------------------------------------------ on some ranks


def ranked(rank: list[int | None], *specs: str) -> BreakpointTable:
    table = BreakpointTable(lambda: rank[0])
    states = table.replace([BreakpointRequest(spec, id) for id, spec in enumerate(specs, 1)])
    assert all(state.verified for state in states)
    return table


def test_on_another_rank_a_breakpoint_costs_nothing() -> None:
    assert not ranked([0], "Bmm rank 1", "param:fc.* rank 2-3").armed
    here = ranked([1], "Bmm rank 1")
    assert here.armed and ids(here.check(node(), never)) == [1]


def test_a_rank_that_is_learnt_late() -> None:
    """Until then a breakpoint on some ranks is armed; by the time that a node is reached the rank is known."""
    rank: list[int | None] = [None]
    table = ranked(rank, "Bmm rank 1", "Bmm rank 0")
    assert table.armed
    rank[0] = 1
    assert not table.plan(1).empty
    assert ids(table.check(node(), never)) == [1]
    rank[0] = 2
    table.learn_rank()
    assert not table.armed and not table.check(node(), never)


def test_a_program_without_ranks_is_rank_0() -> None:
    table = ranked([None], "Bmm rank 1", "Bmm rank 0")
    assert ids(table.check(node(), never)) == [2]


def test_what_is_for_other_ranks_is_not_said_to_match_nothing() -> None:
    table = ranked([0], "Nope rank 1", "Bmm")
    table.plan(1)
    table.check(node(), never)
    assert not table.compared() and not table.unmatched()
    assert [state.id for state in ranked_after(table)] == [3]


def ranked_after(table: BreakpointTable) -> list[BreakpointState]:
    """The same with one more, on this rank."""
    table.replace([BreakpointRequest(spec, id) for id, spec in enumerate(("Nope rank 1", "Bmm", "Nope rank 0"), 1)])
    plan = table.plan(1)
    assert plan.name is not None
    plan.name("BmmBackward0")
    return table.compared()
