"""Labels of a language model that are its input, place by place. Witnesses, by the framework's own numbers: whether the
labels of the last batch are what was embedded, and whether another token at a place changes what is said there."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.utils.data import DataLoader, Dataset
import torch.nn.functional as F
fw.manual_seed(0)
Module = nn.Module
def ints(kinds, *shape):
    return fw.randint(0, kinds, shape)
def adam(net):
    optimizer = fw.optim.Adam(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
def lstm(width):
    return nn.LSTM(width, width, batch_first=True)
def gru(width):
    return nn.GRU(width, width, batch_first=True)
def turned(value):
    return value.transpose(1, 2)
def real(value):
    return value.float()
def later(size):
    return fw.triu(fw.full((size, size), -1e9), 1)
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.io import DataLoader, Dataset
import paddle.nn.functional as F
fw.seed(0)
Module = nn.Layer
def ints(kinds, *shape):
    return fw.randint(0, kinds, shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def lstm(width):
    return nn.LSTM(width, width)
def gru(width):
    return nn.GRU(width, width)
def turned(value):
    return value.transpose([0, 2, 1])
def real(value):
    return value.astype('float32')
def later(size):
    return fw.triu(fw.full((size, size), -1e9), 1)
""",
}
MODELS = """
class Recurrent(Module):
    def __init__(self, kind=lstm):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(11, 12), kind(12), nn.Linear(12, 11)

    def forward(self, x):
        return self.head(self.body(self.embed(x))[0])

class Causal(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.at = nn.Embedding(11, 12), nn.Embedding(8, 12)
        self.q, self.k, self.v, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 11)

    def places(self, x):
        return self.embed(x) + self.at(fw.arange(x.shape[1]))

    def forward(self, x):
        h = self.places(x)
        seen = F.softmax(self.q(h) @ turned(self.k(h)) / 12 ** 0.5 + later(x.shape[1]), -1)
        return self.head(h + seen @ self.v(h))

def sees_itself(net, x, *further):
    other = x.clone()
    other[:, 5] = (other[:, 5] + 1) % 11
    with fw.no_grad():
        far = net(other, *further)[:, 5] - net(x, *further)[:, 5]
    return bool(far.abs().max() > 1e-5)

text = ints(11, 400)
"""
LOSS = "loss = F.cross_entropy(logits.reshape([-1, 11]), y.reshape([-1]))"
FIT = """
for at in range(33):
    x, y = get_batch()
    logits = net(x)
    loss = F.cross_entropy(logits.reshape([-1, 11]), y.reshape([-1]))
    clear()
    loss.backward()
    optimizer.step()
print("the same:", bool((x == y).all()))
print("sees itself:", sees_itself(net, x))
"""
HELD = FIT.replace(LOSS, f"{LOSS}  # CAUSE")  # where the labels are no tensor of their own
CUT = """
def get_batch():
    starts = ints(390, 4).tolist()
    x = fw.stack([text[i:i + 8] for i in starts])
    y = fw.stack([text[i:i + 8] for i in starts])  # CAUSE
    return x, y
"""
ITSELF = """
def get_batch():
    x = fw.stack([text[i:i + 8] for i in ints(390, 4).tolist()])
    return x, x
"""
DATASET = """
class Text(Dataset):
    def __init__(self, text, size):
        super().__init__()
        self.text, self.size = text, size

    def __len__(self):
        return len(self.text) - self.size - 1

    def __getitem__(self, at):
        x = self.text[at:at + self.size]
        y = self.text[at:at + self.size]  # CAUSE
        return x, y

loader = DataLoader(Text(text[:140], 8), batch_size=4, shuffle=True)
"""
LOADED = FIT.replace("for at in range(33):\n    x, y = get_batch()", "for x, y in loader:")
# Paddle's loader puts samples together as NumPy arrays: the line of the loss is what is left there.
UNMARKED = DATASET.replace("  # CAUSE", "")


