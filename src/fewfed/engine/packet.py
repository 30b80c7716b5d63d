"""The packet: what a client hands over at the end of a phase. Nothing else crosses from a client to the server.

Inside one process a packet is passed on as an object. Between machines it is written as bytes: a short JSON header,
then the arrays as safetensors. Nothing is pickled, and every size and name is checked before it is used.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Report
from fewfed.tree import Tree

VERSION = 1
SERVER = -1
"""The sender of packets that go from the server to clients."""
MOST_BYTES = 1 << 31
"""The largest packet that `decode` accepts by default."""

STEPS = "steps"
LOSS = "loss."
"""Metrics of the engine's own: steps taken, and the mean of each loss term over them."""

_MAGIC = b"FEWFED"
_FRONT = struct.Struct("<6sHI")
_MOST_HEADER = 1 << 24
_MOST_LEAVES = 100_000
_MOST_METRICS = 1_000
_LONGEST_NAME = 300
_DEEPEST = 16

TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        str(dtype): dtype
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
        )
    }
)
"""Types of numbers that may travel."""
_ORDINARY = frozenset(TYPES.values())


class BadPacket(Exception):
    """A packet that is not accepted, and why."""


@dataclass(frozen=True)
class Packet:
    """What one client hands over at the end of a phase."""

    round: int
    phase: str
    sender: int
    weight: float
    arrays: Tree
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Named numbers beside the arrays: steps, loss terms, and what the method reports."""

    @property
    def steps(self) -> int:
        return int(self.metrics.get(STEPS, 0))

    @property
    def terms(self) -> dict[str, float]:
        """Mean of each loss term over the steps."""
        return {name.removeprefix(LOSS): value for name, value in self.metrics.items() if name.startswith(LOSS)}

    @property
    def reported(self) -> dict[str, float]:
        """What the method itself reports."""
        return {name: value for name, value in self.metrics.items() if name != STEPS and not name.startswith(LOSS)}


def packet_of(
    report: Report, round: int, phase: str, sender: int, steps: int = 0, terms: Mapping[str, float] | None = None
) -> Packet:
    """Make a packet from what a method's `end` returned. Raises `BadPacket` for anything but tensors and numbers."""
    if not isinstance(report, Report):
        raise BadPacket(f"'end' returned {_kind(report)}: expected a Report")
    refuse_odd_tree(report.upload, "upload")  # Before it goes to another process.
    if type(report.state) is not dict or report.state:
        refuse_odd_tree(report.state, "state")
    weight = _as_number(report.weight, "its weight")
    metrics = {STEPS: float(steps), **{LOSS + name: value for name, value in (terms or {}).items()}}
    if not isinstance(report.metrics, Mapping):
        raise BadPacket(f"its metrics are {_kind(report.metrics)}: expected named numbers")
    for name, value in report.metrics.items():
        if not isinstance(name, str) or name == STEPS or name.startswith(LOSS):
            raise BadPacket(f"metric {name!r}: expected a name that is not '{STEPS}' and does not begin with '{LOSS}'")
        metrics[name] = _as_number(value, f"metric '{name}'")
    return Packet(round, phase, sender, weight, report.upload, metrics)


def _as_number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadPacket(f"{what} is {_kind(value)}: expected a number")
    try:
        return float(value)
    except OverflowError:  # A whole number that no other can hold is refused as what it would become.
        return math.inf if value > 0 else -math.inf


def without_arrays(packet: Packet) -> Packet:
    """What remains of a packet whose arrays have been combined."""
    return Packet(packet.round, packet.phase, packet.sender, packet.weight, {}, packet.metrics)


def refuse_odd_tree(value: Any, what: str, depth: int = 0) -> None:
    """Raise `BadPacket` for anything but nested dictionaries of ordinary tensors."""
    if not isinstance(value, dict):
        raise BadPacket(f"its {what} is {_kind(value)}: expected a dictionary of tensors")
    if depth >= _DEEPEST:
        raise BadPacket(f"its {what} is nested deeper than {_DEEPEST} dictionaries")
    for name, part in value.items():
        if not isinstance(name, str) or not name or "/" in name or len(name) > _LONGEST_NAME:
            raise BadPacket(f"its {what} has an entry named {name!r:.60}: expected a short name without '/'")
        if not isinstance(part, Tensor):
            refuse_odd_tree(part, f"{what} '{name}'", depth + 1)
        elif part.layout is not torch.strided or part.is_meta or part.dtype not in _ORDINARY:
            raise BadPacket(
                f"its {what} '{name}' is a tensor of {part.dtype}, {part.layout}: expected ordinary numbers"
            )


