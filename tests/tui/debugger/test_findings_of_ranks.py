"""Facts of several ranks, compared: what has to be there before something is said, and what is no drift."""

from __future__ import annotations

from dataclasses import replace

from adbg.engine.protocol.messages import Cause, Finding, RankFacts
from adbg.tui.debugger.findings.job import Job
from adbg.tui.debugger.findings.ranking import Told, ranked

LINE, STEP, LOOP = Cause("t.py", 9, "", "loss.backward()"), Cause("t.py", 10, "", "opt.step()"), Cause("t.py", 7)


def facts(iteration: int, weight: str, gradient: str = "g", what: str = "iteration", **more: object) -> RankFacts:
    made = RankFacts(what, 2, iteration, {"w": weight}, {"w": gradient}, [0.1], LINE, STEP, LOOP)
    return replace(made, **more)  # type: ignore[arg-type]


def both(job: Job, one: RankFacts, other: RankFacts) -> list[Finding]:
    assert job.add(0, one) == [], "one rank alone says nothing"
    return job.add(1, other)


def test_what_was_the_same_and_is_not() -> None:
    job = Job()
    assert both(job, facts(1, "a"), facts(1, "a")) == []
    (found,) = both(job, facts(2, "b", "g0"), facts(2, "c", "g1"))
    assert (found.kind, found.severity, found.cause) == ("drifted-parameters", "error", LINE)
    assert "behind backward 2: w" in found.message and "different gradients" in found.message
    assert both(job, facts(3, "d", "g0"), facts(3, "e", "g1")) == [], "told once"
    (gone,) = both(job, facts(4, "f"), facts(4, "f"))
    assert gone.confidence == 0, "averaged from time to time: taken back"


def test_by_a_step_and_by_the_beginning() -> None:
    job = Job()
    both(job, facts(1, "a"), facts(1, "a"))
    (found,) = both(job, facts(8, "b"), facts(8, "c", rates=[0.2]))
    assert found.cause == STEP and "0.1 on rank 0, 0.2 on rank 1" in found.message and "before 9" in found.message
    (found,) = both(Job(), facts(1, "a"), facts(1, "b"))
    assert "did not begin with the same weights" in found.message and found.cause is None
    assert both(Job(), facts(1, "a", "g0"), facts(1, "b", "g1")) == [], "ranks with parts of their own"


def test_a_gradient_that_one_rank_has() -> None:
    job = Job()
    both(job, facts(1, "a"), facts(1, "a"))
    used = Cause("m.py", 3, "forward", "h = self.w(x)")
    unused, drifted = both(job, facts(2, "b"), facts(2, "a", "", uses={"w": used}))
    assert (unused.kind, unused.cause) == ("unused-in-rank", used) and "on rank 1 in iteration 2" in unused.message
    (row,) = ranked([Told(1, None, unused), Told(1, None, drifted)])
    assert row.finding == unused and row.also == (drifted,), "the drift follows"


def test_a_rank_that_ended_and_one_that_waited() -> None:
    lost = "RuntimeError: Connection closed by peer [127.0.0.1]:5"
    job = Job()
    (found,) = both(job, facts(3, "", what="end"), facts(4, "", what="end", failed=lost))
    assert (found.kind, found.cause) == ("uneven-batches", LOOP) and "rank 0 ended after 3" in found.message
    other = Finding(1, "backward-error", "error", 0.6, f"a node failed: {lost}", iteration=4)
    (row,) = ranked([Told(2, 1, other), Told(1, None, found)])
    assert row.finding == found and row.also == (other,)
    assert both(Job(), facts(3, "", what="end"), facts(4, "", what="end", failed="KeyError: x")) == []
    assert both(Job(), facts(3, "", what="end", failed="KeyError"), facts(4, "", what="end", failed=lost)) == []


def test_a_lost_connection_follows_from_what_ended_the_other_rank() -> None:
    lost = Finding(1, "backward-error", "error", 0.6, "Connection reset by peer", iteration=1)
    cause = Finding(1, "operator-error", "error", 0.85, "mm failed", iteration=2)
    (row,) = ranked([Told(1, 0, lost), Told(2, 1, cause)])
    assert row.finding == cause and row.ranks == (1,) and row.also == (lost,)
    assert len(ranked([Told(1, 0, lost), Told(1, 0, replace(cause, id=2))])) == 2, "of one rank they are two"
    assert [row.finding for row in ranked([Told(1, 0, lost)])] == [lost], "alone it is told"
