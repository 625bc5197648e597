"""What the names of variables, functions and classes say: whether a tensor is there to be changed."""

from __future__ import annotations

import re

_CARRIED = re.compile(
    r"\b(?:langevin|sgld|particle|walk|chain|brown|simul|path|process|series|traject|pool|replay|buffer|negative|state|agent|env)",
    re.I,
)
_RANDOM = re.compile(r"rand|noise|normal|bernoulli|jitter|uniform|dropout|augment", re.I)
#: What is called so is there to be changed.
_UPDATED = re.compile(
    r"\b(?:bank|memory|proto|centr|codebook|moment|ema|cache|running|stat|weight|param|vel|hidden|belief|latent|queue|delta|"
    r"adv|perturb|attack|update|posit|grid|field|score|slot|world|physic|dynami|evolv|integrat|bod(?:y|ies)|move|drift)",
    re.I,
)  # fmt: skip
_PARTED = re.compile(r"_|(?<=[a-z])(?=[A-Z])")


def is_carried(names: str) -> bool:
    """A simulation, which may carry its state on in place."""
    return _CARRIED.search(_words(names)) is not None


def is_updated(names: str) -> bool:
    return _UPDATED.search(_words(names)) is not None


def is_random(statement: str) -> bool:
    return _RANDOM.search(statement) is not None


def _words(names: str) -> str:
    """ "ReplayBuffer" and "replay_buffer" are two words each, and an envelope is no environment."""
    return _PARTED.sub(" ", names)
