"""The crash journal: the ring, what a crash leaves of it, and the report."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from adbg.engine.record.crash import crash_report, crashed_labels, keep_report, open_customs, read_journal
from adbg.engine.record.journal import SLOT, SLOTS, Journal, faults_path, journal_path
from adbg.engine.record.runs import list_runs, new_run_dir


def test_the_ring_keeps_the_newest_entries_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "0")
    for number in range(SLOTS + 9):
        journal.put("before", 1, number, f"Node{number}")
    entries = read_journal(journal_path(tmp_path, "0"))
    assert [int(entry.fields[2]) for entry in entries] == list(range(9, SLOTS + 9))
    assert read_journal(journal_path(tmp_path, "0"), 1) == []
    journal.put("x" * 5000)  # longer than a slot
    assert len(read_journal(journal_path(tmp_path, "0"))[-1].fields[0]) < 1024


def test_an_entry_that_was_being_written_costs_only_what_is_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "0")
    for number in range(5):
        journal.put("before", 1, number, "Node")
    path = journal_path(tmp_path, "0")
    data = bytearray(path.read_bytes())
    data[2 * SLOT : 2 * SLOT + 8] = bytes(8)  # the third slot's number
    path.write_bytes(data)
    assert [entry.fields[2] for entry in read_journal(path)] == ["3", "4"]
    path.write_bytes(b"short")
    assert read_journal(path) == []


@pytest.mark.parametrize(
    ("ending", "number"), [("ctypes.string_at(0)", signal.SIGSEGV), ("os.abort()", signal.SIGABRT)]
)
def test_a_crash_leaves_node_path_values_records_and_stack(tmp_path: Path, ending: str, number: int) -> None:
    code = f"""
    import ctypes, os, sys
    from pathlib import Path
    from adbg.engine.record.journal import Journal
    journal = Journal(Path(sys.argv[1]), "0")
    journal.watch_faults()
    journal.put("begin", 1)
    journal.put("before", 1, 4, "MmBackward0", 0, "", "", "f32[2, 2] norm 1")
    journal.put("before", 2, 7, "BoomBackward", 1, "Out#1 > In#1", "/n.py:3 in f", "f32[3, 4] norm 3.464", "undefined")
    journal.log("\\tI1121 02:19:25.942734 16194 backward:3] BoomBackward(#7) Preparing\\n")
    def crash():
        {ending}
    crash()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -number
    assert crashed_labels(tmp_path) == ["0"]
    text = crash_report(tmp_path, "0", tmp_path / "vlog-r0.log", number)
    assert signal.Signals(number).name in text
    assert "last node seen: #7 BoomBackward of backward 2, nested 1 deep; it was running" in text
    assert "inside Out#1 > In#1" in text and "made by /n.py:3 in f" in text
    assert "grad_outputs[0]  f32[3, 4] norm 3.464" in text and "grad_outputs[1]  undefined" in text
    assert "BoomBackward(#7) Preparing" in text
    assert "in crash" in text
    assert Path(keep_report(tmp_path, "0", text)).read_text() == text + "\n"


NODE = ("MulBackward0", 0, "", "", "f32[2] norm 1")
ENDED = "; that backward had ended; the crash came later"
RUNNING = "; it was running"
UNKNOWN = "; it was running, or had ended and a node that was not hooked ran after it (ends were not hooked)"


@pytest.mark.parametrize(
    ("story", "wanted", "later"),
    [
        ("begin 1, before 1 2", RUNNING, []),
        ("begin 1, before 1 2, end 1", ENDED, ["backward 1 ends"]),
        ("begin 1, before 1 2, after 1 2, end 1, begin 2, end 2, begin 3", ENDED, ["1 ends", "2 ends", "3 begins"]),
        ("begin 1, before 1 2, begin 2, end 2", RUNNING, ["backward 2 begins", "backward 2 ends"]),  # inside the node
        ("begin 1, before 1 2, end 1, begin 2, before 2 2", UNKNOWN, []),
        ("begin 1, before 1 2, after 1 2, end 1, begin 2, before 2 2", RUNNING, []),
        ("begin 1, before 1 1, before 1 2", UNKNOWN, []),
        ("begin 1, before 1 1, begin 2, before 2 2", RUNNING, []),  # inside the node
        ("begin 1, before 1 2, end 1, brief 2", ENDED, ["backward 1 ends", "backward 2 begins"]),
        ("begin 1, before 1 2, brief 2", RUNNING, ["backward 2 begins"]),  # inside the node
        ("brief 1, before 1 2, brief end", ENDED, ["backward 1 ends"]),  # looked into after its begin
    ],
)
def test_a_node_whose_backward_ended_was_not_running(tmp_path: Path, story: str, wanted: str, later: list[str]) -> None:
    journal = Journal(tmp_path, "0")
    for event in story.split(", "):
        kind, *numbers = event.split()
        if kind != "brief":
            journal.put(kind, *numbers, *(NODE if len(numbers) > 1 else ()))
        elif numbers == ["end"]:
            journal.brief_end()
        else:
            journal.brief_begin(int(numbers[0]))
    text = crash_report(tmp_path, "0", tmp_path / "none", signal.SIGSEGV)
    (line,) = [line for line in text.splitlines() if line.startswith("last node seen: #2 MulBackward0 of backward")]
    assert line.endswith(wanted) and (wanted != RUNNING or "ended" not in line)
    behind = text.partition("after it:")[2].splitlines()[1:]
    assert all(any(each in entry for entry in behind) for each in later) and bool(behind) == bool(later)


