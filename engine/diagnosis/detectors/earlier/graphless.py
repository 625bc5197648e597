"""Terms of a loss that are made of gradients without a graph: ``autograd.grad`` without ``create_graph``."""

from __future__ import annotations

import ast
import types
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.earlier.holding import running_frames
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.training.leaves import tensors_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, function_named, nodes_of, parameters_of
from adbg.engine.frames import forget_stack
from adbg.engine.protocol.messages import Finding
from adbg.engine.python.user_code import source_line
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 64  # calls that run at the same time
_STEPS = 512  # parameters that one iteration steps away from
_LARGEST = 5_000  # nodes of a graph that is searched
_KEYWORD = "create_graph"
#: What is made with these is meant to carry no gradient, or is none of the values that it is made of.
_ENDS = frozenset({
    "detach", "data", "sign", "sgn", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
    "argmax", "argmin", "argsort", "bernoulli", "multinomial", "Parameter",
})  # fmt: skip
_SUMS = frozenset({"add", "sub", "subtract", "rsub", "add_n", "stack", "cat", "concat", "concatenate"})
#: Behind a sum, with factors that have no weights in them: each term of it is one of what they give.
_KEEP = frozenset({
    "mean", "sum", "nanmean", "nansum", "mul", "multiply", "div", "divide", "truediv", "neg", "scale", "reshape",
    "view", "squeeze", "unsqueeze", "flatten", "clone", "assign", "getitem", "cast", "to", "float", "double", "unbind",
    "split", "select",
})  # fmt: skip
#: The same, and the values of the terms bear on each other's gradients: what is squared is a residual.
_BENDS = frozenset({
    "pow", "square", "abs", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "norm", "vector_norm", "p_norm",
    "sqrt", "square_error_cost", "log1p", "cosh", "log", "mul", "multiply",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that gave gradients without a graph. ``weights``: ids of the parameters that their values depend on."""

    line: SourceLine | None  # of the call
    cause: SourceLine  # where it is left out
    weights: frozenset[int]
    names: str
    of: tuple[weakref.ref[Any], ...]  # with respect to what


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor that is made of them. ``summed``: where that was added to what does carry gradients to weights."""

    call: _Call
    summed: SourceLine | None = None
    bent: bool = False


@dataclass(slots=True)
class _Stepped:
    """Weights that are a step of such gradients away from parameters, and carry gradients to these. ``used``: where
    something is computed with them."""

    call: _Call
    at: SourceLine | None
    used: SourceLine | None = None


@detector("no-gradient")
class Graphless(Detector):
    """Gradients of ``autograd.grad`` (``paddle.grad``) without ``create_graph=True`` become a term of the loss: a
    residual with derivatives, a penalty of gradients or of a Jacobian. Its value depends on the weights, and no
    gradient of it reaches them, while other terms train them. The line is that of the call, or where a function takes
    ``create_graph`` as an argument, the one that hands in none.
    Evidence: the call, the line where its result is added to the loss, the weights that it depends on and that the
    optimizer steps.
    A note where the weights of a model are a step of such gradients away from the parameters that are trained (MAML):
    that is its first-order form, in which nothing goes through the step.
    Mistaken for: gradients that are factors (weights of losses, maps of saliency), steps away from what they are of
    (adversarial examples, samplers; of parameters the note), and those that are detached or only printed: none is told.
    A residual of which only some terms have no graph could be a target on purpose: less sure.
    Cost: in sampled iterations a look at the operands of each operator, once ``grad`` was called so.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_Term] = Marks()
        self._calls = 0
        self._failed = False  # the backward of such a loss
        self._running: dict[int, _Call] = {}  # by number
        self._stepped: Marks[_Stepped] = Marks()
        self._inner: list[_Stepped] = []  # since the last step of an optimizer
        self._inner_in = 0  # the iteration of the last of them
        self._waiting: list[tuple[_Term, SourceLine | None, bool]] = []  # of losses, until an optimizer steps

    def applied(self) -> bool:
        return self._calls > 0

    # ---- the calls

    def iteration_end(self) -> None:
        if self.facts.iteration > self._inner_in + _MOST:  # no optimizer steps: the program writes its updates itself
            self._inner = []

    def backward_begin(self, running: Running) -> None:
        if not self.facts.sampled or len(running.chain) > 1:
            return
        call = running.call
        if call.entry == "grad":
            if not call.create_graph and len(self._running) < _MOST:
                self._begins(call)
            return
        self._waiting.clear()
        for root in call.root_values():
            known = self._marks.of(root)
            if known is not None:
                self._waiting.append((known.what, call.location, known.what.summed is None))

    def _begins(self, call: BackwardCall) -> None:
        found = weights_of(self.facts, call.root_values())
        cause = _left_out(list(running_frames())) or call.location
        forget_stack()
        if not found or cause is None:
            return
        wanted = tuple(weakref.ref(each) for each in call.wanted)
        names = self.facts.some(list(found.values()))
        self._running[call.number] = _Call(call.location, cause, frozenset(found), names, wanted)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        made = self._running.pop(running.call.number, None)
        if error is not None:
            whole = [each for each in self._waiting if each[2]]
            if whole and "require" in str(error):
                self._failed = True
                self._tell(*whole[0])
            return
        if made is None:
            return
        self._calls += 1
        for value in running.call.gave:
            if self.facts.backend.is_tensor(value) and not value.requires_grad:
                self._marks.put(value, _Term(made), "grad", made.line)

    # ---- what becomes of their results

    def operator(self, call: OperatorCall) -> None:
        if not self._calls or call.in_backward or call.error is not None or not call.grad_mode:
            return
        terms = [known.what for each in call.operands if (known := self._marks.of(each)) is not None]
        for each in call.operands if self._inner and not terms else ():
            if (step := self._stepped.of(each)) is not None and step.what.used is None:
                step.what.used = line_of(call.lines)
        if not terms:
            return
        term = self._behind(call, terms)
        for result in call.results:
            kind = str(result.dtype)
            if term is not None and ("float" in kind or "complex" in kind):
                self._marks.put(result, term, call.name, None)
            else:
                self._marks.drop(result)

    def _behind(self, call: OperatorCall, terms: list[_Term]) -> _Term | None:
        name = plain(call.name)
        at = line_of(call.lines)
        inner = at is not None and at == terms[0].call.line and "detach" not in self.facts.text_of(at)
        if name in _ENDS and not inner:
            return None  # jacobian() detaches what it gives
        carrying = [each for each in call.operands if each.requires_grad and weights_of(self.facts, [each])]
        best = next((each for each in terms if each.summed is not None), terms[0])
        if not carrying:
            return best
        marked = [each for each in carrying if self._marks.of(each) is not None]
        if name in _SUMS:
            if any(ref() is each for term in terms for ref in term.call.of for each in carrying):
                self._steps(call, best, at, [each for each in carrying if self.facts.is_named(each)])
                return None  # a step away from it
            return best if best.summed is not None else replace(best, summed=at)
        if len(marked) < len(carrying):  # weights, of what is a factor or an input
            return None
        if name in _KEEP and len(carrying) == 1:
            return best
        return replace(best, bent=True) if name in _BENDS else None

    def _steps(self, call: OperatorCall, term: _Term, at: SourceLine | None, parameters: list[Any]) -> None:
        """That operator makes a step away from parameters."""
        results = [each for each in call.results if each.requires_grad and not each.is_leaf]
        single = plain(call.name) in ("add", "sub", "subtract", "rsub")
        if parameters and results and single and len(self._inner) < _STEPS:
            self._inner_in = self.facts.iteration
            self._inner.append(_Stepped(replace(term.call, weights=frozenset(map(id, parameters))), at))
            for result in results:
                self._stepped.put(result, self._inner[-1], call.name, at)

    # ---- telling

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step":
            return
        stepped = set(map(id, event.tensors))
        inner, self._inner = self._inner, []
        for each in inner:
            if each.used is not None and each.call.weights & stepped:
                self._tell_first_order(each)
        waiting, self._waiting = self._waiting, []
        for term, loss, whole in waiting:
            if term.call.weights & stepped:
                self._tell(term, loss, whole)
            else:
                self._waiting.append((term, loss, whole))

    def _tell_first_order(self, step: _Stepped) -> None:
        facts, call = self.facts, step.call
        self.facts.tell(
            Finding(
                0, "no-gradient", "note", 0.45,
                f"the step at {place(step.at)} uses gradients that {place(call.line)} takes without create_graph=True: "
                f"nothing goes through it, and {call.names} get gradients as if the step were constant (first-order "
                "MAML); right where that is meant",
                cause=facts.cause(call.cause),
                evidence=[
                    f"the gradients have no graph (requires_grad False), and {place(step.at)} subtracts them from "
                    f"parameters: {facts.text_of(step.at) if step.at is not None else ''}",
                    f"the weights that this makes are used at {place(step.used)}, and the optimizer steps {call.names}",
                    "what decides: whether the derivative of the step itself is to count, as MAML has it; then "
                    "create_graph=True",
                ],
                next=[f"b {place(call.cause)}"],
            )
        )  # fmt: skip

    def _tell(self, term: _Term, loss: SourceLine | None, whole: bool) -> None:
        facts, call = self.facts, term.call
        function = "paddle.grad" if facts.backend.name == "paddle" else "torch.autograd.grad"
        what = "the loss" if whole else "a residual of the loss" if term.bent else "a term of the loss"
        message = (
            f"{what} is made of gradients that {place(call.line)} takes without create_graph=True: its value depends "
            f"on {call.names}, but none of its gradient reaches them"
        )
        evidence = [
            f"{function} at {place(call.line)} ran with create_graph=False: its result has no graph "
            "(requires_grad False)",
        ]
        if call.cause != call.line:
            evidence.append(f"{place(call.cause)} calls it without the graph: {facts.text_of(call.cause)}")
        if term.summed is not None:
            evidence.append(f"what is made of it is added at {place(term.summed)}: {facts.text_of(term.summed)}")
        if self._failed:
            evidence.append(f"the backward at {place(loss)} begins at what is made of it alone, and fails")
        else:
            evidence.append(f"the backward at {place(loss)} begins at that sum, and the optimizer steps {call.names}")
        severity, sure = ("error" if whole else "warning"), 0.65 if term.bent else 0.96 if self._failed else 0.85
        facts.tell(
            Finding(0, "no-gradient", severity, sure, message, None, None, None, call.line, facts.cause(call.cause),
                    evidence, [f"b {place(call.cause)}"])
        )  # fmt: skip


def weights_of(facts: Facts, values: Sequence[Any]) -> dict[int, str]:
    """The parameters that a gradient of these tensors would reach, by id, and their names."""
    made = [each for each in values if not each.is_leaf and each.requires_grad]
    graph = facts.backend.graph_of(made) if made else None
    leaves = [*tensors_of(graph)] if graph is not None and graph.count() <= _LARGEST else []
    leaves += [each for each in values if each.is_leaf and each.requires_grad]
    return {id(leaf): facts.title_of(leaf) for leaf in leaves if facts.name_of(leaf)}


def _left_out(frames: list[types.FrameType]) -> SourceLine | None:
    """Where it is said that the call makes no graph: in a function that takes it as an argument, the caller's line."""
    called, keyword = "grad", _KEYWORD
    for frame, caller in zip(frames, [*frames[1:], None]):
        code = frame.f_code
        function = function_named(code.co_filename, code.co_firstlineno)
        given = _given(code.co_filename, frame.f_lineno, called, keyword)
        if function is None or caller is None or given is None or given not in parameters_of(function):
            return source_line(frame)
        called, keyword = function.name, given
    return None


def _given(file: str, line: int, called: str, keyword: str) -> str | None:
    """The variable that the call at a line hands in for an argument, by its name."""
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0) and called_name(node) == called:
            for each in node.keywords:
                if each.arg == keyword and isinstance(each.value, ast.Name):
                    return each.value.id
    return None
