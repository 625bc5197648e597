"""Which test bodies run on which framework, and the reason where one does not.

A promise is tested by one body on every framework, through ``on_frameworks``; what is left to one of them says why
with ``only``. Both put the framework's name on the test as a marker: ``pytest -m paddle`` is Paddle's part, and a test
is skipped where its framework is not installed. docs/backends.md is made from these markers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

FRAMEWORKS = ("torch", "paddle")
#: (backend, capability or ability): why the tests that need it are skipped. ``test_capabilities`` compares it with the
#: backends; docs/backends.md is made from it.
LACKS = {
    ("paddle", "saved_tensors"): "Paddle shows no saved tensors of an operator to Python",
    ("fake", "native_vlog"): "it writes no records",
    ("torch", "native_vlog"): "torch writes no glog records of its backward",
    ("fake", "watch_creation"): "its graphs are made by hand",
    ("fake", "spent"): "its graphs can be run any number of times",
    ("fake", "locations"): "no user code calls it",
    ("fake", "reductions"): "its windows are exact",
    ("fake", "dtypes"): "it has one dtype",
    ("fake", "versions"): "its tensors have no counter of in-place changes",
    ("paddle", "null_slots"): "Paddle fills an undefined gradient with zeros before a hook sees it",
    ("fake", "grad_modes"): "it records nothing",
    ("torch", "progress"): "torch tells of a node only where a hook is: whether another one ran is not known",
    ("paddle", "progress"): "a node without a hook runs unseen: a wider plan hooks it in vain",
    ("paddle", "overlapping_calls"): "a backward inside one over the same nodes crashes Paddle by itself",
    ("fake", "ops"): "its nodes have the names that a test gives them",
    ("fake", "layouts"): "it has one layout",
    ("fake", "phases"): "it has no modules, optimizers and loaders",
    ("fake", "modules"): "no module runs: paths are given by hand",
    ("fake", "tensor_hooks"): "its tensors have no hooks",
    ("fake", "brief_reports"): "it reports every call in full",
    ("fake", "parts_on_request"): "it keeps the parts of every sum",
    ("fake", "sampling"): "its statistics are always exact",
    ("fake", "frees_graphs"): "a test holds its graphs",
}
F = TypeVar("F", bound=Callable[..., Any])


def installed(framework: str) -> bool:
    """Whether it can be imported; a folder tests/paddle is found as well, as a package without a file."""
    spec = importlib.util.find_spec(framework)
    return spec is not None and spec.origin is not None


def case(framework: str, *values: object, id: str | None = None, group: str = "") -> Any:
    """One set of parameters of a test on ``framework``; those of a ``group`` run in one pytest worker."""
    marks = [getattr(pytest.mark, framework)]
    if group:
        marks.append(pytest.mark.xdist_group(group))
    return pytest.param(*values, id=id, marks=marks)


def on_frameworks(name: str = "framework", frameworks: Sequence[str] = FRAMEWORKS) -> pytest.MarkDecorator:
    """Run a test once per framework, whose name is its argument ``name``."""
    return pytest.mark.parametrize(name, [case(framework, framework) for framework in frameworks])


def named(names: Iterable[str], faults: Mapping[str, str]) -> pytest.MarkDecorator:
    """Run a test once per name, its argument ``name``. ``faults``: why those are known to fail, which they have to."""
    marks = {name: [pytest.mark.xfail(strict=True, reason=faults[name])] if name in faults else [] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=each) for name, each in marks.items()])


def only(framework: str, why: str) -> Callable[[F], F]:
    """A test of one framework; ``why`` it is not run on the others goes into docs/backends.md."""

    def mark(function: F) -> F:
        marked: F = getattr(pytest.mark, framework)(pytest.mark.only(framework=framework, why=why)(function))
        return marked

    return mark


def only_here(framework: str, why: str) -> list[pytest.MarkDecorator]:
    """``pytestmark`` of a module whose tests are all of one framework."""
    return [getattr(pytest.mark, framework), pytest.mark.only(framework=framework, why=why)]


def debuggee_of(framework: str, name: str) -> str:
    """The debuggee ``name`` as it is written for a framework."""
    return name if framework == "torch" else f"{framework}_{name}"


def node_of(framework: str, operator: str) -> str:
    """What a node of ``operator`` ("tanh") is called by its framework."""
    return operator.capitalize() + ("Backward0" if framework == "torch" else "GradNode")


def skipped_without(item: pytest.Item) -> str:
    """The framework that ``item`` is marked for and that is not installed, or ""."""
    missing = [name for name in FRAMEWORKS if item.get_closest_marker(name) and not installed(name)]
    return missing[0] if missing else ""
