"""Flags of parameters that were set on a module, where they do nothing."""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, detector
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import nodes_of, scope_at
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MODULES = 2000
_LOOKS = 32  # outermost modules that are looked through
_FLAGS = {"requires_grad": True, "stop_gradient": False, "trainable": True}  # -> whether what is set so is trained


@detector("module-flag")
class ModuleFlags(Detector):
    """``model.head.requires_grad = True`` makes an attribute of the module and touches none of its parameters: they
    stay frozen, or are trained, as they were (Paddle: ``layer.stop_gradient``, ``layer.trainable``).

    Evidence: the flag of the module and that of its parameters, which is another one; the line that set it.
    Mistaken for: a flag that agrees with the parameters, and one that a class of the program's defines or sets itself
    (not told).
    Cost: a walk through each module as it is called for the first time, and in sampled iterations.
    """

    needs = Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._looked = 0  # the last iteration
        self._told: set[tuple[str, SourceLine | None]] = set()

    def applied(self) -> bool:
        return bool(self._seen)

    def module_begin(self, call: ModuleCall) -> None:
        known = self._seen.get(id(call.module))
        if not (call.outermost and call.grad_mode) or len(self._seen) >= _LOOKS:
            return
        iteration = self.facts.iteration
        again = self.facts.sampled and self._looked != iteration  # what a later stage freezes
        if known is not None and known() is call.module and not again:
            return
        self._looked = iteration
        self._seen[id(call.module)] = weakref.ref(call.module)
        torch = self.facts.backend.name == "torch"
        named = call.module.named_modules() if torch else call.module.named_sublayers(include_self=True)
        for (path, module), _ in zip(named, range(_MODULES)):
            with suppress(Exception):  # a property of the program's
                self._look_into(path, module, call)

    def _look_into(self, path: str, module: Any, call: ModuleCall) -> None:
        backend = self.facts.backend
        for flag, trains in _FLAGS.items():
            if flag == "trainable" and backend.name == "torch":
                continue
            value = vars(module).get(flag)
            if not isinstance(value, bool) or hasattr(type(module), flag):
                continue
            wanted = value is trains
            parameters = [(name, backend.meta(each).requires_grad) for name, each in module.named_parameters()]
            others = [name for name, trained in parameters if trained is not wanted]
            # Where others agree, the program has set the flags of parameters, too.
            if others and len(others) == len(parameters) and not _is_own(type(module), flag):
                self._tell(path, type(module).__name__, flag, value, wanted, others, call)

    def _tell(
        self, path: str, kind: str, flag: str, value: bool, wanted: bool, others: list[str], call: ModuleCall
    ) -> None:
        facts, own = self.facts, path.rpartition(".")[2]
        line = self._set_at(flag, own, call)
        if line is None or (flag, line) in self._told:
            return
        self._told.add((flag, line))
        names = facts.some([f"{path}.{each}" if path else each for each in others])
        stay = "are trained all the same" if not wanted else "stay frozen"
        stay = stay if len(others) > 1 else stay.replace("are", "is").replace("stay", "stays")
        each = f"{own or 'module'}.requires_grad_({wanted})" if facts.backend.name == "torch" else (
            f"for each in {own or 'layer'}.parameters(): each.stop_gradient = {not wanted}"
        )  # fmt: skip
        facts.tell(
            Finding(
                0, "module-flag", "error", 0.93,
                f"{flag} = {value} was set on the module {path or kind} ({kind}), which makes an attribute and nothing "
                f"else: {names} {stay}; set it on the parameters: {each}",
                cause=facts.cause(line),
                evidence=[
                    f"{kind} has an attribute '{flag}', {value}, that its class does not know",
                    f"{len(others)} of its parameters {'is' if len(others) == 1 else 'are'} "
                    f"{'frozen' if wanted else 'trained'}: {names}",
                ],
                next=["info params"],
            )
        )  # fmt: skip

    @staticmethod
    def _set_at(flag: str, name: str, call: ModuleCall) -> SourceLine | None:
        """The line that sets it on what has the module's name; else the only one that sets it on no loop variable."""
        found = [each for file in files_of(call) for each in set_in(file, flag)]
        mine = [line for line, base in found if base == name]
        plain = [(line, base) for line, base in found if base != "*"]
        if not mine and len(plain) == 1 and plain[0][1] != "self":  # what a class sets on itself it may read
            mine = [plain[0][0]]
        return mine[0] if mine else None


def _is_own(kind: type, flag: str) -> bool:
    """A class of the program's sets it on itself, or reads it."""
    for each in kind.__mro__:
        file = getattr(sys.modules.get(each.__module__), "__file__", None) or ""
        for node in nodes_of(file) if is_programs(file) else ():
            if isinstance(node, ast.Attribute) and node.attr == flag and ast.unparse(node.value) == "self":
                return True
    return False


def files_of(call: ModuleCall) -> Iterator[str]:
    """Of the class of the module, of who called it and of the script."""
    made = (sys.modules.get(name) for name in (type(call.module).__module__, "__main__"))
    files = [call.line.file if call.line is not None else "", *(getattr(each, "__file__", None) or "" for each in made)]
    yield from dict.fromkeys(file for file in files if file and is_programs(file))


def set_in(file: str, flag: str) -> Iterator[tuple[SourceLine, str]]:
    """(line, last name of what it is set on; "*" for the variable of a loop over parameters)."""
    nodes = list(nodes_of(file))
    loops = {
        each.id for node in nodes if isinstance(node, ast.For) and "parameters" in ast.unparse(node.iter)
        for each in ast.walk(node.target) if isinstance(each, ast.Name)
    }  # fmt: skip
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == flag:
                base = ast.unparse(target.value)
                line = SourceLine(file, node.lineno, getattr(scope_at(file, node.lineno), "name", "<module>"))
                yield line, "*" if base in loops else base.rpartition(".")[2]
