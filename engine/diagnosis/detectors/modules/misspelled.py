"""Flags of parameters that were set by a name that they do not have."""

from __future__ import annotations

import difflib
import weakref
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, detector
from adbg.engine.diagnosis.detectors.modules.flags import files_of, set_in
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding

_MOST = 4000  # parameters, and modules, of one model
_LOOKS = 32  # outermost modules that are looked through
_LIKE = 0.8  # of difflib's ratio: "require_grad" and "requires_grad" have 0.96, "requires_grad" and "trainable" 0.27
_FLAGS = {"requires_grad": True, "stop_gradient": False, "trainable": True}  # -> whether what is set so is trained


@detector("module-flag")
class Misspelled(Detector):
    """``parameter.require_grad = False`` makes an attribute of that name, and nothing reads it: the parameter is
    trained as before. So does the flag of another framework, the method that is assigned to (``requires_grad_ =
    False``), and a misspelled flag of a module.

    Evidence: the attribute, the flag that it is like, the line that sets it, and what the flag really is.
    Mistaken for: attributes of the program's own that are no flag of that kind (not told), and a flag that is set as
    well (not told where it agrees).
    Cost: a look at the attributes of the parameters of each outermost module at its first call and in sampled
    iterations.
    """

    needs = Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._looked = 0  # the last iteration
        self._told: set[str] = set()

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
        found: dict[tuple[str, bool], list[str]] = {}
        torch = self.facts.backend.name == "torch"
        with suppress(Exception):  # a property of the program's
            for (name, parameter), _ in zip(call.module.named_parameters(), range(_MOST)):
                self._look(name, parameter, [parameter], found)
            named = call.module.named_modules() if torch else call.module.named_sublayers(include_self=True)
            for (path, module), _ in zip(named, range(_MOST)):
                self._look(path or type(module).__name__, module, list(module.parameters()), found)
        for (attribute, value), names in found.items():
            if attribute not in self._told:
                self._tell(attribute, value, names, call)

    def _look(self, name: str, owner: Any, parameters: list[Any], found: dict[tuple[str, bool], list[str]]) -> None:
        for attribute, value in list(vars(owner).items()):
            flag = _meant(attribute, owner) if isinstance(value, bool) and not attribute.startswith("_") else ""
            if not flag or (len(parameters) != 1 and attribute in _FLAGS):  # that of a module: see ModuleFlags
                continue
            wanted = value is _FLAGS[flag]
            if parameters and all(self.facts.backend.meta(each).requires_grad is not wanted for each in parameters):
                found.setdefault((attribute, value), []).append(name)

    def _tell(self, attribute: str, value: bool, names: list[str], call: ModuleCall) -> None:
        facts = self.facts
        line = next((at for file in files_of(call) for at, _ in set_in(file, attribute)), None)
        if line is None:
            return
        self._told.add(attribute)
        flag = _meant(attribute, None)
        trained = value is not _FLAGS[flag]
        own = flag if facts.backend.name == "paddle" else "requires_grad"
        stay = f"{'is' if len(names) == 1 else 'are'} trained as before" if trained else "stay frozen"
        if attribute.endswith("_"):
            message = f"{attribute} = {value} takes the method's place and sets no flag: {facts.some(names)} {stay}"
            message += f"; call it, or set {own}"
        else:
            message = f"{attribute} = {value} sets an attribute that nothing reads, the flag is {own}: "
            message += f"{facts.some(names)} {stay}"
        evidence = [
            f"'{attribute}' of {facts.some(names)} is {value}: an attribute of that one object, which its class does "
            "not know",
            f"{'it takes' if trained else 'it takes no'} gradients all the same, as its {own} says",
        ]
        facts.tell(
            Finding(
                0, "module-flag", "error", 0.93, message, cause=facts.cause(line), evidence=evidence,
                next=["info params"],
            )
        )  # fmt: skip


def _meant(attribute: str, owner: Any) -> str:
    """The flag that the attribute was taken for; "" where it is another one, or one that its class knows."""
    plain = attribute.rstrip("_")
    if owner is not None and hasattr(type(owner), attribute) and not (attribute.endswith("_") and plain in _FLAGS):
        return ""
    if plain in _FLAGS:
        return plain
    return next(iter(difflib.get_close_matches(attribute.lower(), _FLAGS, 1, _LIKE)), "")