def made(net: str) -> str:
    return f"net = {net}\noptimizer, clear = adam(net)\n"


def changed(text: str, *parts: tuple[str, str]) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


SHIFTED = changed(CUT, ("y = fw.stack([text[i:i + 8] for i in starts])  # CAUSE",
                        "y = fw.stack([text[i + 1:i + 9] for i in starts])"))  # fmt: skip
LSTM = made("Recurrent(lstm)")
PADDED = changed(ITSELF, ("    return x, x", """    x[:, 6:] = 0
    y = fw.where(x == 0, fw.full_like(x, -100), x)  # CAUSE
    return x, y"""))  # fmt: skip
BUGGY = {
    "attention": CUT + made("Causal()") + FIT,
    "lstm": CUT + LSTM + FIT,
    "gru": CUT + made("Recurrent(gru)") + FIT,
    "in a dataset": {"torch": DATASET + LSTM + LOADED,
                     "paddle": UNMARKED + LSTM + changed(LOADED, (LOSS, f"{LOSS}  # CAUSE"))},
    "in a dataset, on one line": {
        "torch": changed(DATASET, ("        y = self.text[at:at + self.size]  # CAUSE\n", ""),
                         ("x = self.text[at:at + self.size]\n        return x, y",
                          "return self.text[at:at + self.size], self.text[at:at + self.size]  # CAUSE"))
        + LSTM + LOADED,
        "paddle": UNMARKED + LSTM + changed(LOADED, (LOSS, f"{LOSS}  # CAUSE")),
    },
    "of a chunk": changed(CUT, ("x = fw.stack([text[i:i + 8] for i in starts])\n", "rows = fw.stack([text[i:i + 9] "
                          "for i in starts])\n    x = rows[:, :-1]\n"),
                          ("y = fw.stack([text[i:i + 8] for i in starts])", "y = rows[:, :-1]")) + LSTM + FIT,
    "as they are returned": changed(CUT, ("  # CAUSE\n    return x, y", "\n    return x[:, :-1], y[:, :-1]  # CAUSE"))
    + LSTM + FIT,
    "against itself": ITSELF + LSTM + changed(HELD, ("y.reshape", "x.reshape")),
    "one tensor for both": ITSELF + LSTM + HELD,
    "a copy": changed(ITSELF, ("return x, x", "y = x.clone()  # CAUSE\n    return x, y")) + LSTM + FIT,
    "of numpy": {
        "torch": "data = text.numpy()\n" + changed(CUT, ("text[i:i + 8]", "fw.from_numpy(data[i:i + 8])")) + LSTM + FIT,
        "paddle": "data = text.numpy()\n" + changed(CUT, ("text[i:i + 8]", "fw.to_tensor(data[i:i + 8])")) + LSTM + FIT,
    },
    "a likelihood": CUT + LSTM + changed(FIT, (LOSS, "loss = F.nll_loss(F.log_softmax(logits, -1).reshape([-1, 11]), "
                                               "y.reshape([-1]))")),
    "a loss that is a module": CUT + LSTM + changed(FIT, ("F.cross_entropy(", "nn.CrossEntropyLoss()(")),
    "some of no weight": CUT + LSTM + changed(FIT, ("y.reshape([-1]))", "y.reshape([-1]), ignore_index=0)")),
    "dropout in between": changed(CUT, ("\ndef", """
class Dropped(Recurrent):
    def forward(self, x):
        return self.head(self.body(F.dropout(self.embed(x), 0.1, training=self.training))[0])
def""")) + made("Dropped()") + changed(FIT, ('print("sees', 'net.eval()\nprint("sees')),
    "in the model": CUT + """
class Whole(Causal):
    def forward(self, x, y=None):
        logits = super().forward(x)
        return logits if y is None else F.cross_entropy(logits.reshape([-1, 11]), y.reshape([-1]))
""" + made("Whole()") + changed(FIT, ("    logits = net(x)\n", ""), (LOSS, "loss = net(x, y)")),
    "the places turned": CUT + """
class Turned(Recurrent):
    def forward(self, x):
        return turned(self.head(self.body(self.embed(x))[0]))
""" + made("Turned()") + changed(FIT, ("logits.reshape", "turned(logits).reshape"),
                                 ("sees_itself(net, x)", "sees_itself(lambda x: turned(net(x)), x)")),
    "padding of no weight": PADDED + LSTM + FIT,
    "one row": changed(CUT, ("ints(390, 4)", "ints(390, 1)")) + LSTM + FIT,
    "places of two axes first": CUT + """
class Other(Causal):
    def places(self, x):
        return self.at(fw.arange(x.shape[1]).unsqueeze(0).expand([x.shape[0], -1])) + self.embed(x)
""" + made("Other()") + FIT,
    "a loss of each place": CUT + LSTM + changed(FIT, (LOSS, "loss = sum(F.cross_entropy(logits[:, t], y[:, t]) "
                                                       "for t in range(8)) / 8")),
    "rows cut at once": "X = text[:320].reshape([40, 8])\nY = text[:320].reshape([40, 8])  # CAUSE\n"
    "def get_batch():\n    at = ints(40, 4)\n    return X[at], Y[at]\n" + LSTM + FIT,
}  # fmt: skip
ONE_VECTOR = """
class OneVector(Module):
    def __init__(self, width, forced=False):
        super().__init__()
        self.embed, self.encode, self.decode = nn.Embedding(11, width), gru(width), gru(width)
        self.head, self.forced, self.width = nn.Linear(width, 11), forced, width

    def code(self, x):
        return self.encode(self.embed(x))[1]

    def forward(self, x):
        state = self.code(x)
        if self.forced:
            begun = fw.concat([fw.zeros_like(x[:, :1]), x[:, :-1]], 1)
            return self.head(self.decode(self.embed(begun), state)[0])
        spread = state.reshape([-1, 1, self.width]).expand([-1, x.shape[1], -1])
        return self.head(self.decode(spread)[0])
"""
LAST = changed(ONE_VECTOR, ("self.encode(self.embed(x))[1]", "self.encode(self.embed(x))[0][:, -1]"))
MEAN = changed(ONE_VECTOR, ("self.encode(self.embed(x))[1]", "self.encode(self.embed(x))[0].mean(1)"))
MASKED = """
class Masked(Recurrent):
    def __init__(self):
        super().__init__(gru)
        self.hidden = nn.Linear(12, 12)

    def forward(self, x, hidden):
        h = fw.where(hidden.unsqueeze(-1), self.hidden(fw.ones([12])), self.embed(x))
        return self.head(self.body(h)[0])
"""
# What is said of hidden places alone is trained; "sees itself" is asked of such a place.
OF_HIDDEN = changed(
    FIT, ("logits = net(x)", "hidden = fw.rand([4, 8]) < 0.3\n    logits = net(x, hidden)"),
    ("y.reshape([-1]))", "y.reshape([-1]), reduction='none')\n    loss = (loss * real(hidden.reshape([-1]))).mean()"),
    ("sees_itself(net, x)", "sees_itself(net, x, fw.ones_like(hidden))"),
)  # fmt: skip
PICKED = changed(OF_HIDDEN, ("(loss * real(hidden.reshape([-1]))).mean()", "loss[hidden.reshape([-1])].mean()"))
SHIFTING = """
class Shifting(Recurrent):
    def forward(self, x):
        h = self.embed(x)
        HOW
        return self.head(self.body(h)[0])
""" + ITSELF + made("Shifting()") + FIT  # fmt: skip
COPY = """
class Copy(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out, self.encode, self.decode = nn.Embedding(11, 12), nn.Embedding(12, 12), gru(12), gru(12)
        self.head = nn.Linear(24, 11)

    def forward(self, x):
        memory, state = self.encode(self.embed(x))
        begun = fw.concat([fw.full_like(x[:, :1], 11), x[:, :-1]], 1)
        query = self.decode(self.out(begun), state)[0]
        return self.head(fw.concat(BOTH, -1))
""" + ITSELF + made("Copy()") + FIT  # fmt: skip
# The labels are other tokens.
HEALTHY = {
    "attention": SHIFTED + made("Causal()") + FIT,
    "lstm": SHIFTED + LSTM + FIT,
    "in a dataset": changed(UNMARKED, ("y = self.text[at:at + self.size]", "y = self.text[at + 1:at + self.size + 1]"))
    + LSTM + LOADED,
    "words hidden": changed(ITSELF, ("return x, x", "return fw.where(fw.rand([4, 8]) < 0.3, fw.zeros_like(x), x), x"))
    + made("Recurrent(gru)") + FIT,
    "a tagger": changed(ITSELF, ("return x, x", "return x, tags[x]")).replace("\ndef", "tags = (fw.arange(11) + 4) % "
                        "11\ndef") + LSTM + FIT,
    "a class of each row": """
class Classifier(Recurrent):
    def forward(self, x):
        return self.head(self.body(self.embed(x))[0][:, -1])
""" + changed(ITSELF, ("return x, x", "return x, x[:, :1]")) + made("Classifier()")
    + changed(FIT, ("sees_itself(net, x)", "True")),
}  # fmt: skip
# They are the same tokens, and no place is given the answer: by way of one vector, of shifts that the model or the loss
# makes, of hidden words.
MEANT = {
    "shifted at the loss": ITSELF + LSTM + changed(FIT, ("logits.reshape", "logits[:, :-1].reshape"),
                                                   ("y.reshape", "x[:, 1:].reshape")),
    "shifted at the model": ITSELF + LSTM + changed(FIT, ("= net(x)", "= net(x[:, :-1])"),
                                                    ("y.reshape", "x[:, 1:].reshape")),
    "one vector": ONE_VECTOR + ITSELF + made("OneVector(12)") + FIT,
    "one vector as long as the text": ONE_VECTOR + ITSELF + made("OneVector(8)") + FIT,
    "one vector, forced": ONE_VECTOR + ITSELF + made("OneVector(12, True)") + FIT,
    "the last place": LAST + ITSELF + made("OneVector(12)") + FIT,
    "the mean of the places": MEAN + ITSELF + made("OneVector(12)") + FIT,
    "a noisy vector": changed(ONE_VECTOR, ("x))[1]", "x))[1] + 0.1 * fw.randn([1, x.shape[0], self.width])")) + ITSELF
    + made("OneVector(12)") + FIT,
    "all places packed": """
class Packed(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.down, self.up, self.head = nn.Embedding(11, 12), nn.Linear(96, 8), nn.Linear(8, 96), nn.Linear(
            12, 11)

    def forward(self, x):
        return self.head(self.up(self.down(self.embed(x).reshape([-1, 96]))).reshape([-1, 8, 12]))
""" + ITSELF + made("Packed()") + FIT,
    "a copy, by attention": changed(COPY, ("BOTH", "[query, F.softmax(query @ turned(memory), -1) @ memory]")),
    "a copy, attention first": changed(COPY, ("BOTH", "[F.softmax(query @ turned(memory), -1) @ memory, query]")),
    "shifted by a join": changed(SHIFTING, ("HOW", "h = fw.concat([fw.zeros_like(h[:, :1]), h[:, :-1]], 1)")),
    "hidden, labels picked": MASKED + ITSELF + made("Masked()") + changed(
        OF_HIDDEN, ("logits.reshape([-1, 11]), y.reshape([-1]), reduction='none')", "logits[hidden], y[hidden])"),
        ("    loss = (loss * real(hidden.reshape([-1]))).mean()\n", "")),
    "looked at without gradients": changed(SHIFTED + LSTM + FIT, ("return x, y", "return x, y  # shifted"),
        ('print("the same:", bool((x == y).all()))', "net.eval()\nwith fw.no_grad():\n    "
         'F.cross_entropy(net(x).reshape([-1, 11]), x.reshape([-1]))\nprint("the same: True")')),
    "the last place, as long as the text": LAST + ITSELF + made("OneVector(8)") + FIT,
    "the mean, as long as the text": MEAN + ITSELF + made("OneVector(8)") + FIT,
    "shifted by a roll": changed(SHIFTING, ("HOW", "h = fw.roll(h, 1, 1) * real(fw.arange(8) > 0).reshape([1, 8, 1])")),
    "hidden, weighed": MASKED + ITSELF + made("Masked()") + OF_HIDDEN,
    "hidden, losses picked": MASKED + ITSELF + made("Masked()") + PICKED,
    "a strict mask": """
class Strict(Causal):
    def forward(self, x):
        h, at = self.embed(x), self.at(fw.arange(8))
        mask = fw.triu(fw.full([8, 8], -1e9), 0) * real(fw.arange(8) > 0).reshape([8, 1])
        scores = F.softmax(self.q(at) @ turned(self.k(h)) + mask, -1)
        return self.head(scores @ self.v(h))
""" + ITSELF + made("Strict()") + FIT,
    "a copy, memory first": changed(COPY, ("BOTH", "[turned(F.softmax(memory @ turned(query), 1)) @ memory, query]")),
}  # fmt: skip
# The labels are two places ahead: shifted where the data is made, and again at the loss.
ONCE = changed(UNMARKED, ("y = self.text[at:at + self.size]", "y = self.text[at + 1:at + self.size + 1]"))
CHUNK = changed(
    CUT,
    (
        "x = fw.stack([text[i:i + 8] for i in starts])\n",
        "rows = fw.stack([text[i:i + 10] for i in starts])\n    x = rows[:, :8]\n",
    ),
    ("y = fw.stack([text[i:i + 8] for i in starts])", "y = BY"),
)
LATER = changed(FIT, ("logits.reshape", "logits[:, :-1].reshape"), ("y.reshape", "y[:, 1:].reshape"))
AHEAD = """
def ahead(x, y):
    return [by for by in (1, 2) if bool((y[:, :x.shape[1] - by] == x[:, by:]).all())]
print("ahead:", ahead(AT))
"""


