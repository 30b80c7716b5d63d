"""Packets as bytes: nothing is lost on the way, and nothing that arrives is believed.

`make fuzz` feeds the decoder many more examples than the tests do.
"""

from __future__ import annotations

import json
import math
import os
import struct
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.engine.packet import TYPES, VERSION, BadPacket, Packet, decode, encode
from fewfed.engine.schema import Schema, Schemas
from fewfed.phase import Clock
from support import digits_federation, job_of

EXAMPLES = int(os.environ.get("FEWFED_FUZZ", "2000"))
thorough = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == 2000
)

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=12
)
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    shape = draw(SHAPES)
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:  # Other bytes than 0 and 1 are no booleans.
        raw = bytes(byte & 1 for byte in raw)
    return torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[:size].view(dtype).reshape(shape)


TREES = st.dictionaries(
    NAMES, st.recursive(tensors(), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=5), max_size=4
)
NUMBERS = st.floats(allow_nan=False)
PACKETS = st.builds(
    Packet,
    round=st.integers(-(2**62), 2**62),
    phase=st.text(max_size=20),
    sender=st.integers(-(2**62), 2**62),
    weight=NUMBERS,
    arrays=TREES,
    metrics=st.dictionaries(st.text(max_size=12), NUMBERS, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(PACKETS)
def test_nothing_is_lost_on_the_way(packet: Packet) -> None:
    again = decode(encode(packet))
    assert (again.round, again.phase, again.sender) == (packet.round, packet.phase, packet.sender)
    assert (again.weight, again.metrics) == (packet.weight, packet.metrics)
    assert sorted(tree.hollows(again.arrays)) == sorted(tree.hollows(packet.arrays))
    before, after = dict(tree.leaves(packet.arrays)), dict(tree.leaves(again.arrays))
    assert before.keys() == after.keys()
    for path, leaf in before.items():
        assert (after[path].dtype, after[path].shape) == (leaf.dtype, leaf.shape)
        assert after[path].flatten().view(torch.uint8).tolist() == leaf.flatten().view(torch.uint8).tolist()


def test_transposed_shared_and_trained_arrays_travel_too() -> None:
    memory = torch.arange(12.0).reshape(3, 4)
    arrays = {"a": memory.T, "b": {"c": memory[1], "d": memory.clone().requires_grad_(True), "e": {}}}
    again = decode(encode(Packet(0, "train", 1, 2.0, arrays)))
    assert differences(again.arrays, {**arrays, "b": {**arrays["b"], "d": memory}}) == []  # type: ignore[dict-item]
    assert not again.arrays["b"]["d"].requires_grad


def a_packet() -> Packet:
    arrays = {"model": {"params": {"w": torch.arange(6.0).reshape(2, 3)}, "buffers": {}}, "y": torch.tensor([1, 2])}
    return Packet(3, "train", 7, 12.0, arrays, {"steps": 2.0, "loss.task": 0.5})


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good packet's bytes after a few accidents."""
    content = bytearray(encode(a_packet()))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(("flip", "cut", "insert", "remove", "repeat"))):
            case "flip" if at < len(content):
                content[at] ^= draw(st.integers(1, 255))
            case "cut":
                del content[at:]
            case "insert":
                content[at:at] = draw(st.binary(max_size=9))
            case "remove":
                del content[at : at + draw(st.integers(1, 9))]
            case "repeat":
                content[at:at] = content[: draw(st.integers(0, 40))]
    return bytes(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A header that somebody wrote by hand, in front of arrays that may fit it or not."""
    head: dict[str, Any] = {
        "round": draw(st.integers() | JSON),
        "phase": draw(st.just("train") | JSON),
        "sender": draw(st.integers() | JSON),
        "weight": draw(st.sampled_from(["0x1.0p+0", "inf", "nan", "0x1p99999", ""]) | JSON),
        "metrics": draw(st.dictionaries(st.text(max_size=6), st.sampled_from(["0x1p0", "x"]) | JSON, max_size=3)),
        "paths": draw(st.lists(st.sampled_from(["a", "a/b", "model/params/w", "", "/", "a//b", "b/c"]) | JSON)),
        "empty": draw(st.lists(st.sampled_from(["a", "b", "a/b"]) | JSON, max_size=3)),
    }
    for name in draw(st.sets(st.sampled_from(sorted(head)), max_size=1)):
        del head[name]
    written = json.dumps(head).encode()
    count = draw(st.integers(0, 4))
    body = draw(
        st.just(save({str(number): torch.zeros(2) for number in range(count)}))
        | st.binary(max_size=60)
        | JSON.map(lambda value: _safetensors(json.dumps(value).encode()))
    )
    length = draw(st.just(len(written)) | st.integers(0, 2**32 - 1))
    version = draw(st.just(VERSION) | st.integers(0, 2**16 - 1))
    return struct.pack("<6sHI", b"FEWFED", version, length) + written + body


def _safetensors(head: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head + b"\0" * 8


ANYTHING = st.one_of(st.binary(max_size=200), mutated(), forged(), PACKETS.map(encode))


def a_schema() -> Schema:
    job = job_of("flea", digits_federation(2, 6))
    phase = job.method.phases(Clock(1, 3, 1))[-1]
    return Schemas(job).of(phase, Clock(1, 3, 1), {"model": job.net.model()}, {}, 0)


SCHEMA = a_schema()


@thorough
@given(ANYTHING)
def test_any_bytes_are_a_packet_or_are_refused(content: bytes) -> None:
    """Nothing but `BadPacket` is raised, by the decoder or by the schema that then looks at what came out."""
    try:
        found = decode(content)
    except BadPacket:
        return
    assert decode(encode(found)).arrays.keys() == found.arrays.keys()
    with pytest.raises(BadPacket):
        SCHEMA.check(found, 0)  # None of these is an upload of that method.


def test_a_packet_larger_than_the_limit_is_not_read() -> None:
    content = encode(a_packet())
    assert decode(content, len(content)).sender == 7
    with pytest.raises(BadPacket, match=f"expected at most {len(content) - 1}"):
        decode(content, len(content) - 1)


def test_another_version_is_refused_with_both_numbers() -> None:
    content = bytearray(encode(a_packet()))
    content[6] = VERSION + 8
    with pytest.raises(BadPacket, match=f"version {VERSION + 8}: expected {VERSION}"):
        decode(bytes(content))


def test_a_header_that_claims_gigabytes_takes_no_memory() -> None:
    """Sizes are claims: they are compared with what has come before anything is allocated."""
    claim = json.dumps({"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    head = json.loads(_header(encode(a_packet())))
    head["paths"], head["empty"] = ["w"], []
    written = json.dumps(head).encode()
    content = struct.pack("<6sHI", b"FEWFED", VERSION, len(written)) + written + _safetensors(claim)
    with pytest.raises(BadPacket, match="cannot be read"):
        decode(content)


def test_a_header_nested_without_end_is_refused() -> None:
    written = b"[" * 200_000
    with pytest.raises(BadPacket, match="not JSON"):
        decode(struct.pack("<6sHI", b"FEWFED", VERSION, len(written)) + written)


def _header(content: bytes) -> bytes:
    _, _, length = struct.unpack_from("<6sHI", content)
    return content[12 : 12 + length]
