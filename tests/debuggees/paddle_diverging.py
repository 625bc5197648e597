"""Two ranks of Paddle (gloo), started with PADDLE_TRAINER_ID in their environment as its launcher does, that train the
same small model wrapped in DataParallel; before iteration 3 rank 1 adds 0.5 to one weight.

``paddle_diverging.py FOLDER PORT``: before its third backward each rank writes hash-RANK.json as ``diverging.py`` does.
"""

import hashlib
import json
import os
import subprocess
import sys

if "PADDLE_TRAINER_ID" not in os.environ:  # the launcher, which needs no framework
    port = int(sys.argv[2])
    places = [f"127.0.0.1:{port + 1}", f"127.0.0.1:{port + 2}"]
    common = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ENDPOINTS": ",".join(places), "PADDLE_DISTRI_BACKEND": "gloo"}
    common["PADDLE_MASTER"] = f"127.0.0.1:{port}"
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, **common, "PADDLE_TRAINER_ID": str(n), "PADDLE_CURRENT_ENDPOINT": places[n]},
        )
        for n in (0, 1)
    ]
    codes = [rank.wait() for rank in ranks]
    print("trained")
    sys.exit(max(codes))

import numpy
import paddle
import paddle.distributed

rank = int(os.environ["PADDLE_TRAINER_ID"])
paddle.seed(7)
paddle.distributed.init_parallel_env()
net = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Linear(8, 1))
model = paddle.DataParallel(net)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
batches = numpy.random.default_rng(rank)
for iteration in range(1, 4):
    if iteration == 3 and rank == 1:
        changed = net[2].weight.numpy()
        changed[3, 0] += 0.5
        net[2].weight.set_value(changed)
    loss = (model(paddle.to_tensor(batches.standard_normal((6, 4)).astype("float32"))) ** 2).mean()
    if iteration == 3:
        told = {name: hashlib.sha256(p.numpy().tobytes()).hexdigest() for name, p in model.named_parameters()}
        with open(os.path.join(sys.argv[1], f"hash-{rank}.json"), "w") as file:
            json.dump(told, file)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
