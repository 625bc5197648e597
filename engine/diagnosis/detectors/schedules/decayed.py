"""Functions that an optimizer asks which parameters are to decay, by names that it does not use."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SHORTEST = 2  # letters of what is looked for in a name
_MOST = 4096  # words of one function
_ASKING = frozenset(
    ("name", "startswith", "endswith", "split", "rsplit", "partition", "rpartition", "lower", "upper", "find", "any",
     "all", "count", "strip", "replace", "re", "search", "match", "fullmatch", "fnmatch", "len", "set", "bool", "str")
)  # fmt: skip


@detector("weight-decay")
class DecayedByName(LoopDetector):
    """Paddle asks ``apply_decay_param_fun`` with the name that a tensor has by itself (linear_0.w_0). A function that
    looks for the names of ``named_parameters()`` in it ("fc1.weight" of a set, "bias", "norm") finds none: nothing
    decays, or all of it does.

    Evidence: what the function looks for (its constants and the collections that it uses; it is not called), which
    parameters of the model that means, and their own names.
    Mistaken for: words that are found in own names as well, or of which others of the same function are found
    (``"bias" in name or ".b_" in name``): not told.
    Cost: none.
    """

    def applied(self) -> bool:
        return any(optimizer.steps for optimizer in self.ledger.optimizers.values())

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "stepped" and optimizer is not None and optimizer.steps == 1 and event.decides is not None:
            self._judge(optimizer, event.decides, event.tensors)

    def _judge(self, optimizer: Optimizer, decides: Any, tensors: Sequence[Any]) -> None:
        facts = self.facts
        if not isinstance(decides, types.FunctionType):
            return
        code = decides.__code__
        try:
            given = [word for each in decides.__defaults__ or () for word in _strings(each, whole=True)]
            words = list(dict.fromkeys([*_words(code, _known(decides)), *given]))
        except _UnreadableError:
            return
        if len(words) > _MOST:
            return
        named = [(facts.name_of(tensor), facts.backend.keeping.own_name(tensor)) for tensor in tensors]
        missed = [(path, own) for path, own in named if not any(word in own for word in words)]
        found = {word for word in words if any(word in own for _, own in named)}
        lost = [word for word in words if word not in found and any(word in path for path, _ in missed)]
        if not lost:
            return
        meant = [(path, own) for path, own in missed if any(word in path for word in lost)]
        path, own = meant[0]
        line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
        facts.tell(
            Finding(
                0, "weight-decay", "warning", 0.9,
                f"the function that {optimizer.kind} asks which parameters are to decay looks for "
                f"{facts.some([repr(word) for word in lost])}, and is asked with the tensors' own names: {path} is "
                f"called {own}, so that {'this is' if len(lost) == 1 else 'none of them is'} never found",
                cause=facts.cause(line),
                evidence=[
                    f"of {len(named)} parameters it means {len(meant)} by the names of the model, and none of these by "
                    "their own",
                    f"{optimizer.kind} was made at {place(optimizer.made)}",
                    "collect own names instead: [each.name for name, each in model.named_parameters() if …]",
                ],
                next=rate_commands(self, optimizer),
            )
        )  # fmt: skip


class _UnreadableError(Exception):
    """A function that asks something else than words in names."""


def _words(code: types.CodeType, known: Mapping[str, Any]) -> Iterator[str]:
    """The strings that a function may look for: its constants, and those in collections that it refers to."""
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _words(value, known)
        else:
            yield from _strings(value)
    for name in (*code.co_names, *code.co_freevars):
        if name in known and name != code.co_name:
            yield from _strings(known[name], whole=True)
        elif name not in _ASKING:
            raise _UnreadableError


def _known(function: types.FunctionType) -> Mapping[str, Any]:
    """What the names in a function, and in those within it, stand for: as far as they are not its own variables."""
    code, inner = function.__code__, [function.__code__]
    names = set()
    while inner:
        each = inner.pop()
        names |= {*each.co_names}
        inner += [value for value in each.co_consts if isinstance(value, types.CodeType)]
    found: dict[str, Any] = dict.fromkeys(code.co_cellvars)
    found |= {name: function.__globals__[name] for name in names - _ASKING if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # empty yet
            found[name] = cell.cell_contents
    return found


def _strings(value: Any, whole: bool = False) -> Iterator[str]:
    """``whole``: the function refers to it, and may do with it what it likes where it is something else."""
    if type(value) is str:
        value = (value,)
    if type(value) in (tuple, list, set, frozenset, dict):
        yield from (each for each in value if type(each) is str and len(each) >= _SHORTEST)
    elif whole and value is not None:
        raise _UnreadableError
