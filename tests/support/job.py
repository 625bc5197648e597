"""A job of ranks over gloo, each a process with RANK in its environment, and a launcher that ends with them.

``torchrun`` ends a job of which one rank dies; this one lets the others live, as mpirun and many schedulers can.
"""

LAUNCHER = '''
import os, subprocess, sys, socket

count, command = int(sys.argv[1]), sys.argv[2:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
names = os.environ.get("RANK_NAMES", "RANK WORLD_SIZE").split()
ranks = []
for rank in range(count):
    told = {names[0]: str(rank), names[1]: str(count), "LOCAL_RANK": str(rank)}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks.append(subprocess.Popen([sys.executable, *command], env={**os.environ, **told, **meet}))
codes = [rank.wait() for rank in ranks]
print("LAUNCHER saw", codes, flush=True)
sys.exit(5)
'''
