"""The program behind the keeper behaves as it does without: streams, terminal, signals, exit status; and it survives
the front end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.types import ExitStatus

PLAIN = {**os.environ, "PYTHON_COLORS": "0", "NO_COLOR": "1"}
ENDINGS = {
    "status": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "success": "print('done')",
    "message": "raise SystemExit('no data')",
    "exception": "def f(x):\n    return 1 / x\nf(0)",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('bad') from e",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "abort": "import os; os.abort()",
    "term": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segv": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "interrupt": "raise KeyboardInterrupt",
    "os_exit": "import os; print('lost?', flush=True); os._exit(7)",
}


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("mode", ["pty", "split"])
def test_ends_as_plain_python(program: Any, tmp_path: Path, name: str, mode: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDINGS[name])
    command = [sys.executable, str(script)]
    plain = subprocess.run(command, capture_output=True, timeout=60, env=PLAIN)
    run = program(command, mode=mode, env=PLAIN | {"STUB_AGENT_LOG": ""})
    status = run.wait()
    assert status.status == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode)
    assert (status.signal is None) == (plain.returncode >= 0)
    if mode == "split":
        assert run.stream("stdout") == plain.stdout
        assert run.stream("stderr") == plain.stderr
    else:
        assert sorted(run.stream("stdout").splitlines()) == sorted((plain.stdout + plain.stderr).splitlines())
    assert run.ended == [status]


def test_exit_is_written_beside_the_output(program: Any, tmp_path: Path) -> None:
    run = program("import os; print('x' * 10); os.kill(os.getpid(), 15)")
    assert run.wait().signal_name == "SIGTERM"
    ended = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert (ended["code"], ended["signal"], ended["asked"]) == (None, 15, False)
    assert time.strptime(ended["ended"], "%Y-%m-%dT%H:%M:%SZ")
    assert (tmp_path / "run" / "output-r0.log").read_bytes() == b"x" * 10 + b"\n"


def test_a_signal_that_a_person_had_sent_is_told_from_a_crash(program: Any, tmp_path: Path) -> None:
    run = program("print('ready', flush=True); import time; time.sleep(60)")
    run.expect(b"ready")
    run.launched.signal(signal.SIGKILL)
    assert run.wait().signal_name == "SIGKILL"
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["asked"] is True


def test_bytes_are_exact_and_a_terminal_is_there(program: Any) -> None:
    text = "".join(f"\r{done:3d}%|{'#' * done:<20}|" for done in range(21)) + "\n\x1b[1mbold\x1b[0m\ttab\r\nünï\n"
    code = f"""if True:
        import sys
        assert sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
        sys.stdout.write({text!r})"""
    run = program(code)
    assert run.wait().status == 0, run.output
    assert run.stream("stdout") == text.encode()


def test_split_streams_are_terminals_of_their_own(program: Any) -> None:
    code = (
        "import sys, os, time\n"
        "assert sys.stdout.isatty() and sys.stderr.isatty() and os.ttyname(1) != os.ttyname(2)\n"
        "print('line'); time.sleep(30)"
    )
    run = program(code, mode="split")
    run.expect(b"line\n")  # line-buffered: it came before the program's end
    run.launched.signal(signal.SIGKILL)
    assert run.wait().status == 137


def test_stdin_by_line_and_end_of_file(program: Any) -> None:
    run = program("import sys\nname = input('name? ')\nprint('hello', name)\nprint(len(sys.stdin.read()), 'more')")
    run.expect(b"name? ")
    run.launched.write_stdin(b"Ada\n")
    run.expect(b"hello Ada")
    run.launched.write_stdin(b"four\n\x04")
    assert run.wait().status == 0
    assert b"5 more" in run.stream("stdout")


def test_much_stdin(program: Any) -> None:
    lines = 20_000
    run = program(
        f"""if True:
        import sys
        print('ready')
        print(sum(len(sys.stdin.readline()) for _ in range({lines})), 'read')"""
    )
    run.expect(b"ready")
    run.launched.write_stdin(b"0123456789\n" * lines)
    assert run.wait().status == 0
    assert b"%d read" % (11 * lines) in run.stream("stdout")


@pytest.mark.parametrize("data", [b"one\ntwo\n", b"", b"x" * 300_000])
def test_piped_stdin_in_split_mode(front_end: Any, data: bytes) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:3], sys.stdin.isatty())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = front_end("split", [sys.executable, "-c", code], **pipes)
    out, _ = process.communicate(data, timeout=60)
    assert out.decode() == f"{len(data)} {data[:3]!r} False\n"
    assert process.returncode == 0


def test_window_size(program: Any) -> None:
    code = (
        "import os, signal, sys\n"
        "def changed(*_): print('now', *os.get_terminal_size(), flush=True)\n"
        "signal.signal(signal.SIGWINCH, changed)\n"
        "print('size', *os.get_terminal_size(), flush=True)\n"
        "while True: signal.pause()"
    )
    for mode in ("pty", "split"):
        run = program(code, mode=mode, rows=33, cols=101)
        run.expect(b"size 101 33")
        run.launched.resize(40, 132)
        run.expect(b"now 132 40")
        run.launched.signal(signal.SIGTERM)
        assert run.wait().signal == signal.SIGTERM


def test_interrupt_reaches_the_group_and_term_the_program_alone(program: Any) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time\\nprint(\"up\", flush=True)\\n"
        'try: time.sleep(60)\\nexcept KeyboardInterrupt: print("child interrupted", flush=True)\'])\n'
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: child.wait(); print('interrupted')"
    )
    run = program(code)
    run.expect(b"up")
    run.launched.signal(signal.SIGINT)
    assert run.wait().status == 0
    assert b"child interrupted\ninterrupted\n" in run.stream("stdout")


def test_ctrl_c_typed_at_the_terminal(program: Any) -> None:
    run = program(
        "import time\nprint('up', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('caught')"
    )
    run.expect(b"up")
    run.launched.write_stdin(b"\x03")
    assert run.wait().status == 0
    assert b"caught" in run.stream("stdout")


def test_background_children_live_on_and_hold_nothing_up(program: Any, tmp_path: Path, eventually: Any) -> None:
    """One that holds the terminal, one that has no descriptor of it: both end after the program's end is known."""
    child = (
        "import os, sys, time\nend = time.monotonic() + 100\n"
        "while not os.path.exists(sys.argv[2]) and time.monotonic() < end: time.sleep(0.01)\n"
        "print('late', flush=True); open(sys.argv[1], 'w').write('ended')"
    )
    code = f"""if True:
        import subprocess, sys
        n = subprocess.DEVNULL
        command = [sys.executable, '-c', {child!r}]
        subprocess.Popen(command + [{str(tmp_path / "holds")!r}, {str(tmp_path / "go")!r}])
        subprocess.Popen(command + [{str(tmp_path / "free")!r}, {str(tmp_path / "go")!r}], stdin=n, stdout=n, stderr=n)
        print('leaving')
        sys.exit(5)"""
    for mode in ("pty", "split"):
        run = program(code, mode=mode)
        assert run.wait().status == 5
        (tmp_path / "go").touch()  # only now
        assert b"leaving\n" in run.stream("stdout")
        for name in ("holds", "free"):
            eventually(lambda name=name: (tmp_path / name).exists() and (tmp_path / name).read_text() == "ended", name)
            (tmp_path / name).unlink()
        eventually(lambda run=run: b"late" in run.stream("stdout"), "its output still comes")
        (tmp_path / "go").unlink()


