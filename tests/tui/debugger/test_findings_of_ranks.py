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
    assert "after backward 2: w" in found.message and "different gradients" in found.message
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


def test_who_loaded_the_weights_that_differ() -> None:
    job, line = Job(), Cause("t.py", 3, "", "net.load_state_dict(kept)")
    (found,) = both(job, facts(1, "a", loaded=line, loaded_names=["w"], wrapper="DDP"), facts(1, "b", wrapper="DDP"))
    assert found.cause == line and "only rank 0 loaded weights" in found.message
    (found,) = both(Job(), facts(1, "a", loaded=line, loaded_names=["teacher.w"]), facts(1, "b"))
    assert found.cause is None and "seed all alike" in found.message, "another module's weights"


def test_who_is_seeded_by_its_rank_begins_with_weights_of_its_own() -> None:
    line = Cause("t.py", 2, "", "seed(1 + rank)")
    (found,) = both(Job(), facts(1, "a", seeded=line), facts(1, "b", seeded=line))
    assert found.cause == line and "seeds each rank apart" in found.message, found


def test_a_rank_that_trained_alone_before() -> None:
    """However many backwards that were: those of the wrapper are compared, from its first."""
    job = Job()
    for number in range(1, 300):
        assert job.add(0, facts(number, f"alone{number}")) == []
    both(job, facts(0, "a", wrapper="DDP"), facts(0, "a", wrapper="DDP"))
    assert both(job, facts(1, "b", wrapper="DDP"), facts(1, "b", wrapper="DDP")) == []
    (found,) = both(job, facts(2, "c", "g0", wrapper="DDP"), facts(2, "d", "g1", wrapper="DDP"))
    assert "after backward 2: w" in found.message, found


def shards(iteration: int, tag: str, constant: tuple[str, ...] = (), **same: str) -> RankFacts:
    """Of a rank with parts of its own; what is in ``same`` is on all ranks."""
    parameters = {"up.weight": f"u{tag}{iteration}", "up.bias": f"b{tag}{iteration}", "norm": f"n{iteration}", **same}
    gradients = {"up.weight": f"gu{tag}", "up.bias": f"gb{tag}", "norm": "gn"}
    return facts(iteration, "", parameters=parameters, gradients=gradients, constant=list(constant))


def test_parts_of_a_model_are_no_copies() -> None:
    """Tensor parallel: a bias begins with zeros on both ranks, a norm is the same throughout. Pipeline: stages of one
    class, norms begin with ones."""
    job = Job()
    begin = {"constant": ("up.bias", "norm"), "up.bias": "zeros", "norm": "ones"}
    assert both(job, shards(0, "0", **begin), shards(0, "1", **begin)) == []  # type: ignore[arg-type]
    assert [both(job, shards(n, "0"), shards(n, "1")) for n in (1, 2, 3)] == [[], [], []]
    job = Job()
    both(job, shards(0, "0", **begin), shards(0, "1", **begin))  # type: ignore[arg-type]
    assert both(job, shards(1, "0", norm="n0"), shards(1, "1", norm="n1")) == []
    job = Job()  # both with one seed: all begin the same
    both(job, *[replace(shards(0, ""), gradients={})] * 2)
    (found,) = both(job, shards(1, "0"), shards(1, "1"))
    assert found.severity == "note"


def test_zeros_are_copies_where_all_the_rest_is() -> None:
    job = Job()
    begin = {"constant": ("up.bias", "norm"), "up.bias": "zeros", "norm": "ones"}
    both(job, shards(0, "", **begin), shards(0, "", **begin))  # type: ignore[arg-type]
    both(job, shards(1, ""), shards(1, ""))
    (found,) = both(job, shards(2, "0", norm="n0"), shards(2, "1", norm="n1"))
    assert found.severity == "error" and "up.weight, up.bias and norm" in found.message
    job = Job()
    only = {"parameters": {"w": "zeros"}, "constant": ["w"]}
    both(job, facts(0, "", "g0", **only), facts(0, "", "g1", **only))
    assert both(job, facts(1, "a", "g0"), facts(1, "b", "g1")) == [], "nothing but zeros was the same"


def test_ranks_that_never_used_the_same_gradients() -> None:
    """Local SGD: an average every ten steps, none of which is looked at."""
    job = Job()
    both(job, facts(0, "a", "", gradients={}), facts(0, "a", "", gradients={}))
    (found,) = both(job, facts(1, "b", "g0"), facts(1, "c", "g1"))
    assert found.severity == "note" and "local SGD" in found.message and "any more" not in str(found)
    assert [both(job, facts(n, f"{n}b", "g0"), facts(n, f"{n}c", "g1")) for n in (2, 3, 8)] == [[], [], []]
    (gone,) = both(job, facts(16, "f", "g0"), facts(16, "f", "g1"))
    assert gone.confidence == 0


def test_a_parameter_that_the_average_leaves_out() -> None:
    job = Job()
    names = ("a", "b", "c", "d")
    both(job, *[facts(0, "", parameters=dict.fromkeys(names, "0"), gradients={})] * 2)
    one, other = ({**dict.fromkeys(names, "1"), "d": each} for each in "xy")
    grads = [{**dict.fromkeys(names, "g"), "d": each} for each in "xy"]
    (found,) = both(
        job, facts(1, "", parameters=one, gradients=grads[0]), facts(1, "", parameters=other, gradients=grads[1])
    )
    assert found.severity == "error" and "backward 1: d;" in found.message


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


PAST = Finding(1, "drifted-parameters", "note", 0.49, "Wrap averages nothing: past it", evidence=["a", "b decides it"])


def test_a_wrapper_that_is_passed_by_is_a_warning_once_the_weights_drift() -> None:
    """And what drifts follows from it; where they are the same again, the program averages by itself."""
    job = Job()
    assert job.confirmed(PAST) == PAST, "nobody knows"
    both(job, facts(1, "a", "g0"), facts(1, "a", "g1"))
    (drift,) = both(job, facts(2, "b", "h0"), facts(2, "c", "h1"))
    sure = job.confirmed(PAST)
    assert (sure.severity, sure.evidence) == ("warning", [*drift.evidence[:2], *PAST.evidence])
    (row,) = ranked([Told(1, None, drift), Told(1, 0, sure), Told(2, 1, sure)])
    assert row.finding == sure and row.also == (drift,) and row.ranks == (0, 1)
    both(job, facts(3, "d"), facts(3, "d"))
    assert job.confirmed(PAST) == PAST and job.doubted(sure).severity == "note"
