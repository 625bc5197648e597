"""Threads in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adbg.engine.attach.stacks import OsThread
from adbg.engine.attach.stacks_merged import Frame, Note, NoteKind, ProcessThreads, Thread
from adbg.engine.protocol.messages import RunningNode
from adbg.engine.types import SourceLine
from adbg.tui.text.threads import doing, headline, lines, native_name, node_text, note_text, seconds_text, text_of

ASLEEP = OsThread(5, "python", "S", "futex", "futex_wait", 0.0, 1.0, 41.2, switches=3, started=9, woke=0, library="")
LIBRARY = "/x/libtorch_cpu.so"
INSIDE = Frame("c10d::wait", LIBRARY, 0, "native", "libtorch_cpu.so")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (9.94, "9.9 s"), (41.2, "41 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("c10d::Work::wait", "c10d::Work::wait"),
        ("std::vector<at::Tensor, std::allocator<at::Tensor>>::push_back", "std::vector<…>::push_back"),
        ("py::initialize<f(a<b>)::{lambda(x<y>)#1}>(int)::_FUN", "py::initialize<…>(int)::_FUN"),
        ("a::operator<<<int>", "a::operator<<<int>"),  # two readings: kept
        ("x::operator->", "x::operator->"),
        ("f" * 300, "f" * 79 + "…"),
        ("g<" + "h" * 2000, "g<" + "h" * 77 + "…"),
    ],
)  # fmt: skip
def test_native_names(name: str, short: str) -> None:
    assert native_name(name) == short and len(native_name(name)) <= 80


@pytest.mark.parametrize(
    ("system", "more", "text"),
    [
        (ASLEEP, {}, "sleeps 41 s in futex"),
        (replace(ASLEEP, woke=7), {}, "wakes again and again in futex"),
        (replace(ASLEEP, slept=None, syscall=""), {}, "sleeps in futex_wait"),
        (replace(ASLEEP, library="libphi.so"), {"ident": 0}, "sleeps 41 s in futex  (libphi.so)"),
        (replace(ASLEEP, cpu=0.98, state="R"), {}, "burns CPU (98%)"),
        (replace(ASLEEP, state="R"), {}, "runs"),
        (replace(ASLEEP, state="T"), {}, "is stopped by a signal (`kill -CONT` lets it go on)"),
        (replace(ASLEEP, state="D"), {}, "sleeps in the kernel, where no signal wakes it"),
        (ASLEEP, {"parked": "stopped"}, "is stopped by adbg"),
        (ASLEEP, {"frames": (INSIDE,)}, "sleeps 41 s in futex: c10d::wait"),
        (None, {}, "runs Python"),
    ],
)  # fmt: skip
def test_what_a_thread_does(system: OsThread | None, more: dict[str, object], text: str) -> None:
    assert doing(replace(Thread(1, 5, 70, "MainThread", os=system), **more)) == text  # type: ignore[arg-type]


def test_the_node_and_since_when() -> None:
    assert node_text(RunningNode("MmBackward0")) == "node MmBackward0"
    made = SourceLine("<string>", 16, "forward")
    assert node_text(RunningNode("MmBackward0#3", 4, 7, 12.0, made)) == (
        "node MmBackward0#3 of backward 4 for 12 s, made at <string>:16 in forward"
    )


def test_the_view_folds_to_the_users_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\ndef step():\n    dist.all_reduce(t)\n")
    frames = (
        Frame("c10d::Work::wait", LIBRARY, 0, "native", "libtorch_cpu.so"),
        Frame("all_reduce", "/x/torch/d.py", 3252, "framework"),
        Frame("step", str(script), 4, "user"),
    )
    main = Thread(1, 5, 70, "MainThread", os=ASLEEP, frames=frames, call="torch.distributed.all_reduce", owns_gil=True)
    loops = [Thread(n, n + 4, name="gloo", os=replace(ASLEEP, tid=n + 4)) for n in (2, 3)]
    view = ProcessThreads(5, 1, 0, (main, *loops), gil=True, held=1.2, notes=(Note(NoteKind.NO_AGENT),))
    text = text_of([view])
    assert text.splitlines()[0] == (
        "process 5 (rank 0): 3 threads; MainThread holds the GIL; py-spy held it for up to 1.2 s to read its native"
        " frames"
    )
    assert "  1  MainThread  5  sleeps 41 s in futex: c10d::Work::wait, holds the GIL" in text
    assert (
        f"in torch.distributed.all_reduce, called at {'…/' + '/'.join(str(script).split('/')[-2:])}:4 in step" in text
    )
    assert "             dist.all_reduce(t)" in text and "d.py:3252" not in text
    assert "  2  gloo × 2  6, 7  sleeps 41 s in futex" in text
    whole = text_of([view], whole=True)
    assert "d.py:3252" in whole and "c10d::Work::wait  (libtorch_cpu.so)" in whole and "  3  gloo  7  sleeps" in whole
    assert [line.level for line in lines(view)][:4] == [0, 0, 1, 2]
    assert headline(loops[0]).startswith("  2  gloo  6")


def test_every_note_has_words() -> None:
    for kind in NoteKind:
        assert len(note_text(Note(kind, "detail"))) > 5
    assert "pip install py-spy" in note_text(Note(NoteKind.NO_PYSPY))
    assert "where all native" in note_text(Note(NoteKind.NATIVE_LEFT, "x"))
