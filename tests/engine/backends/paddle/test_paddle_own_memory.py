"""Reading this process's memory where the process is short of descriptors, and from several threads."""

from __future__ import annotations

import ctypes
import os
import resource
import threading

import pytest

pytest.importorskip("paddle.autograd")

from adbg.engine.backends.paddle.native.memory import ReadMemory, away


def on_memory() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{number}"):
            found += os.readlink(f"/proc/self/fd/{number}").endswith("/mem")
    return found


def test_without_a_free_descriptor_nothing_is_read_and_nothing_raised():
    kept = ctypes.create_string_buffer(b"here")
    address = ctypes.addressof(kept)
    memory = ReadMemory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError):
            os.open("/proc/self/mem", os.O_RDONLY)
        assert memory.read(address, 4) == b"" and memory.word(address) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert memory.read(address, 4) == b"here"
    memory._opened[1].close()


def test_threads_that_open_it_at_once_leave_one_descriptor(monkeypatch):
    kept = ctypes.create_string_buffer(b"here")
    memory, before, met = ReadMemory(), on_memory(), threading.Barrier(4)
    plain = os.open

    def meeting(*args, **kwargs):
        if not kwargs:  # a file's removal, on Python 3.13
            met.wait(10)
        return plain(*args, **kwargs)

    monkeypatch.setattr(os, "open", meeting)
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(memory.read(ctypes.addressof(kept), 4))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == [b"here"] * 4 and on_memory() == before + 1
    memory._opened[1].close()


def test_a_call_that_goes_on_as_adbg_leaves_keeps_nothing_open(monkeypatch):
    kept = ctypes.create_string_buffer(b"here")
    memory, before = ReadMemory(), on_memory()
    plain = os.open

    def meanwhile(*args):
        away(True)
        memory.close()  # nothing is open yet
        return plain(*args)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", meanwhile)
            assert memory.read(ctypes.addressof(kept), 4) == b"here" and on_memory() == before
        assert memory.read(ctypes.addressof(kept), 4) == b"here" and on_memory() == before
    finally:
        away(False)
    assert memory.read(ctypes.addressof(kept), 4) == b"here" and on_memory() == before + 1
    memory.close()


def test_a_forked_child_reads_its_own():
    kept = ctypes.create_string_buffer(b"here")
    memory = ReadMemory()
    assert memory.read(ctypes.addressof(kept), 4) == b"here"
    before = on_memory()
    pid = os.fork()
    if pid == 0:
        kept.value = b"mine"
        os._exit(0 if memory.read(ctypes.addressof(kept), 4) == b"mine" and on_memory() == before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    memory._opened[1].close()
