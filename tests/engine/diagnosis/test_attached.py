"""Diagnosis of a program that runs already: on, a look, off, and away again. Nobody prepared it, and it ends with the
result of a run of as many steps to which nobody came."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from support.diagnosing import check_commands, line_of
from support.frameworks import on_frameworks
from support.late import Late, Session, leave
from support.patience import patience
from support.program import LIMIT, adbg, commands, digest_of

#: Three bugs in one loop. STEPS 0: until the file END is there.
TRAINING = """
    import hashlib, os, sys, time
    import FW
    FW.seed(0) if hasattr(FW, "seed") and "FW" == "paddle" else FW.manual_seed(0)
    NN = FW.nn
    net = NN.Sequential(NN.Linear(4, 8), NN.Tanh(), NN.Linear(8, 1))
    gain = NN.Linear(1, 1)
    OPTIMIZER
    END, STEPS = sys.argv[1], int(sys.argv[2])
    history, step = [], 0
    while step < STEPS if STEPS else not os.path.exists(END):
        x = FW.randn([16, 4])
        loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
        root = FW.sqrt(gain.weight * 0).sum()  # ROOT
        gain.weight.grad = None
        (loss + root).backward()
        opt.step()  # STEP
        history.append(loss)  # KEPT
        step += 1
        if step == 3:
            print("ready", flush=True)
        if not STEPS:
            time.sleep(0.01)
    found = hashlib.sha256()
    for each in [*net.parameters(), FW.randn([4])]:
        found.update(each.detach().numpy().tobytes())
    print("STEPS", step)
    print("DIGEST", found.hexdigest())
"""
OPTIMIZERS = {
    "torch": "torch.set_num_threads(1); opt = torch.optim.SGD(net.parameters(), lr=1e-4)",
    "paddle": "opt = paddle.optimizer.SGD(1e-4, parameters=net.parameters())",
}
KINDS = {"zero-grad": "# STEP", "graph-kept": "# KEPT", "nonfinite": "# ROOT"}


@on_frameworks()
def test_found_in_a_program_that_runs(framework: str, tmp_path: Path) -> None:
    script, end = tmp_path / "train.py", tmp_path / "end"
    text = textwrap.dedent(TRAINING).lstrip().replace("FW", framework).replace("OPTIMIZER", OPTIMIZERS[framework])
    script.write_text(text)
    command = [sys.executable, str(script), str(end)]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            look = commands("diagnose start", "tbreak backward ignore 30", "c", "diagnose", "diagnose stop", "detach")
            outcome = adbg("attach", "--batch", "--json", *look, str(process.pid))
            assert process.poll() is None, str(outcome)
            end.touch()
            output, errors = process.communicate(timeout=patience(LIMIT))
        finally:
            process.kill()
    assert outcome.status == 0 and not outcome.of("error"), str(outcome)
    (listed,) = outcome.of("result", command="diagnose")
    told = {each["kind"]: each for each in listed["value"]["findings"] if each["severity"] != "note"}
    assert set(told) == set(KINDS), f"{sorted(told)}\n{outcome}"
    for kind, mark in KINDS.items():
        assert told[kind]["cause"]["line"] == line_of(text, mark), f"{kind}\n{outcome}"
        check_commands(told[kind])
    (off,) = outcome.of("result", command="diagnose stop")
    assert off["value"]["on"] is False, str(outcome)
    assert process.returncode == 0 and "adbg" not in errors and "Traceback" not in errors, errors
    steps = output.partition("STEPS ")[2].split()[0]
    again = subprocess.run([*command, steps], capture_output=True, text=True, timeout=patience(LIMIT))
    assert digest_of(again.stdout) == digest_of(output), "another result under diagnosis"


@on_frameworks()
def test_nothing_of_it_stays_in_the_process(framework: str) -> None:
    """A census of the process, taken inside it: before, and when the one that came has left, with diagnosis on (the
    first time) or switched off before. What an import leaves, and nothing else."""
    from promises.test_attach_leaves_no_trace import gone

    with Late(framework) as alone:
        alone.ask("train", 5 + 2 * 12)
        expected = alone.ask("digest")
    with Late(framework) as program:
        program.ask("train", 5)
        program.ask("census")  # imports of the census' own
        program.ask("census")
        for switched_off in (False, True):
            with Session() as session:
                peer = session.enter(program)
                peer.begin()
                assert peer.request("adbg/diagnose", action="start")["on"] is True
                program.ask("train", 10)
                body = peer.request("adbg/diagnose", action="state")
                assert body["on"] is True and body["iterations"] >= 8, body
                if switched_off:
                    peer.request("adbg/diagnose", action="stop")
                program.ask("train", 2)
                assert peer.request("adbg/diagnose", action="state")["on"] is not switched_off
                leave(peer)
                assert gone(program) == [], f"switched off: {switched_off}"
        assert program.ask("digest") == expected
        assert program.end() == 0
