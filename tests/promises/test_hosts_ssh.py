"""One session over two hosts, whose socket ssh forwards: two network namespaces joined by a virtual cable, each with a
host name of its own, and a real sshd on one of them. The far side cannot see the near side's files, so that nothing but
ssh leads there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.frameworks import only_here
from support.patience import patience
from support.program import Outcome, commands, debuggee, wait_until

TOOLS = ("ip", "unshare", "mount", "hostname", "sshd", "ssh", "ssh-keygen")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
MISSING = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]

pytestmark = [
    *only_here("torch", "two ranks over gloo; ssh carries the same bytes for every framework"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}"),
]

SSHD = """
ListenAddress 10.203.7.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AllowStreamLocalForwarding yes
"""


@dataclass
class Hosts:
    """Two of them; ``near`` and ``far`` are the words before a command that runs there."""

    folder: Path
    near: list[str]
    far: list[str]
    started: list[subprocess.Popen[str]]

    def start(self, words: list[str], log: str = "", **env: str) -> subprocess.Popen[str]:
        """``log``: a file for what it writes; a pipe that a daemon's children keep open would never end."""
        output = (self.folder / log).open("w") if log else subprocess.PIPE
        process = subprocess.Popen(
            words,
            env={**os.environ, "PATH": PATH, **env},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        self.started.append(process)
        return process


def _run(*words: str) -> None:
    done = subprocess.run(words, env={**os.environ, "PATH": PATH}, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"namespaces cannot be made here: {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    names = [f"adbg-{os.getpid()}-{side}" for side in ("near", "far")]
    cable = [f"adbg{os.getpid() % 100000}{side}" for side in ("a", "b")]
    hidden = tmp_path / "near"
    hidden.mkdir(mode=0o700)
    started: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", cable[0], "netns", names[0], "type", "veth", "peer", cable[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, cable), 1):
            inside = ("ip", "-n", name)
            _run(*inside, "address", "add", f"10.203.7.{number}/24", "dev", end)
            for device in ("lo", end):
                _run(*inside, "link", "set", device, "up")
        near = ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", 'hostname near; exec "$@"', "sh"]
        hide = f'mount -t tmpfs none {hidden} && hostname far && exec "$@"'
        far = ["ip", "netns", "exec", names[1], "unshare", "--uts", "--mount", "sh", "-c", hide, "sh"]
        made = Hosts(
            tmp_path,
            [*near, "env", f"GLOO_SOCKET_IFNAME={cable[0]}"],
            [*far, "env", f"GLOO_SOCKET_IFNAME={cable[1]}"],
            started,
        )
        yield made
    finally:
        for process in reversed(started):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], env={**os.environ, "PATH": PATH}, capture_output=True)


def forward(hosts: Hosts, session: Path, socket: Path) -> subprocess.Popen[str]:
    """An sshd on the near host, and ``ssh -N -L`` on the far one; returns the latter once the socket is there."""
    folder = hosts.folder
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)],
            check=True,
            env={**os.environ, "PATH": PATH},
        )
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = shutil.which("sshd", path=PATH)
    assert sshd is not None
    server = hosts.start([*hosts.near, sshd, "-D", "-e", "-f", str(folder / "sshd_config")], "sshd.log")
    options = ["-F", "none", "-i", str(folder / "user_key"), "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]
    options += ["-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "ConnectionAttempts=20"]
    client = hosts.start(
        [
            *hosts.far,
            "ssh",
            *options,
            "-N",
            "-L",
            f"{socket}:{session}/client.sock",
            "root@10.203.7.1",
        ],
        "ssh.log",
    )
    wait_until(lambda: socket.exists() or client.poll() is not None, "the forwarded socket")
    assert client.poll() is None and server.poll() is None, [
        (folder / name).read_text() for name in ("sshd.log", "ssh.log")
    ]
    return client


def test_a_job_on_two_hosts(hosts: Hosts) -> None:
    session, far = hosts.folder / "near" / "session", hosts.folder / "far"
    far.mkdir(mode=0o700)
    script = str(debuggee("two_hosts"))
    options = ["--batch", "--json", "--session", str(session), "-b", "backward-end backward 2"]
    asked = commands("c", "info processes", "rank diff params", "delete 1", "continue all")
    adbg = [sys.executable, "-m", "adbg"]
    meet = {"MEET": "10.203.7.1:29477", "WORLD_SIZE": "2"}
    near = hosts.start([*hosts.near, *adbg, "run", *options, *asked, "--", sys.executable, script], RANK="0", **meet)
    wait_until(lambda: (session / "session.json").exists() or near.poll() is not None, "the session")
    copied = far / "session.json"
    copied.touch(mode=0o600)
    copied.write_text((session / "session.json").read_text())
    forward(hosts, session, far / "job.sock")
    join = [*adbg, "join", str(copied), "--run-dir", str(far / "run"), "--via", str(far / "job.sock"), "--"]
    joined = hosts.start([*hosts.far, *join, sys.executable, script], RANK="1", **meet)
    output, errors = near.communicate(timeout=patience(90))
    outcome = Outcome(["adbg", "run"], near.returncode, output, errors, 0.0)
    far_output, far_errors = joined.communicate(timeout=patience(30))
    assert outcome.status == 0 and joined.returncode == 0, f"{outcome}\n{far_output}\n{far_errors}"
    assert not outcome.of("error"), str(outcome)
    (table,) = outcome.of("result", command="info processes")
    assert {row["rank"]: row["host"] for row in table["value"]} == {0: "near", 1: "far"}
    (found,) = outcome.of("result", command="rank diff params")
    assert found["value"]["ranks"] == [0, 1] and found["value"]["compared"] == 2 and found["value"]["differ"] == 0
    (one,) = [line for line in outcome.program_output.splitlines() if line.startswith("rank 0 on near: ")]
    (other,) = [line for line in far_output.splitlines() if line.startswith("rank 1 on far: ")]
    assert one.rpartition(" ")[2] == other.rpartition(" ")[2], "as DistributedDataParallel promises, whoever looks on"
    assert f"record into {far / 'run'} on far" in far_errors
    assert any(path.name.startswith("events-r1") for path in (far / "run").iterdir()), "each host records its own"
