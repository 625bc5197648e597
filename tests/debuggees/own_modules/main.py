"""A script whose folder has its own engine.py and tui/, as many training repositories do. 1 backward call."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import engine
import torch
import tui
import tui.app
from digest import Digest

assert engine.OWNER == "the script", engine.__file__
assert tui.app.OWNER == "the script", tui.__file__
torch.manual_seed(0)
weight = torch.ones(3, requires_grad=True)
engine.train(weight)
result = Digest()
result.add(weight.grad)
result.close()