def encode(packet: Packet) -> bytes:
    """The packet as bytes."""
    from safetensors.torch import save

    leaves = list(tree.leaves(packet.arrays))
    head = {
        "round": packet.round,
        "phase": packet.phase,
        "sender": packet.sender,
        "weight": float(packet.weight).hex(),
        "metrics": {name: float(value).hex() for name, value in packet.metrics.items()},
        "paths": [path for path, _ in leaves],
        "empty": list(tree.hollows(packet.arrays)),
    }
    written = json.dumps(head, separators=(",", ":")).encode()
    # Arrays are numbered, because safetensors reserves some names. They are copied, because it refuses tensors that
    # share memory.
    body = save({str(number): leaf.detach().cpu().contiguous().clone() for number, (_, leaf) in enumerate(leaves)})
    return _FRONT.pack(_MAGIC, VERSION, len(written)) + written + body


def decode(content: bytes, most_bytes: int = MOST_BYTES) -> Packet:
    """Read a packet from bytes, or raise `BadPacket`. Sizes are checked before memory is allocated."""
    if len(content) > most_bytes:
        raise BadPacket(f"it has {len(content)} bytes: expected at most {most_bytes}")
    if len(content) < _FRONT.size:
        raise BadPacket(f"it has {len(content)} bytes: expected at least {_FRONT.size}")
    magic, version, length = _FRONT.unpack_from(content)
    if magic != _MAGIC:
        raise BadPacket("it does not begin as a packet does")
    if version != VERSION:
        raise BadPacket(f"it is of version {version}: expected {VERSION}")
    if length > min(_MOST_HEADER, len(content) - _FRONT.size):
        raise BadPacket(f"its header claims {length} bytes: expected at most those that follow and {_MOST_HEADER}")
    head = _header(content[_FRONT.size : _FRONT.size + length])
    return Packet(
        head["round"],
        head["phase"],
        head["sender"],
        head["weight"],
        _arrays(content[_FRONT.size + length :], head["paths"], head["empty"]),
        head["metrics"],
    )


def _header(written: bytes) -> dict[str, Any]:
    try:
        head = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise BadPacket(f"its header is not JSON: {type(error).__name__}") from error
    kinds: dict[str, type] = {
        "round": int,
        "phase": str,
        "sender": int,
        "weight": str,
        "metrics": dict,
        "paths": list,
        "empty": list,
    }
    if not isinstance(head, dict) or head.keys() != kinds.keys():
        raise BadPacket(f"its header has other entries than {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(head[name]) is not kind:
            raise BadPacket(f"its header's {name} is {_kind(head[name])}: expected {kind.__name__}")
    if len(head["metrics"]) > _MOST_METRICS or len(head["paths"]) + len(head["empty"]) > _MOST_LEAVES:
        raise BadPacket("its header lists too many entries")
    if abs(head["round"]) >= 2**63 or abs(head["sender"]) >= 2**63 or len(head["phase"]) > _LONGEST_NAME:
        raise BadPacket("its header's numbers are too large or its names too long")
    head["weight"] = _number(head["weight"], "weight")
    head["metrics"] = {name: _number(value, f"metric '{name}'") for name, value in head["metrics"].items()}
    return head


def _number(written: Any, what: str) -> float:
    try:
        return float.fromhex(written)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadPacket(f"its {what} is no number") from error


def _arrays(body: bytes, paths: list[Any], empty: list[Any]) -> Tree:
    from safetensors import SafetensorError
    from safetensors.torch import load

    _refuse_odd_paths([*paths, *empty])
    try:
        found = load(body)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise BadPacket(f"its arrays cannot be read: {type(error).__name__}") from error
    if found.keys() != {str(number) for number in range(len(paths))}:
        raise BadPacket(f"it has {len(found)} arrays for {len(paths)} names")
    for number, path in enumerate(paths):
        if str(found[str(number)].dtype) not in TYPES:
            raise BadPacket(f"its '{path}' is of {found[str(number)].dtype}: expected one of {', '.join(TYPES)}")
    return tree.from_leaves({path: found[str(number)] for number, path in enumerate(paths)}, empty)


def _refuse_odd_paths(paths: list[Any]) -> None:
    """Raise unless the paths make a tree: no name twice, nothing below a leaf."""
    if not all(isinstance(path, str) for path in paths):
        raise BadPacket("a name in its header is no text")
    known = set(paths)
    if len(known) < len(paths):
        raise BadPacket("a name in its header stands there twice")
    for path in paths:
        parts = path.split("/")
        if len(parts) > _DEEPEST or any(not part or len(part) > _LONGEST_NAME for part in parts):
            raise BadPacket(f"its header has the name {path!r:.60}: expected short names joined by '/'")
        if any("/".join(parts[:count]) in known for count in range(1, len(parts))):
            raise BadPacket(f"its header has the name {path!r:.60} below another one's")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if value is not None else "nothing"
