"""What coordinator and sites say to each other, as data. Everything that arrives is checked before it is believed.

The body of a letter is a short JSON object and, behind it, the bytes of a packet where there is one.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fewfed.engine.outcomes import Failed

JOIN, BEGIN, PHASE, SUM, SCORE, FINISH = "join", "begin", "phase", "sum", "score", "finish"
TURNED_AWAY = "turned away"
"""Kinds of letters: take part in a run; this is how inputs are scaled; a turn in a phase; a step of a sum under masks;
score a model; it is over; you cannot take part, and why."""

SCALING, TRAINING = "scaling", "training"
"""Stages of a run: the exchange before the first round, in which inputs are measured; the rounds."""

MOST_HEAD = 1 << 22
MOST_SITES = 10_000
_LONGEST_TEXT = 2_000
_LENGTH = struct.Struct("<I")

Cause = Literal["client", "packet", "policy", "budget"]
_CAUSES: Mapping[str, Cause] = {"client": "client", "packet": "packet", "policy": "policy", "budget": "budget"}


class BadMessage(Exception):
    """A message that is not accepted, and why."""


def pack(head: Mapping[str, Any], content: bytes = b"") -> bytes:
    """The body of a letter."""
    written = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    return _LENGTH.pack(len(written)) + written + content


def unpack(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The object and the bytes behind it. Sizes are compared before anything is built."""
    if len(body) < _LENGTH.size:
        raise BadMessage(f"it has {len(body)} bytes: expected at least {_LENGTH.size}")
    (length,) = _LENGTH.unpack_from(body)
    if length > min(MOST_HEAD, len(body) - _LENGTH.size):
        raise BadMessage(f"its head claims {length} bytes: expected at most those that follow and {MOST_HEAD}")
    try:
        head = json.loads(body[_LENGTH.size : _LENGTH.size + length], parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"its head is not JSON: {type(error).__name__}") from error
    if not isinstance(head, dict):
        raise BadMessage(f"its head is a {type(head).__name__}: expected named values")
    return head, body[_LENGTH.size + length :]


@dataclass(frozen=True)
class Offer:
    """What a run is: everything a site needs to take part, beside its own rows."""

    config: Mapping[str, Any]
    """The configuration as a run folder records it; of data, policies and executors a site uses its own."""
    task: str
    shape: tuple[int, ...]
    """Of one input."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    sites: tuple[str, ...]
    """Names of all sites on the list, in the order of their numbers."""
    secure: str = ""
    """`refuse` or `clear`: uploads are summed under masks, and this becomes of those that cannot be (see
    `fewfed.deploy.secure.layout`); empty: they are not."""

    def body(self) -> bytes:
        return pack(
            {
                "config": dict(self.config),
                "task": self.task,
                "shape": list(self.shape),
                "classes": list(self.classes),
                "sites": list(self.sites),
                "secure": self.secure,
            }
        )

    @classmethod
    def read(cls, body: bytes) -> Offer:
        head, _ = unpack(body)
        shape = head.get("shape")
        if not isinstance(shape, list) or not all(type(size) is int and 0 < size < 1 << 32 for size in shape):
            raise BadMessage("the shape of an input is no list of lengths")
        if not 0 < math.prod(shape) < 1 << 40 or len(shape) > 8:
            raise BadMessage(f"the shape of an input is {shape!r:.60}: expected one that fits into memory")
        config = head.get("config")
        if not isinstance(config, dict):
            raise BadMessage("it has no configuration")
        sites, classes = _texts(head, "sites", MOST_SITES), _texts(head, "classes", 1_000_000)
        secure = _text(head, "secure")
        if secure not in ("", "refuse", "clear"):
            raise BadMessage(f"how sums are masked is {secure!r:.40}: expected 'refuse', 'clear' or nothing")
        return cls(config, _text(head, "task"), tuple(shape), classes, sites, secure)


@dataclass(frozen=True)
class Terms:
    """What a site says when it joins."""

    rows: int | None
    """Rows that it trains on; None where its policy does not tell."""
    test_rows: int
    validation_rows: int
    fills: bool
    """Whether values are missing among its inputs."""
    inputs: Mapping[str, Any] | None
    """What an input is made from: kind of file, and of tables columns and categories. They must be everybody's."""
    weights: str
    """Digest of the first weights that it made from the seed: they must be everybody's."""
    version: str

    def body(self) -> bytes:
        return pack(
            {
                "rows": self.rows,
                "test_rows": self.test_rows,
                "validation_rows": self.validation_rows,
                "fills": self.fills,
                "inputs": self.inputs,
                "weights": self.weights,
                "version": self.version,
            }
        )

    @classmethod
    def read(cls, body: bytes) -> Terms:
        head, _ = unpack(body)
        rows = None if head.get("rows") is None else _count(head, "rows")
        test, held_back = _count(head, "test_rows"), _count(head, "validation_rows")
        inputs = head.get("inputs")
        if inputs is not None and not isinstance(inputs, dict):
            raise BadMessage("what its inputs are made from is not said")
        weights, version = _text(head, "weights"), _text(head, "version")
        return cls(rows, test, held_back, head.get("fills") is True, inputs, weights, version)


