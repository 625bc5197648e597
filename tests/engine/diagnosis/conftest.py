"""Programs that share a process are run once: all tests of a module are on one worker (``--dist loadfile``)."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """What came of the module's ``PROGRAMS`` (name -> text, each behind ``HEAD`` where there is one), on the framework
    after which the module is named."""
    module = request.module
    (framework,) = set(FRAMEWORKS) & set(request.path.stem.split("_"))
    head = getattr(module, "HEAD", "")
    programs = {name: head + text for name, text in module.PROGRAMS.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), programs)