def test_only_free_children_left(program: Any, tmp_path: Path, eventually: Any) -> None:
    """The keeper ends with the program here: its end must not hang up on what is left."""
    child = "import time, sys; time.sleep(1); open(sys.argv[1], 'w').write('ended')"
    code = (
        "import subprocess, sys; n = subprocess.DEVNULL\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}, {str(tmp_path / 'free')!r}], stdin=n, stdout=n, stderr=n)"
    )
    assert program(code).wait().status == 0
    eventually(lambda: (tmp_path / "free").exists(), "the child was killed by the terminal's hang-up")


def test_a_program_that_closes_its_streams_runs_on(program: Any, tmp_path: Path) -> None:
    code = f"""if True:
        import os, time
        for fd in (0, 1, 2): os.close(fd)
        time.sleep(0.3)
        open({str(tmp_path / "alive")!r}, 'w')
        os._exit(4)"""
    assert program(code).wait().status == 4
    assert (tmp_path / "alive").exists()


@pytest.mark.parametrize("mode", ["pty", "split"])
def test_survives_the_front_end(front_end: Any, tmp_path: Path, eventually: Any, mode: str) -> None:
    """SIGKILL while it writes: the same result, the same status, and every byte in the log."""
    code = (
        "import sys, time\n"
        "for i in range(30_000): print('%06d' % i, 'x' * 60)\n"
        "time.sleep(0.2)\n"
        "print('sys.stdin', sys.stdin.isatty())\n"
        f"open({str(tmp_path / 'result')!r}, 'w').write('42')\n"
        "sys.exit(9)"
    )
    null = subprocess.DEVNULL
    process = front_end(mode, [sys.executable, "-c", code], stdin=null, stdout=subprocess.PIPE, stderr=null)
    process.stdout.read(100_000)
    process.kill()
    process.wait(60)
    eventually(lambda: (tmp_path / "run" / "exit.json").exists(), "the program ends by itself")
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["code"] == 9
    assert (tmp_path / "result").read_text() == "42"
    lines = (tmp_path / "run" / "output-r0.log").read_text().splitlines()
    assert len(lines) == 30_001 and lines[29_999].startswith("029999 xxx")