@dataclass(frozen=True)
class Verdict:
    """What became of a site's answer in a phase: only what was accepted changes what the site remembers."""

    round: int
    phase: str
    accepted: bool

    def as_json(self) -> list[Any]:
        return [self.round, self.phase, self.accepted]

    @classmethod
    def from_json(cls, recorded: Any) -> Verdict:
        if not isinstance(recorded, list) or len(recorded) != 3:
            raise BadMessage("a verdict is none")
        round, phase, accepted = recorded
        if type(round) is not int or not isinstance(phase, str) or type(accepted) is not bool:
            raise BadMessage("a verdict is none")
        return cls(round, phase, accepted)


@dataclass(frozen=True)
class Request:
    """Take a turn in a phase, or score a model. The envelope says of which round and phase."""

    settled: tuple[Verdict, ...] = ()
    """What became of the site's earlier answers."""
    stage: str = TRAINING
    attached: str = ""
    """Digest of what is attached: the broadcast, or the model."""
    on: str = "test"
    """Which rows a model is scored on."""
    own: bool = False
    """Whether the site's own model is scored, made with what is attached."""
    step: str = ""
    """Of a sum under masks: what is asked for."""
    content: bytes = field(default=b"", repr=False)
    """The packet of what this site alone receives."""

    def body(self) -> bytes:
        head = {
            "settled": [verdict.as_json() for verdict in self.settled],
            "stage": self.stage,
            "attached": self.attached,
            "on": self.on,
            "own": self.own,
            "step": self.step,
        }
        return pack(head, self.content)

    @classmethod
    def read(cls, body: bytes) -> Request:
        head, content = unpack(body)
        settled = head.get("settled")
        if not isinstance(settled, list) or len(settled) > MOST_HEAD // 8:
            raise BadMessage("its list of verdicts is none")
        stage, on = _text(head, "stage"), _text(head, "on")
        if stage not in (SCALING, TRAINING) or on not in ("test", "validation"):
            raise BadMessage(f"its stage is {stage!r:.40} and its rows are {on!r:.40}: expected known ones")
        verdicts = tuple(Verdict.from_json(each) for each in settled)
        own, step = head.get("own") is True, _text(head, "step")
        return cls(verdicts, stage, _text(head, "attached"), on, own, step, content)


@dataclass(frozen=True)
class Reply:
    """What a site answers: a packet or a score, or why there is none."""

    failed: str = ""
    cause: Cause = "client"
    unknown_run: bool = False
    """The site does not know the run, or not yet how inputs are scaled: it must join first."""
    withdrawn: bool = False
    """The site has withdrawn: rows that it sent before must not be used any more."""
    score: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] | None = None
    """What its inputs are made from, where it does not join because they do not fit."""
    content: bytes = field(default=b"", repr=False)
    """A packet."""

    def body(self) -> bytes:
        head = {
            "failed": self.failed[:_LONGEST_TEXT],
            "cause": self.cause,
            "unknown_run": self.unknown_run,
            "withdrawn": self.withdrawn,
            "score": self.score,
            "inputs": self.inputs,
        }
        return pack(head, self.content)

    @classmethod
    def read(cls, body: bytes) -> Reply:
        head, content = unpack(body)
        failed, cause = _text(head, "failed"), _text(head, "cause")
        score, inputs = head.get("score"), head.get("inputs")
        if cause not in _CAUSES:
            raise BadMessage(f"its cause is {cause!r:.40}: expected one of {', '.join(_CAUSES)}")
        if score is not None and not isinstance(score, dict):
            raise BadMessage("its score is none")
        if inputs is not None and not isinstance(inputs, dict):
            raise BadMessage("what its inputs are made from is not said")
        known, gone = head.get("unknown_run") is True, head.get("withdrawn") is True
        return cls(shown(failed, 1000), _CAUSES[cause], known, gone, score, inputs, content)

    @classmethod
    def of(cls, failed: Failed) -> Reply:
        """The reply of a site whose turn failed."""
        return cls(failed.reason or "it failed", _CAUSES.get(failed.cause, "client"))


def shown(text: str, most: int = 500) -> str:
    """A text from elsewhere as it may be shown: in one line, without control characters, and short."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])


def _text(head: Mapping[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise BadMessage(f"its {name} is no short text")
    return value


def _texts(head: Mapping[str, Any], name: str, most: int) -> tuple[str, ...]:
    values: Any = head.get(name)
    if not isinstance(values, list) or len(values) > most:
        raise BadMessage(f"its {name} are no list of names")
    if not all(isinstance(value, str) and len(value) <= _LONGEST_TEXT for value in values):
        raise BadMessage(f"its {name} are no list of names")
    found: Sequence[str] = values
    return tuple(found)


def _count(head: Mapping[str, Any], name: str) -> int:
    value = head.get(name)
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise BadMessage(f"its {name} is {value!r:.40}: expected a number of rows")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
