"""Jobs of ranks over gloo: by a framework's own launcher, and by one that lets the others live when a rank dies, as
mpirun and many schedulers can."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

#: LAUNCHER COUNT FOLDER SCRIPT: as many ranks, and one more when the file FOLDER/late appears. Its own status is 5.
LAUNCHER = """
import os, pathlib, subprocess, sys, time

count, folder, script = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]

def start(rank):
    told = {"RANK": str(rank), "WORLD_SIZE": str(count)}
    return subprocess.Popen([sys.executable, script, str(folder)], env={**os.environ, **told})

ranks = [start(rank) for rank in range(count)]
while any(rank.poll() is None for rank in ranks):
    if len(ranks) == count and (folder / "late").exists():
        ranks.append(start(count))
    time.sleep(0.05)
print("LAUNCHER saw", [rank.wait() for rank in ranks], flush=True)
sys.exit(5)
"""

#: PORT SCRIPT: two ranks of Paddle's over gloo.
PADDLE_LAUNCHER = """
import os, subprocess, sys
port, script = int(sys.argv[1]), sys.argv[2]
places = [f"127.0.0.1:{port + 1 + n}" for n in range(2)]
told = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ENDPOINTS": ",".join(places), "PADDLE_DISTRI_BACKEND": "gloo"}
told["PADDLE_MASTER"] = f"127.0.0.1:{port}"
ranks = [subprocess.Popen([sys.executable, script], env={**os.environ, **told, "PADDLE_TRAINER_ID": str(n),
         "PADDLE_CURRENT_ENDPOINT": places[n]}) for n in range(2)]
first = [rank.wait() for rank in ranks]
sys.exit(max(abs(each) for each in first))
"""


def paddle_ranks(folder: Path, script: Path) -> list[str]:
    """The command that starts two ranks of a script; each job has a port of its own."""
    launcher = folder / "launch.py"
    launcher.write_text(PADDLE_LAUNCHER)
    return [sys.executable, str(launcher), str(free_port()), str(script)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def torchrun(count: int, script: Path, *words: object) -> list[str]:
    """The command; each job has a port of its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    return [*launcher, "--master-port", str(free_port()), str(script), *map(str, words)]


def told(output: str, word: str) -> dict[int, str]:
    """What each rank printed behind ``word``: "END 1 0.5" -> {1: "0.5"}."""
    return {int(rank): text.strip() for rank, text in re.findall(rf"^{word} (\d+) (.*)$", output, re.MULTILINE)}
