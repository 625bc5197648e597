"""adbg comes to a program that runs already (``bootstrap/attach``): who may call it in, how often, what it can do with
what was there before, and what it does to threads, children and graphs that are not its business."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.frameworks import node_of, on_frameworks, only
from support.late import ATTACH, Late, Session, leave
from support.patience import patience

LIMIT = 30.0
TANH = "Tanh*"


def wait(done: object, what: str) -> None:
    deadline = time.monotonic() + patience(LIMIT)
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# ------------------------------------------------------------------ graphs that were made before


@on_frameworks()
def test_a_graph_made_before_the_attach(framework: str) -> None:
    """Stops, values, steps and edits as ever; no stack, and why."""
    with Late(framework) as program, Session() as session:
        peer = session.enter(program)
        peer.begin(TANH)
        program.post("old")
        stop = peer.stopped()
        assert stop["node"]["unique_name"] == node_of(framework, "tanh") + "#1"
        node = peer.request("adbg/node")
        assert node["node"]["forward"] is None and node["node"]["module"] is None
        assert node["forward_note"].startswith("stacks are off, as after every attach"), node["forward_note"]
        peer.request("adbg/stacks", on=True)
        assert peer.request("stackTrace")["note"].endswith(
            ("made before stacks were on, or inside torch.compile",)
            if framework == "torch"
            else ("made before stacks were on, or by an operator that keeps none",)
        )
        peer.request("setExpression", expression="grad_outputs[0]", value="grad_outputs[0] * 2")
        assert peer.go("stepIn")["node"]["unique_name"].startswith("Mul")
        assert peer.value("float(grad_outputs[0].sum())") == pytest.approx(3 * 2 * 0.0172669, rel=1e-3)
        peer.set()
        peer.request("continue")
        edited = program.answer()
        leave(peer)
        program.ask("run", "program.x.clear_gradient() if hasattr(program.x, 'clear_gradient') else None")
        program.ask("run", "program.x.grad = None" if framework == "torch" else "None")
        plain = program.ask("old")
        assert edited == pytest.approx([2 * value for value in plain], rel=1e-5)


@on_frameworks()
def test_stacks_begin_with_the_next_forward(framework: str) -> None:
    """Asked for with the attach: an old node says that it is older, a new one has its line and module."""
    with Late(framework) as program, Session() as session:
        peer = session.enter(program)
        peer.event("adbg/hello")
        peer.request("initialize", token=peer.token, adbg=True, stacks=True)
        peer.set(TANH)
        peer.request("configurationDone")
        program.post("old")
        peer.stopped()
        note = peer.request("adbg/node")["forward_note"]
        assert "made before adbg attached" in note, note
        peer.request("continue")
        program.answer()
        program.post("train", 1)
        node = peer.stopped()["node"]
        assert node["module"] == "1" and node["forward"]["function"] == "step", node
        peer.set()
        peer.request("continue")
        program.answer()
        leave(peer)


# ------------------------------------------------------------------ who, and how often


@on_frameworks()
def test_the_snippet_run_twice_is_one_agent(framework: str) -> None:
    """A pending call and a thread may both carry it in."""
    with Late(framework) as program, Session() as session:
        peer = session.enter(program)
        peer.begin()
        threads = len(os.listdir(f"/proc/{program.process.pid}/task"))
        for _ in range(3):
            program.ask("attach", str(ATTACH), str(session.file))
        wait(lambda: len(os.listdir(f"/proc/{program.process.pid}/task")) == threads, "its threads did not end")
        assert peer.request("threads")["threads"]  # the first one is served on
        with Session() as other:
            program.ask("attach", str(ATTACH), str(other.file))
            refused = other.accept()
            assert refused.read()["event"] == "adbg/refused"
            body = refused.events[0]["body"]
            assert body["token"] == other.config.token and body["pid"] == program.process.pid
            assert "another front end debugs this process" in body["reason"]
        leave(peer)


@only("torch", "what loads adbg is the same for every framework")
def test_a_killed_front_end_keeps_no_other_out() -> None:
    """The agent of the first may still be leaving when the second comes."""
    with Late("torch") as program:
        for _ in range(3):
            with Session() as session:
                peer = session.enter(program)
                peer.begin(TANH)
                program.post("train", 1)
                peer.stopped()
                peer.close()
            with Session() as session:
                program.answer()
                peer = session.enter(program)
                assert peer.event("adbg/hello")["process"]["pid"] == program.process.pid
                peer.begin()
                leave(peer)


SLEEPER = """
import sys, time
namespace = {"__name__": "adbg.engine.bootstrap.attach"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), namespace)
before = set(sys.modules)
namespace["begin"](sys.argv[2])
sys.stdin.readline()
print(sorted(name for name in set(sys.modules) - before if name.startswith("adbg")))
print(len(__import__("os").listdir("/proc/self/task")), [type(each).__name__ for each in sys.meta_path][:2])
"""


def one_process(session_file: Path) -> list[str]:
    """What is in a process some time after it was handed ``session_file``."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPER, str(ATTACH), str(session_file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    tasks = Path(f"/proc/{process.pid}/task")
    time.sleep(0.2)
    wait(lambda: len(os.listdir(tasks)) == 1, "a thread stayed")
    return process.communicate("\n", timeout=patience(LIMIT))[0].splitlines()