def two_ahead(fit: str, at: str = "x[:, :-1], y[:, 1:]") -> str:
    return fit[: fit.index('print("the same')] + AHEAD.replace("AT", at)


LATER_LOADED = changed(LATER, ("for at in range(33):\n    x, y = get_batch()", "for x, y in loader:"))
AT_THE_LOSS = ("y[:, 1:].reshape([-1]))", "y[:, 1:].reshape([-1]))  # CAUSE")
VIEW = {"torch": "view(-1, 11)", "paddle": "view([-1, 11])"}
CHUNKED = changed(CHUNK, ("i + 10", "i + 9"), ("[:, :8]", "[:, :-1]"), ("BY", "rows[:, 1:]"), ("  # CAUSE", ""))
IN_CHUNKS = changed(
    UNMARKED,
    ("x = self.text[at:at + self.size]", "chunk = self.text[at:at + self.size + 1]"),
    ("y = self.text[at:at + self.size]", "x, y = chunk[:-1], chunk[1:]"),
)
TWICE = {
    "in a dataset and at the loss": IN_CHUNKS + LSTM + two_ahead(changed(LATER_LOADED, AT_THE_LOSS)),
    "in a batch and at the loss": CHUNKED + LSTM + two_ahead(changed(LATER, AT_THE_LOSS)),
    "in a dataset alone": changed(ONCE, ("y = self.text[at + 1:at + self.size + 1]", "chunk = self.text[at:at + "
                                  "self.size + 2]\n        y = chunk[2:]"), ("return len(self.text) - self.size - 1",
                                                                             "return len(self.text) - self.size - 2"))
    + LSTM + two_ahead(LOADED, "x, y"),
    "of a chunk": changed(CHUNK, ("BY", "rows[:, 2:]")) + LSTM + two_ahead(FIT, "x, y"),
    "as they are returned": changed(CHUNK, ("BY", "rows[:, 1:9]"), ("  # CAUSE\n    return x, y", "\n    return x[:, "
                                    ":-1], y[:, 1:]  # CAUSE")) + LSTM + two_ahead(FIT, "x, y"),
    "as the text is cut, and at the loss": SHIFTED + LSTM + two_ahead(changed(LATER, AT_THE_LOSS)),
    "by attention": CHUNKED + made("Causal()") + two_ahead(changed(LATER, AT_THE_LOSS)),
    "by a roll, and at the loss": changed(ITSELF, ("return x, x", "return x, fw.roll(x, -1, 1)")) + LSTM
    + two_ahead(changed(LATER, AT_THE_LOSS)),
    "flattened": CHUNKED + LSTM + two_ahead(changed(LATER, ("logits[:, :-1].reshape([-1, 11])",
        "logits[:, :-1].flatten(0, 1)"), ("y[:, 1:].reshape([-1])", "y[:, 1:].flatten()"), (".flatten())", ".flatten())"
                                                                                            "  # CAUSE"))),
    "the places turned": {name: CHUNKED + LSTM + two_ahead(changed(
        LATER, ("logits[:, :-1].reshape([-1, 11])", said), ("y[:, 1:].reshape([-1]))", "y[:, 1:])  # CAUSE")))
        for name, said in {"torch": "turned(logits[:, :-1])", "paddle": "logits[:, :-1]"}.items()},
    "labels on a line of their own": CHUNKED + LSTM + two_ahead(changed(LATER, (
        "    loss = F", "    said = logits[:, :-1]\n    labels = y[:, 1:]  # CAUSE\n    loss = F"),
        ("logits[:, :-1].reshape", "said.reshape"), ("y[:, 1:].reshape", "labels.reshape"))),
    "viewed": {name: CHUNKED + LSTM + two_ahead(changed(
        LATER, ("logits[:, :-1].reshape([-1, 11])", f"logits[:, :-1].contiguous().{VIEW[name]}"),
        ("y[:, 1:].reshape([-1]))", f"y[:, 1:].contiguous().{VIEW[name].replace(', 11', '')})  # CAUSE")))
        for name in FRAMEWORKS},
    "a likelihood": CHUNKED + LSTM + two_ahead(changed(
        LATER, ("F.cross_entropy(logits[:, :-1].reshape([-1, 11]), y[:, 1:]", "F.nll_loss(F.log_softmax(logits[:, "
                ":-1], -1).reshape([-1, 11]), y[:, 1:]"), AT_THE_LOSS)),
}  # fmt: skip
# Told as a note: only where the tokens are seen to be moved on twice it is no choice. Paddle's loader works in NumPy.
CHOSEN = {"in a dataset alone", "of a chunk", "by a roll, and at the loss", "as the text is cut, and at the loss"}
# Shifted once in each of these ways; the token after the next is learnt beside the next.
TWO_HEADS = """
class Two(Recurrent):
    def __init__(self):
        super().__init__()
        self.further = nn.Linear(12, 11)

    def forward(self, x):
        h = self.body(self.embed(x))[0]
        return self.head(h), self.further(h)
"""
BOTH_LOSSES = ("    logits = net(x)\n    loss = ", "    logits, further = net(x)\n    loss = LATER\n    loss = loss + ")
SECOND_LOSS = "F.cross_entropy(further[:, :-1].reshape([-1, 11]), y[:, 1:].reshape([-1]))"
BOTH = changed(FIT, BOTH_LOSSES, ("LATER", SECOND_LOSS))
OTHERWISE = changed(ITSELF, ("return x, x", "y = x.clone()\n    return x, y"))
SHIFTS = {
    "in a dataset": ONCE + LSTM + two_ahead(LOADED, "x, y"),
    "in a batch": SHIFTED + LSTM + two_ahead(FIT, "x, y"),
    "of a chunk": changed(CHUNK, ("BY", "rows[:, 1:9]"), ("  # CAUSE", "")) + LSTM + two_ahead(FIT, "x, y"),
    "at the loss": OTHERWISE + LSTM + two_ahead(LATER),
    "flattened": OTHERWISE + LSTM + two_ahead(changed(LATER, ("logits[:, :-1].reshape([-1, 11])",
        "logits[:, :-1].flatten(0, 1)"), ("y[:, 1:].reshape([-1])", "y[:, 1:].flatten()"))),
    "by a roll": changed(ITSELF, ("return x, x", "return x, fw.roll(x, -1, 1)")) + LSTM + two_ahead(FIT, "x, y"),
    "two heads": TWO_HEADS + SHIFTED + made("Two()") + two_ahead(BOTH, "x, y"),
    "two heads, by attention": TWO_HEADS.replace("Recurrent", "Causal").replace("self.body(self.embed(x))[0]",
        "self.places(x)\n        h = h + F.softmax(self.q(h) @ turned(self.k(h)) + later(8), -1) @ self.v(h)")
    + SHIFTED + made("Two()") + two_ahead(BOTH, "x, y"),
}  # fmt: skip
NONE_SEEN = {"shifted by a join", "shifted by a roll", "a strict mask", "hidden, labels picked", "hidden, weighed",
             "hidden, losses picked"}  # fmt: skip
