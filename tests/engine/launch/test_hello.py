"""The real agent in a launched program: it dials the front end, and a front end that hangs up costs nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adbg.engine.launch.launch import ENGINE
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol.rendezvous import SessionConfig, new_token, private_dir


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    folder = private_dir()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(folder / "s"))
    listening.listen()
    listening.settimeout(30)
    yield listening
    listening.close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.fixture
def config(listener: socket.socket) -> SessionConfig:
    return SessionConfig(listener.getsockname(), new_token(), engine_path=str(ENGINE))


def hello(listener: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
    connection, _ = listener.accept()
    connection.settimeout(30)
    with connection.makefile("rb") as stream:
        message = wire.read_message(stream)
    assert message is not None and message["event"] == "adbg/hello"
    return connection, message["body"]


def test_the_program_says_hello_and_waits(program: Callable[..., Any], listener: socket.socket, config: Any) -> None:
    run = program("import sys; print('ran', 'torch' in sys.modules)")
    connection, body = hello(listener)
    assert body["token"] == config.token
    assert (body["process"]["pid"], body["process"]["main"]) == (run.launched.pid, True)
    assert run.output == [] and run.launched.exit is None
    connection.close()
    assert run.wait().status == 0
    assert run.stream("stdout") == b"ran False\n"


def test_a_child_says_hello_when_it_imports_the_framework(
    program: Callable[..., Any], listener: socket.socket, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    code = "import torch; x = torch.ones(2, requires_grad=True); x.sum().backward(); print(x.grad.tolist())"
    run = program(["sh", "-c", f'{sys.executable} -c "{code}"; true'])
    connection, body = hello(listener)
    assert body["process"]["main"] is False and body["process"]["pid"] != run.launched.pid
    connection.close()
    assert run.wait().status == 0
    assert run.stream("stdout") == b"[1.0, 1.0]\n"


def test_a_front_end_that_is_gone(program: Callable[..., Any], listener: socket.socket, config: Any) -> None:
    os.unlink(config.socket)
    run = program("import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'print(1)']).returncode)")
    assert run.wait().status == 0
    lines = run.stream("stdout").splitlines()
    assert lines[-1] == b"1" and len(lines) == 2 and b"running undebugged" in lines[0]


def test_import_folder_of_the_engine_is_no_import_path(program: Callable[..., Any], listener: socket.socket) -> None:
    """``engine/types.py`` must never be taken for the standard library's."""
    seen = f"[p for p in sys.path if p.startswith({str(ENGINE)!r})]"
    code = f"import sys, types; print({seen}, types.SimpleNamespace(a=1).a)"
    run = program(code)
    hello(listener)[0].close()
    assert run.wait().status == 0
    assert run.stream("stdout") == b"[] 1\n"


def test_same_output_as_plain_python(
    program: Callable[..., Any], listener: socket.socket, config: Any, tmp_path: Path
) -> None:
    code = "import logging; logging.warning('w'); print('out'); raise ValueError('x')"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    run = program(code, mode="split")
    hello(listener)[0].close()
    assert run.wait().status == plain.returncode == 1
    assert (run.stream("stdout"), run.stream("stderr")) == (plain.stdout, plain.stderr)