@pytest.mark.parametrize(
    "wrong", ["nobody listens", "open folder", "readable file", "a link", "another folder", "gone"]
)
def test_a_session_that_is_not_to_be_trusted(tmp_path: Path, wrong: str) -> None:
    """Nothing of adbg is loaded, and nothing stays."""
    with Session() as session:
        file, listening = session.file, session._sock
        if wrong == "nobody listens":
            listening.close()
        elif wrong == "open folder":
            session.folder.chmod(0o755)
        elif wrong == "readable file":
            file.chmod(0o644)
        elif wrong == "a link":
            file = session.folder / "linked.json"
            file.symlink_to(session.file)
        elif wrong == "another folder":
            tmp_path.chmod(0o700)
            file = tmp_path / "session.json"
            file.write_text(session.file.read_text())
            file.chmod(0o600)
        else:
            file.unlink()
        assert one_process(file) == ["[]", "1 ['type', 'type']"]
        if wrong != "nobody listens":
            listening.settimeout(0.05)
            with pytest.raises(socket.timeout):
                listening.accept()


def test_a_session_that_is_trusted_is_met() -> None:
    """The other way round: the checks above let a good one through."""
    with Session() as session:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", SLEEPER, str(ATTACH), str(session.file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            peer = session.accept()
            assert peer.event("adbg/hello")["process"]["pid"] == process.pid
            peer.begin()
            leave(peer)
        finally:
            process.communicate("\n", timeout=patience(LIMIT))
        assert process.returncode == 0


# ------------------------------------------------------------------ threads and children


PLAIN = """
import sys, _thread, time
assert "threading" not in sys.modules
namespace = {"__name__": "adbg.engine.bootstrap.attach"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), namespace)
namespace["begin"](sys.argv[2])
sys.stdin.readline()
import threading
print(threading.main_thread() is threading.current_thread(), threading.main_thread().ident == _thread.get_ident())
print(sorted(thread.name for thread in threading.enumerate()), len(threading._active))
worker = threading.Thread(target=time.sleep, args=(0.1,))
worker.start()
"""


def test_the_main_thread_stays_it_where_adbg_imports_threading_first() -> None:
    """Python until 3.13 takes the thread that imports ``threading`` first for the main one."""
    with Session() as session:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", PLAIN, str(ATTACH), str(session.file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        peer = session.accept()
        peer.begin()
        leave(peer)
        wait(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 1, "a thread stayed")
        out, err = process.communicate("\n", timeout=patience(LIMIT))
        assert out.splitlines() == ["True True", "['MainThread'] 1"], out
        assert err == "" and process.returncode == 0


TRACED = """
import sys, threading
seen = framework._seen = set()
def trace(frame, event, argument):
    seen.add(frame.f_code.co_filename)
    return None
threading.settrace(trace)
threading.setprofile(trace)
"""