def test_survives_a_front_end_that_is_killed_while_it_does_not_read(
    front_end: Any, tmp_path: Path, eventually: Any
) -> None:
    """The program waits for a slow front end, as for a slow terminal; once that is gone it does not."""
    code = f"for i in range(200_000): print('x' * 60)\nopen({str(tmp_path / 'result')!r}, 'w').write('done')"
    process = front_end("pty", [sys.executable, "-c", code], stdout=subprocess.PIPE)
    eventually(lambda: (tmp_path / "ready").exists(), "the program runs")
    log = tmp_path / "run" / "output-r0.log"
    sizes = [-1]

    def stands() -> bool:
        sizes.append(log.stat().st_size if log.exists() else 0)
        time.sleep(0.2)
        return sizes[-1] > 0 and sizes[-1] == sizes[-2]

    eventually(stands, "nobody reads: the output stands still")
    assert sizes[-1] < 8 << 20 and not (tmp_path / "result").exists()
    process.kill()
    eventually(lambda: (tmp_path / "result").exists(), "it runs on once the front end is gone")
    eventually(lambda: log.stat().st_size == 61 * 200_000, "all its output is in the log")


def test_a_program_that_asks_gets_end_of_file_once_the_front_end_is_gone(
    front_end: Any, tmp_path: Path, eventually: Any
) -> None:
    code = """if True:
        import sys
        print('asking', flush=True)
        try: input()
        except EOFError: print('none', len(sys.stdin.read()))
        sys.exit(11)"""
    null = subprocess.DEVNULL
    process = front_end("pty", [sys.executable, "-c", code], stdin=null, stdout=subprocess.PIPE, stderr=null)
    assert process.stdout.readline() == b"asking\n"
    process.kill()
    eventually(lambda: (tmp_path / "run" / "exit.json").exists(), "the program does not wait for ever")
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["code"] == 11
    assert b"none 0" in (tmp_path / "run" / "output-r0.log").read_bytes()