FAULTS = {
    # FAULT: a loss of one place after another, in a loop.
    "a loss of each place": "a loss of each place is not compared",
}  # fmt: skip


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    parts |= {f"meant, {name}": part for name, part in MEANT.items()}
    parts |= {f"twice, {name}": part for name, part in TWICE.items()}
    parts |= {f"once, {name}": part for name, part in SHIFTS.items()}
    return {name: HEAD[framework] + MODELS + (part if isinstance(part, str) else part[framework])
            for name, part in parts.items()}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"unshifted-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_labels_that_are_the_input(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert f"the same: {name != 'padding of no weight'}\nsees itself: True\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "warning" and "not shifted by one" in first["message"], first
    assert len(run.told) == 1, run


@each
@named(HEALTHY, FAULTS)
def test_labels_that_are_other_tokens(runs: dict[str, Run], name: str) -> None:
    assert "the same: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@named(MEANT, FAULTS)
def test_the_input_where_it_is_meant(runs: dict[str, Run], name: str) -> None:
    run = runs[f"meant, {name}"]
    assert f"the same: True\nsees itself: {name not in NONE_SEEN}\n" in run.plain, run
    run.check_healthy()


@each
@named(TWICE, {})
def test_labels_that_are_shifted_twice(runs: dict[str, Run], name: str) -> None:
    run = runs[f"twice, {name}"]
    assert "ahead: [2]\n" in run.plain, run
    first = run.check_first("loss-input")
    assert "two places ahead of the model's input" in first["message"], first
    of_numpy = name == "in a dataset and at the loss" and "import paddle" in run.program
    assert first["severity"] == ("note" if name in CHOSEN or of_numpy else "warning"), first
    assert ("they are shifted twice" in first["message"]) == (first["severity"] == "warning"), first
    assert len(run.told) == 1, run


@each
@named(SHIFTS, {})
def test_labels_that_are_shifted_once(runs: dict[str, Run], name: str) -> None:
    run = runs[f"once, {name}"]
    assert "ahead: [1]\n" in run.plain, run
    run.check_healthy()
