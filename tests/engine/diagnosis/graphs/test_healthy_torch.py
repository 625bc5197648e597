"""A training on torch that has much of what the detectors of graphs look at, and no bug."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing import check_healthy, findings

PROGRAM = """
    import torch, torch.nn as nn, torch.nn.functional as F, numpy as np, copy
    from torch.utils.data import Dataset, DataLoader
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(0)
    class DS(Dataset):
        def __len__(self): return 32
        def __getitem__(self, i):
            g = np.random.default_rng(i); return g.normal(size=(6, 8)).astype(np.float32), i % 3
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Linear(8, 8); self.rnn = nn.GRU(8, 8, batch_first=True)
            self.att = nn.MultiheadAttention(8, 2, batch_first=True)
            self.sn = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
            self.norm = nn.LayerNorm(8); self.out = nn.Linear(8, 3); self.drop = nn.Dropout(0.1)
            self.tied = nn.Linear(8, 8, bias=False); self.tied.weight = self.emb.weight
            self.register_buffer("ema", torch.zeros(8))
        def block(self, h): return F.gelu(self.sn(h))
        def forward(self, x, state=None):
            h = self.emb(x); h, state = self.rnn(h, state)
            a, _ = self.att(h, h, h); h = self.norm(h + a)
            h = checkpoint(self.block, h, use_reentrant=False)
            with torch.no_grad(): self.ema.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)
            h = self.drop(self.tied(h)); return self.out(h.mean(1)), state
    if __name__ == "__main__":
        net = Net(); ema = copy.deepcopy(net)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, s / 3))
        state = None; total = 0.0; scaler = torch.amp.GradScaler("cpu")
        for epoch in range(2):
            net.train()
            for x, y in DataLoader(DS(), batch_size=8, num_workers=2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out, state = net(x, state)
                    loss = F.cross_entropy(out, y, label_smoothing=0.1)
                state = state.detach()
                xi = x.clone().requires_grad_(True)
                with torch.backends.mkldnn.flags(enabled=False):
                    s, _ = net(xi)
                (g,) = torch.autograd.grad(s.float().sum(), xi, create_graph=True)
                loss = loss + 0.01 * (g.norm(2, dim=(1, 2)) - 1).pow(2).mean()
                opt.zero_grad(); scaler.scale(loss).backward(); scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0); scaler.step(opt); scaler.update(); sched.step()
                total += loss.item()
                with torch.no_grad():
                    for a, b in zip(ema.parameters(), net.parameters()): a.lerp_(b, 0.1)
            net.eval()
            with torch.no_grad():
                acc = sum((net(x)[0].softmax(1).argmax(1) == y).sum().item() for x, y in DataLoader(DS(), batch_size=8))
            print(epoch, round(total, 4), acc)
"""


def test_nothing_is_found(tmp_path):
    assert not findings(check_healthy(tmp_path, PROGRAM))
