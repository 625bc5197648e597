"""Programs on Paddle whose parameters get no gradient, or zeros, and others that cut as they should."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run

DETACHED = """
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            h = paddle.tanh(self.encoder(x))
            codes = h.numpy() * 2  # CAUSE
            return self.head(paddle.to_tensor(codes))

    def main():
        paddle.seed(0)
        net = Net()
        optimizer = paddle.optimizer.Adam(parameters=net.parameters())
        for _ in range(4):
            loss = F.cross_entropy(net(paddle.randn([3, 4])), paddle.to_tensor([0, 1, 1]))
            optimizer.clear_grad()
            loss.backward()
            optimizer.step()

    main()
"""

STOPPED = """
    import paddle
    import paddle.nn as nn

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.features, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

        def forward(self, x):
            h = self.features(x)
            h.stop_gradient = True  # CAUSE
            return self.head(nn.functional.relu(h))

    paddle.seed(0)
    net = Net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(3):
        loss = net(paddle.randn([3, 4])).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

NO_GRAD = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    backbone, head = nn.Conv1D(2, 3, 3), nn.Linear(3, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*backbone.parameters(), *head.parameters()])

    def features(x):
        with paddle.no_grad():  # CAUSE
            h = backbone(x)
            return h.mean(-1)

    for _ in range(3):
        loss = head(features(paddle.randn([4, 2, 8]))).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
"""

UNUSED = """
    import paddle
    import paddle.nn as nn

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)  # CAUSE
            self.last = nn.Linear(4, 1)

        def forward(self, x):
            h = nn.functional.relu(self.first(x))
            h = nn.functional.relu(self.first(h))
            return self.last(h)

    paddle.seed(0)
    net = Net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(5):
        loss = net(paddle.randn([4, 4])).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
"""

ROUNDED = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    before, after = nn.Linear(4, 6), nn.Linear(6, 1)
    optimizer = paddle.optimizer.Adam(parameters=[*before.parameters(), *after.parameters()])
    for _ in range(4):
        levels = paddle.floor(before(paddle.randn([8, 4])) * 8)  # CAUSE
        loss = (after(levels / 8) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
"""

HEALTHY = """
    import paddle
    import paddle.nn as nn
    import paddle.nn.functional as F

    paddle.seed(0)

    class Codes(nn.Layer):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)
            self.book = self.create_parameter([8, 3])

        def forward(self, x):
            z = self.encoder(x)
            far = (z.unsqueeze(1) - self.book.unsqueeze(0)).square().sum(-1)
            code = paddle.gather(self.book, far.argmin(1))
            through = z + (code - z).detach()
            aside = F.mse_loss(code, z.detach()) + 0.1 * F.mse_loss(z, code.detach())
            return self.decoder(through), aside

    class Sign(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensor()
            return grad * (x.abs() < 1).astype("float32")

    def train():
        codes = Codes()
        optimizer = paddle.optimizer.Adam(parameters=codes.parameters())
        policy, target, binary = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 4)
        other = paddle.optimizer.SGD(0.1, parameters=[*policy.parameters(), *binary.parameters()])
        frozen = nn.Linear(4, 4)
        for each in frozen.parameters():
            each.stop_gradient = True
        for step in range(9):
            x = paddle.randn([6, 4])
            out, aside = codes(frozen(x))
            loss = F.mse_loss(out, x) + aside
            optimizer.clear_grad()
            loss.backward()
            optimizer.step()
            wanted = paddle.randint(0, 2, [6])
            with paddle.no_grad():
                best = target(x).max(1)
            scores = policy(Sign.apply(binary(x)))
            loss = F.smooth_l1_loss(scores.max(1), 0.9 * best + 1) + F.cross_entropy(scores, wanted)
            other.clear_grad()
            loss.backward()
            other.step()
            target.set_state_dict(policy.state_dict())
            right = (scores.argmax(1) == wanted).astype("float32").mean().item()
            print(step, right, loss.item(), float(scores.detach().numpy().sum().round(3)))

    def gan():
        maker, judge = nn.Linear(2, 3), nn.Linear(3, 1)
        for_maker = paddle.optimizer.Adam(parameters=maker.parameters())
        for_judge = paddle.optimizer.Adam(parameters=judge.parameters())
        for step in range(4):
            fake = maker(paddle.randn([5, 2]))
            loss = judge(fake.detach()).mean() - judge(paddle.randn([5, 3])).mean()
            for_judge.clear_grad()
            loss.backward()
            for_judge.step()
            for_maker.clear_grad()
            (-judge(fake).mean()).backward()
            for_maker.step()

    train()
    gan()
"""

PROGRAMS = {
    "detached": DETACHED, "stopped": STOPPED, "no grad": NO_GRAD, "unused": UNUSED, "rounded": ROUNDED,
    "healthy": HEALTHY,
}  # fmt: skip


def test_values_go_through_numpy(runs: dict[str, Run]) -> None:
    found = runs["detached"].check_first("no-gradient")
    assert found["severity"] == "error"
    assert "encoder.weight" in found["message"]
    assert "head.weight" not in found["message"]


def test_stop_gradient_is_set_in_between(runs: dict[str, Run]) -> None:
    runs["stopped"].check_first("no-gradient")


def test_a_block_switches_gradients_off(runs: dict[str, Run]) -> None:
    runs["no grad"].check_first("no-gradient")


def test_a_layer_that_no_operator_uses(runs: dict[str, Run]) -> None:
    assert runs["unused"].check_first("no-gradient")["severity"] == "note"


def test_rounding_gives_zeros(runs: dict[str, Run]) -> None:
    runs["rounded"].check_first("rounded-gradient")


def test_cuts_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("wrong-derivative")
    told = runs["healthy"].told
    assert "Sign passes a gradient" in told[0]["message"] and "straight-through" in told[0]["message"]
