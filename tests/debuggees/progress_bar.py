"""A bar that redraws its line with carriage returns on stderr, as tqdm does, in the width of the terminal.

20 backward calls.
"""

import shutil
import sys

import torch
from digest import Digest

torch.manual_seed(0)
torch.set_num_threads(1)
weight = torch.ones(4, requires_grad=True)
columns = shutil.get_terminal_size().columns
for done in range(1, 21):
    weight.grad = None
    (weight * done).sin().sum().backward()
    filled = "#" * (done * (columns - 20) // 20)
    sys.stderr.write(f"\r{done * 5:3d}%|{filled:<{columns - 20}}| {done}/20")
    sys.stderr.flush()
sys.stderr.write("\n")
print("tty", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())
result = Digest()
result.add(weight.grad)
result.close()
