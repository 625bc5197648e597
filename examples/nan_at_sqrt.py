"""A training run that goes well for eight iterations, and then everything is nan. Which line did it?

    adbg run -b nan examples/nan_at_sqrt.py

The program stops at the first node whose gradient is not a number, while the loss is still fine. Then try

    where                             the forward line that made this node, and the module it is in
    p grad_outputs[0]                 what flows in: finite everywhere
    p saved['result']                 what the node kept from the forward pass
    p (saved['result'] == 0).sum()    at some places it is 0: the gradient of the square root there is g / (2 * 0)
    info node                         what flows out of it

The text: sentences of a small grammar, cut into windows. All windows are full but the last one of each text, which is
padded. The model is in tiny_gpt.py; the cure is one pair of brackets there.
"""

import random

import torch
from tiny_gpt import TinyGPT
from torch.nn import functional as F

WINDOW, BATCH, ITERATIONS = 24, 8, 14
PAD = 0
GRAMMAR = {
    "sentence": [["noun", "verb", "noun"], ["noun", "verb"], ["sentence", "while", "sentence"]],
    "noun": [["the", "adjective", "thing"], ["the", "thing"]],
    "thing": [["cat"], ["dog"], ["tensor"], ["gradient"]],
    "adjective": [["small"], ["lost"], ["quiet"]],
    "verb": [["sees"], ["follows"], ["forgets"]],
}


def generate(symbol, rng):
    """Words that the grammar derives from ``symbol``."""
    if symbol not in GRAMMAR:
        return [symbol]
    return [word for part in rng.choice(GRAMMAR[symbol]) for word in generate(part, rng)]


def documents(count, rng):
    """``count`` texts of some sentences each, as lists of words."""
    return [[w for _ in range(150) for w in [*generate("sentence", rng), "."]] for _ in range(count)]


def windows(texts, vocabulary):
    """Every text cut into rows of WINDOW + 1 token numbers; the last row of a text is padded."""
    rows = []
    for text in texts:
        numbers = [vocabulary[word] for word in text]
        for start in range(0, len(numbers), WINDOW + 1):
            row = numbers[start : start + WINDOW + 1]
            rows.append(row + [PAD] * (WINDOW + 1 - len(row)))
    return torch.tensor(rows)


def main():
    rng = random.Random(7)
    torch.manual_seed(7)
    texts = documents(3, rng)
    vocabulary = {word: number for number, word in enumerate(sorted({w for text in texts for w in text}), 1)}
    data = windows(texts, vocabulary)
    model = TinyGPT(len(vocabulary) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    print(f"{len(data)} windows of {WINDOW} tokens, {sum(p.numel() for p in model.parameters()):,} parameters")
    for iteration in range(1, ITERATIONS + 1):
        rows = data[(iteration - 1) * BATCH % len(data) :][:BATCH]
        tokens, targets = rows[:, :-1], rows[:, 1:]
        logits = model(tokens, padding=tokens == PAD)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"iteration {iteration:2d}  loss {loss.item():6.3f}  gradient norm {norm.item():6.3f}", flush=True)


if __name__ == "__main__":
    main()
