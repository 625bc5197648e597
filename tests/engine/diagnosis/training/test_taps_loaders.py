"""The tap LOADERS: what it tells of loaders, and that nothing of it stays, nor shows in an exception of the
program's."""

from __future__ import annotations

import functools
import importlib
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
from support.frameworks import on_frameworks, only
from support.met_modules import Modules

from adbg.engine.backends.base import LoaderEvent, Need, Observation, Watcher
from adbg.engine.backends.common.user_files import FrameFilter

_LOADERS = {"torch": "torch.utils.data", "paddle": "paddle.io"}
_FETCHERS = {"torch": "torch.utils.data._utils.fetch", "paddle": "paddle.io.dataloader.fetcher"}


class Told(Watcher):
    """Also of what comes in the process of a worker: into a file."""

    def __init__(self, file: Any = None) -> None:
        self.events: list[LoaderEvent] = []
        self._file = file

    def loader(self, event: LoaderEvent) -> None:
        self.events.append(event)
        if self._file is not None:
            with open(self._file, "a") as file:
                file.write(f"{os.getpid()} {event.what}\n")

    def what(self) -> list[str]:
        return [event.what for event in self.events]


class Data:
    """A data set of either framework."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> int:
        return at


def collate(samples: list[int]) -> Any:
    return numpy.array(samples[::-1])


def raises(samples: list[int]) -> list[int]:
    raise ValueError(f"{len(samples)} samples")


def _kinds(framework: str) -> tuple[Any, Any]:
    return (
        importlib.import_module(_LOADERS[framework]).DataLoader,
        importlib.import_module(_FETCHERS[framework])._MapDatasetFetcher,
    )


def _data(framework: str) -> Any:
    return type("Data", (Data, importlib.import_module(_LOADERS[framework]).Dataset), {})()


def _owned(framework: str) -> dict[tuple[int, str], Any]:
    return {(id(kind), name): value for kind in _kinds(framework) for name, value in vars(kind).items()}


@contextmanager
def _watched(framework: str, told: Told) -> Iterator[Observation]:
    observing = importlib.import_module(f"adbg.engine.backends.{framework}.observing")
    library = os.path.dirname(str(importlib.import_module(framework).__file__))
    observation = Observation(observing.taps(FrameFilter(library), Modules()), told)
    observation.want(Need.LOADERS)
    try:
        yield observation
    finally:
        observation.close()


def _fetcher(framework: str, function: Any) -> Any:
    return _kinds(framework)[1](_data(framework), True, function, False)


@on_frameworks()
def test_a_pass_is_told_and_all_is_put_back(framework: str) -> None:
    before = _owned(framework)
    told = Told()
    loader = _kinds(framework)[0](_data(framework), batch_size=2, shuffle=False, collate_fn=collate)
    with _watched(framework, told):
        assert [[int(each) for each in batch] for batch in loader] == [[1, 0], [3, 2], [5, 4], [7, 6], [9, 8]]
    after = _owned(framework)
    assert [key for key, value in before.items() if after.get(key) is not value] == []
    assert after.keys() == before.keys() and loader.collate_fn is collate
    assert told.what() == ["begins", "collated", "collated", "collated"]  # the first three
    begins, first = told.events[:2]
    assert begins.dataset is loader.dataset and begins.loader == id(loader)
    assert begins.line is not None and begins.line.file == __file__
    assert (begins.workers, begins.persistent, begins.seeds) == (0, False, None)
    assert first.collates is collate.__code__ and (first.samples, first.result.tolist()) == ([0, 1], [1, 0])
    list(loader)
    assert len(told.events) == 4


@on_frameworks()
def test_batches_of_a_fetcher_are_the_same_objects(framework: str) -> None:
    class Collates:
        def __call__(self, samples: list[int]) -> list[int]:
            return samples

        def method(self, samples: list[int]) -> list[int]:
            return samples

    def of_two(other: int, samples: list[int]) -> list[int]:
        return samples

    a = Collates()
    codes = [Collates.__call__.__code__, Collates.method.__code__, of_two.__code__]
    told = Told()
    with _watched(framework, told):
        for function in (a, a.method, functools.partial(of_two, 3)):
            fetcher = _fetcher(framework, function)
            assert fetcher.fetch([1, 2]) == [1, 2]
            assert fetcher.collate_fn is function
    assert [event.collates for event in told.events] == codes
    assert all(event.samples == event.result for event in told.events)


@on_frameworks()
def test_an_exception_reaches_the_program_as_it_is(framework: str) -> None:
    def frames() -> list[tuple[str, str]]:
        with pytest.raises(ValueError, match="3 samples") as caught:
            fetcher.fetch([1, 2, 3])
        return [(frame.filename, frame.name) for frame in traceback.extract_tb(caught.value.__traceback__)]

    told = Told()
    fetcher = _fetcher(framework, raises)
    plain = frames()
    with _watched(framework, told):
        for _ in range(5):
            assert frames() == plain
            assert fetcher.collate_fn is raises
    assert told.events == []


@on_frameworks()
def test_taken_out_while_a_batch_is_made(framework: str) -> None:
    told = Told()
    before = _owned(framework)
    with _watched(framework, told) as observation:

        def ends(samples: list[int]) -> list[int]:
            observation.close()
            return samples

        fetcher = _fetcher(framework, ends)
        assert fetcher.fetch([4]) == [4]
        assert fetcher.collate_fn is ends
    after = _owned(framework)
    assert [key for key, value in before.items() if after.get(key) is not value] == []
    assert told.events == []


@on_frameworks()
def test_functions_of_the_framework_are_left_alone(framework: str) -> None:
    told = Told()
    with _watched(framework, told):
        for batch in _kinds(framework)[0](_data(framework), batch_size=5, shuffle=False):
            assert len(batch) in (1, 5)
    assert told.what() == ["begins"]


@on_frameworks()
def test_workers_tell_nothing(framework: str, tmp_path: Any) -> None:
    file = tmp_path / "told"
    told = Told(file)
    data = _data(framework)
    loader = _kinds(framework)[0](data, batch_size=2, shuffle=False, collate_fn=collate, num_workers=2)
    with _watched(framework, told):
        found = [sorted(int(each) for each in batch) for batch in loader]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert file.read_text() == f"{os.getpid()} begins\n"
    assert told.events[0].workers == 2


@only("torch", "Paddle's loader ends its thread, and says something else")
def test_an_exception_through_a_loader() -> None:
    told = Told()
    loader = _kinds("torch")[0](_data("torch"), batch_size=2, collate_fn=raises)
    with _watched("torch", told), pytest.raises(ValueError, match="2 samples") as caught:
        list(loader)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(ValueError, match="2 samples") as plain:
        list(loader)
    assert names == [frame.name for frame in traceback.extract_tb(plain.value.__traceback__)]
    assert told.what() == ["begins"]
