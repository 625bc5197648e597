"""The codec and the framing: round trips, and every kind of bad input gets a ProtocolError that names the fault."""

from __future__ import annotations

import io
import json
import math
import random

import pytest

from adbg.engine.errors import ProtocolError
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeInfo, NodeStop, Phase, SourceLine, StopReason, TensorMeta, TensorStats, ValueState


def stop() -> NodeStop:
    node = NodeInfo(7, "MmBackward0", "MmBackward0#3", 12, "layers.0", None, SourceLine("/m.py", 16, "forward"))
    return NodeStop(StopReason.NAN, Phase.AFTER, 1, 2, 3, 9, 0, 0, (1, 2), node, ("OuterBackward#1",))


def test_nested_dataclasses_survive_the_wire() -> None:
    body = protocol.Stopped("nan", 1, hitBreakpointIds=[1, 2], adbg=stop())
    text = json.dumps(wire.to_json(body), allow_nan=False)
    assert wire.from_json(protocol.Stopped, json.loads(text)) == body


def test_what_was_recorded_before_a_field_existed_is_read() -> None:
    plain = wire.to_json(stop())
    del plain["evidence"]
    assert wire.from_json(NodeStop, plain) == stop()
    meta = wire.from_json(TensorMeta, {"shape": None, "note": "not kept: of another node"})
    assert (meta.state, meta.remark) == (ValueState.OK, "not kept: of another node")


def test_floats_json_cannot_write_are_strings() -> None:
    stats = TensorStats(4, None, -math.inf, math.inf, math.nan, 0.0, 1.5, 1, 0, 1, 0, 1, 1, (1, 2))
    plain = wire.to_json(stats)
    assert (plain["min"], plain["max"], plain["mean"]) == ("-inf", "inf", "nan")
    back = wire.from_json(TensorStats, json.loads(json.dumps(plain)))
    assert back.min == -math.inf and back.max == math.inf and math.isnan(back.mean) and back.histogram == (1, 2)


def test_every_message_of_the_registry_can_be_read() -> None:
    for arguments, body in protocol.REQUESTS.values():
        assert callable(wire._reader(arguments)) and callable(wire._reader(body))
    for body in protocol.EVENTS.values():
        assert callable(wire._reader(body))


@pytest.mark.parametrize(
    ("cls", "value", "names"),
    [
        (protocol.Until, {}, "'spec' is missing"),
        (protocol.Until, {"spec": 3}, "spec: expected a string"),
        (protocol.Until, [], "expected an object"),
        (protocol.Graph, {"start": "1"}, "start: expected an integer"),
        (protocol.Graph, {"start": True}, "start: expected an integer"),
        (protocol.SetFunctionBreakpoints, {"breakpoints": [{"name": "a"}, {}]}, r"breakpoints\[1\]: the field 'name'"),
        (
            protocol.Stopped,
            {"reason": "x", "threadId": 1, "adbg": {"reason": "sleepy"}},
            "adbg.reason: expected one of breakpoint",
        ),
        (TensorStats, {"numel": 1, "sampled": None, "min": "minus"}, "min: expected a number"),
    ],
)
def test_wrong_shapes_name_the_field(cls: type, value: object, names: str) -> None:
    with pytest.raises(ProtocolError, match=names):
        wire.from_json(cls, value)


def test_unknown_fields_are_ignored() -> None:
    assert wire.from_json(protocol.Graph, {"start": 5, "colour": "red"}).start == 5


def test_frames_follow_each_other() -> None:
    stream = io.BytesIO(wire.encode({"seq": 1}) + wire.encode({"seq": 2, "text": "é\n"}))
    assert wire.read_message(stream) == {"seq": 1}
    assert wire.read_message(stream) == {"seq": 2, "text": "é\n"}
    assert wire.read_message(stream) is None


@pytest.mark.parametrize("body", [b"{", b"[1]", b"nul", b"\xff\xfe", b"[" * 100_000])
def test_a_bad_body_leaves_the_stream_at_the_next_message(body: bytes) -> None:
    stream = io.BytesIO(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) + wire.encode({"seq": 2}))
    with pytest.raises(ProtocolError):
        wire.read_message(stream)
    assert wire.read_message(stream) == {"seq": 2}


def test_a_message_over_the_limit_is_skipped_not_read() -> None:
    size = protocol.MAX_MESSAGE + 1
    stream = io.BytesIO(b"Content-Length: %d\r\n\r\n" % size + b"x" * size + wire.encode({"seq": 2}))
    with pytest.raises(ProtocolError, match="refused: the limit"):
        wire.read_message(stream)
    assert wire.read_message(stream) == {"seq": 2}


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"Content-Length: -3\r\n\r\n",
        b"x" * 9000,
        b"\r\n",
        b"Content-Length: 1e3\r\n\r\n",
    ],
)
def test_a_bad_header_is_fatal(header: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.read_message(io.BytesIO(header))
    assert getattr(caught.value, "fatal", False)


def test_random_bytes_never_raise_anything_else() -> None:
    generator = random.Random(7)
    good = wire.encode({"seq": 1, "command": "threads", "arguments": {}})
    read = []
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        stream = io.BytesIO(bytes(data))
        try:
            read.append(wire.read_message(stream) is not None)
        except ProtocolError:
            read.append(False)
    assert 0 < sum(read) < len(read) == 2000, "some are still messages, most are not"