@only("torch", "the threads are the same for every framework")
def test_a_program_that_traces_its_threads_does_not_trace_adbgs() -> None:
    with Late("torch") as program, Session() as session:
        program.ask("run", TRACED)
        peer = session.enter(program)
        peer.begin(TANH)
        program.post("train", 1)
        peer.stopped()
        peer.set()
        peer.request("continue")
        program.answer()
        leave(peer)
        program.ask("run", "import sys; print('SEEN', *sorted(framework._seen), file=sys.stderr)")
        (line,) = [line for line in program.errors().splitlines() if line.startswith("SEEN")]
        files = [Path(word).name for word in line.split()[1:] if "/engine/" in word]
        assert "threading.py" in line  # it does trace
        assert set(files) <= {"attach.py", "connection.py"}, line  # their first line each


FORKS = """
import os, sys
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    loss = program.step()
    threads = len(os.listdir("/proc/self/task"))
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    sockets = sum("socket:" in os.readlink(file) for file in files if os.path.lexists(file))
    os.write(writing, f"{loss!r} {threads} {sockets}".encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(2, b"CHILD " + os.read(reading, 1000) + b"\\n")
os.close(reading)
os.close(writing)
"""


@on_frameworks()
def test_a_child_forked_after_the_attach_is_left_alone(framework: str) -> None:
    """It trains without adbg's threads and sockets, and without a stop."""
    with Late(framework) as program, Session() as session:
        program.ask("train", 2)
        peer = session.enter(program)
        peer.begin(TANH)
        program.ask("run", FORKS)
        words = next(line for line in program.errors().splitlines() if line.startswith("CHILD")).split()
        assert float(words[1]) > 0 and words[2:] == ["1", "0"], program.errors()
        program.post("train", 1)
        assert peer.stopped()["node"]  # the parent is debugged on
        peer.set()
        peer.request("continue")
        program.answer()
        leave(peer)
        assert program.end() == 0


# ------------------------------------------------------------------ in the middle of a backward


MIDDLE = {
    "torch": """
class Asks(framework.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        import os
        print("[1]", flush=True)
        os.read(0, 1)
        return gradient * 2
x = framework.ones(3, requires_grad=True)
(Asks.apply(x.tanh())).tanh().sum().backward()
framework.middle = x.grad.tolist()
""",
    "paddle": """
class Asks(framework.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        import os
        print("[1]", flush=True)
        os.read(0, 1)
        return gradient * 2
x = framework.ones([3])
x.stop_gradient = False
(Asks.apply(x.tanh())).tanh().sum().backward()
framework.middle = x.grad.tolist()
""",
}


@on_frameworks()
def test_in_the_middle_of_a_backward(framework: str) -> None:
    """Its own nodes run unseen, and that is said; the next backward stops. On Paddle nothing is tried out meanwhile."""
    attach = f"""
namespace = {{"__name__": "adbg.engine.bootstrap.attach"}}
exec(compile(open({str(ATTACH)!r}).read(), {str(ATTACH)!r}, "exec"), namespace)
namespace["begin"](SESSION)
"""
    with Late(framework) as program, Session() as session:
        program.ask("train", 2)
        start = attach.replace("SESSION", repr(str(session.file))).replace("\n", "\n        ")
        program.post("run", MIDDLE[framework].replace('print("[1]", flush=True)', start + 'print("[1]", flush=True)'))
        assert program.answer() == 1
        peer = session.accept()
        peer.begin(TANH)
        peer.until(
            lambda: any("a backward was running" in e["output"] for e in peer.bodies("output")), "the word of it"
        )
        assert program.process.stdin is not None
        program.process.stdin.write("x")
        program.process.stdin.flush()
        assert program.answer() is None  # it ended without a stop
        assert not peer.bodies("stopped")
        program.post("train", 1)
        assert peer.stopped()["node"]["name"] == node_of(framework, "tanh")
        peer.set()
        peer.request("continue")
        program.answer()
        leave(peer)
        assert program.end() == 0
