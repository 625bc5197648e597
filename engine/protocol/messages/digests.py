"""Digests of tensors: what ranks compare instead of the tensors themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import request
from adbg.engine.types import NodeInfo, ValueState


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """One tensor: ``digest`` is the SHA-256 (hex) of its elements' bytes in C order, "" where it has none to read.
    ``part``: what this rank holds of it ("Shard(dim=0)"), "" for all of it."""

    name: str
    shape: list[int] | None
    dtype: str
    nbytes: int
    digest: str
    state: ValueState = ValueState.OK
    part: str = ""
    note: str = ""
    blocks: list[str] = field(default_factory=list)  # digests of its blocks, 16 hex digits each
    made_by: list[NodeInfo] = field(default_factory=list)  # of a gradient: the nodes that flow into its accumulate node


@dataclass(frozen=True, slots=True)
class DigestBody:
    """``at``: "stop", "begin" or "end" of a backward, "" where nothing was hashed. ``iteration``: outermost backward
    calls begun; ``collectives``: sequence number of the default process group, None without one. ``reducer``: the
    wrapper that reduces gradients between ranks within backward ("DistributedDataParallel"), "" for none. ``world``:
    the number of ranks, None where it is not known."""

    tensors: list[TensorDigest]
    at: str
    iteration: int
    collectives: int | None = None
    reducer: str = ""
    world: int | None = None
    seconds: float = 0.0


@request("adbg/digest", DigestBody)
@dataclass(frozen=True, slots=True)
class Digest:
    """Hash the tensors of ``what``: "params", "grads", "buffers", or "" to only ask where this process is. At a stop at
    once. ``wait`` above 0: while the program runs too, at the begin (gradients: the end) of the first outermost
    backward that begins with more than ``after`` collectives (``by_iteration``: iterations), unless ``wait`` seconds
    pass before. ``names``: only these. ``block``: bytes a block, 0 for no blocks."""

    what: str = ""
    names: list[str] = field(default_factory=list)
    block: int = 0
    wait: float = 0.0
    after: int = 0
    by_iteration: bool = False


@dataclass(frozen=True, slots=True)
class BytesBody:
    data: str  # base64


@request("adbg/bytes", BytesBody)
@dataclass(frozen=True, slots=True)
class Bytes:
    """``count`` bytes of a tensor's elements in C order, from byte ``start`` on; at a stop."""

    what: str
    name: str
    start: int
    count: int