def test_without_hooked_nodes_the_report_says_so(tmp_path: Path) -> None:
    Journal(tmp_path, "0")
    text = crash_report(tmp_path, "0", tmp_path / "none", signal.SIGSEGV)
    assert "SIGSEGV" in text and "no node was hooked" in text and "record on" in text


def test_a_good_end_leaves_nothing(tmp_path: Path) -> None:
    code = """
    import faulthandler, sys
    from pathlib import Path
    from adbg.engine.record.journal import Journal
    journal = Journal(Path(sys.argv[1]), "0")
    journal.watch_faults()
    assert faulthandler.is_enabled()
    journal.close()
    assert not faulthandler.is_enabled()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], timeout=60, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_faulthandler_of_the_programs_own_is_left_alone(tmp_path: Path) -> None:
    code = """
    import ctypes, sys
    from pathlib import Path
    from adbg.engine.record.journal import Journal
    journal = Journal(Path(sys.argv[1]), "0")
    journal.watch_faults()
    ctypes.string_at(0)
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Segmentation fault" in done.stderr and not faults_path(tmp_path, "0").exists()


def test_a_faulthandler_that_the_program_enables_later_stays(tmp_path: Path) -> None:
    """Also in a forked child, and when a framework's handlers would have ours put on top again."""
    code = """
    import ctypes, faulthandler, os, sys
    from pathlib import Path
    from adbg.engine.record.journal import Journal
    journal = Journal(Path(sys.argv[1]), "0")
    journal.watch_faults()
    faulthandler.enable()
    faulthandler.enable()
    journal.watch_faults_again()
    if os.fork() == 0:
        journal.abandon()
        ctypes.string_at(0)
    os.wait()
    journal.close()
    print(faulthandler.is_enabled())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n" and "Fatal Python error: Segmentation fault" in done.stderr, done


def test_a_handler_that_a_framework_puts_in_later_still_has_its_say(tmp_path: Path) -> None:
    code = """
    import ctypes, signal, sys
    from pathlib import Path
    from adbg.engine.record.journal import Journal
    journal = Journal(Path(sys.argv[1]), "0")
    journal.watch_faults()
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda n: (libc.dprintf(2, b"framework's\\n"), libc._exit(77)))
    libc.signal(11, handler)
    journal.watch_faults_again()
    libc.raise_ = libc["raise"]
    libc.raise_(11)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 77 and b"framework's" in done.stderr
    assert "Segmentation fault" in faults_path(tmp_path, "0").read_text()


def test_runs_know_of_a_journal(tmp_path: Path) -> None:
    folder = new_run_dir(["train.py"], tmp_path)
    (folder / "run.json").write_text("{}")
    assert list_runs(tmp_path)[0].crash == ()
    faults_path(folder, "0").write_text("Fatal Python error\n")
    assert list_runs(tmp_path)[0].crash == ("0",)


def test_custom_backwards_under_way_are_told_from_the_stacks() -> None:
    """Also where no node was hooked: the nesting is on the stack."""
    stack = [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x1 (most recent call first):",
        '  File "/w/train.py", line 24 in backward',
        '  File "/site/paddle/autograd/py_layer.py", line 340 in backward',
        '  File "/a/engine/backends/paddle_entry.py", line 341 in backward',
        '  File "/w/train.py", line 30 in helper',
        '  File "/w/train.py", line 46 in backward',
        '  File "/site/torch/autograd/function.py", line 310 in apply',
        '  File "/w/train.py", line 106 in <module>',
        "Thread 0x2 (most recent call first):",
        '  File "/w/other.py", line 1 in backward',
        '  File "/site/paddle/autograd/py_layer.py", line 340 in backward',
    ]
    assert open_customs(stack) == "train.py:46 > train.py:24"
    assert open_customs(stack[:2]) == ""


STACKS = """
import ctypes, faulthandler, os, signal, sys
from pathlib import Path
from adbg.engine.record.journal import Journal

class Stack(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

libc = ctypes.CDLL(None)
libc.sigaltstack.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

def stack():
    now = Stack()
    assert libc.sigaltstack(None, ctypes.byref(now)) == 0
    return now.base, now.flags, now.size

def maps():
    return len(open("/proc/self/maps").read().splitlines())

faulthandler.enable(); faulthandler.disable()  # its own stack stays with it for ever, with adbg or without
before, mapped = stack(), maps()
journal = Journal(Path(sys.argv[1]), "0")
held = maps()
journal.watch_faults()
base, flags, size = stack()
libc.memset(base, 1, size)  # all of it is there
print("ROOM", size >= 1 << 20 and base != before[0], flush=True)
journal.close()
print("BACK", stack() == before, maps() == held, flush=True)
"""


def test_handlers_behind_it_have_room_and_the_stack_of_before_is_put_back(tmp_path: Path) -> None:
    """``faulthandler``'s own 16 to 30 KB are too few for Paddle's handler, which ran on into the heap."""
    done = subprocess.run([sys.executable, "-c", STACKS, str(tmp_path)], timeout=60, check=True, capture_output=True)
    assert done.stdout.decode().split() == ["ROOM", "True", "BACK", "True", "True"], done.stderr.decode()