def test_signals_to_the_front_end_mean_the_program(front_end: Any, tmp_path: Path, eventually: Any) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saving', flush=True), sys.exit(21)))\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('checkpoint', flush=True))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    process = front_end("split", [sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == b"checkpoint\n"
    process.terminate()
    assert process.stdout.readline() == b"saving\n"
    assert process.wait(60) == 21


def test_ignored_signals_stay_ignored(front_end: Any) -> None:
    """Under nohup, and as a background job of a shell script, the program ignores what it would without adbg."""
    code = "from signal import *; print(*(getsignal(s) == SIG_IGN for s in (SIGHUP, SIGINT, SIGTERM)))"

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = front_end("split", [sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=ignore)
    assert process.communicate(timeout=60)[0] == b"True True False\n"


def test_handed_down_descriptors_reach_the_program(front_end: Any, tmp_path: Path) -> None:
    extra = os.open(tmp_path / "extra", os.O_WRONLY | os.O_CREAT)
    code = f"import os; os.write({extra}, b'through'); print(sorted(int(f) for f in os.listdir('/dev/fd')))"
    plain = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[extra], timeout=60)
    process = front_end("split", [sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[extra])
    out, _ = process.communicate(timeout=60)
    os.close(extra)
    assert (tmp_path / "extra").read_bytes() == b"through" * 2
    assert out == plain.stdout, "no descriptor more, none less"


def test_no_controlling_terminal_is_needed(front_end: Any) -> None:
    code = "import os; print(os.isatty(1), os.getpgrp() == os.getpid())"
    null = subprocess.DEVNULL
    process = front_end("pty", [sys.executable, "-c", code], stdin=null, stdout=subprocess.PIPE, start_new_session=True)
    assert process.communicate(timeout=60)[0] == b"True True\n"


def test_unwritable_run_directory_is_said_and_survived(program: Any, config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = program("print('fine')", config=dataclasses.replace(config, run_dir=str(tmp_path / "file" / "run")))
    assert run.wait().status == 0
    assert run.stream("stdout") == b"fine\n"
    assert run.notes == [f"the program's output is not recorded in {tmp_path / 'file' / 'run'}: Not a directory"]


def test_full_disk_is_said_and_survived(program: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output-r0.log").symlink_to("/dev/full")
    run = program("print('fine')")
    assert run.wait().status == 0
    assert run.stream("stdout") == b"fine\n"
    assert run.notes and "No space left on device" in run.notes[0]


def test_what_cannot_start_says_why(program: Any, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot start no-such-command: No such file or directory"):
        program(["no-such-command", "x"])
    (tmp_path / "plain.txt").write_text("text")
    with pytest.raises(CommandError, match="Permission denied"):
        program([str(tmp_path / "plain.txt")])
    with pytest.raises(CommandError, match=r"cannot run in .*nowhere: No such file or directory"):
        program("pass", cwd=str(tmp_path / "nowhere"))


def test_keeper_killed(program: Any, eventually: Any) -> None:
    run = program("import time; print('up', flush=True); time.sleep(60)")
    run.expect(b"up")
    parent = int(Path(f"/proc/{run.launched.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert run.wait().status == 125
    assert run.launched.exit == ExitStatus()


def test_signal_after_the_end_is_nothing(program: Any) -> None:
    run = program("pass")
    ended = run.wait()
    run.launched.signal(signal.SIGTERM)
    run.launched.write_stdin(b"x\n")
    run.launched.resize(10, 10)
    assert run.launched.exit == ended == ExitStatus(0)


def test_big_output_arrives_whole(program: Any) -> None:
    """50 MB through the pty, byte for byte."""
    code = """if True:
        import os
        for _ in range(50):
            view = memoryview(bytes(range(256)) * 4096)
            while view: view = view[os.write(1, view):]"""
    run = program(code)
    assert run.wait().status == 0
    assert run.stream("stdout") == bytes(range(256)) * 4096 * 50
