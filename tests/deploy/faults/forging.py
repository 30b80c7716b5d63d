"""A site that does its work and then spoils its answer, as the last step before it is sent."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from fewfed.deploy import messages
from fewfed.deploy.messages import TRAINING, Reply, Request
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import About, Direction, Expected, new_nonce, seal, unseal
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.engine.packet import Packet, decode, encode
from fewfed.tree import Tree


@dataclass
class Answer:
    """What the site was about to send, and all that a thief of keys could have beside it."""

    letter: bytes
    about: About
    body: bytes
    key: SigningKey
    other: SigningKey
    """Of another site."""
    earlier: list[bytes] = field(default_factory=list)
    """Letters that were sent before, as they were before they were spoiled."""

    @property
    def packet(self) -> Packet:
        return decode(Reply.read(self.body).content)

    def sealed(self, body: bytes | None = None, key: SigningKey | None = None, **about: object) -> bytes:
        """Another letter, well signed."""
        changed = dataclasses.replace(self.about, **about)  # type: ignore[arg-type]
        return seal(self.body if body is None else body, changed, key or self.key)

    def holding(self, content: bytes) -> bytes:
        """A letter with another packet."""
        return self.sealed(Reply(content=content).body())

    def changed(self, **parts: object) -> bytes:
        """A letter with a packet of which some fields differ."""
        return self.holding(encode(dataclasses.replace(self.packet, **parts)))  # type: ignore[arg-type]

    def arrays(self, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
        return self.changed(arrays=_each(self.packet.arrays, change))

    def header(self, **parts: object) -> bytes:
        """A letter with a packet whose header says something else than its arrays."""
        content = encode(self.packet)
        (length,) = struct.unpack_from("<I", content, 8)
        head = json.dumps({**json.loads(content[12 : 12 + length]), **parts}).encode()
        return self.holding(content[:8] + struct.pack("<I", len(head)) + head + content[12 + length :])


def _each(tree: Tree, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
    return {
        name: change(part) if isinstance(part, torch.Tensor) else _each(part, change) for name, part in tree.items()
    }


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def _one_leaf(answer: Answer, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    done: list[bool] = []

    def first(leaf: torch.Tensor) -> torch.Tensor:
        if done or not leaf.is_floating_point():
            return leaf
        done.append(True)
        return change(leaf.clone())

    return answer.arrays(first)


def _filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(leaf: torch.Tensor) -> torch.Tensor:
        leaf.view(-1)[0] = value
        return leaf

    return change


def _labels(answer: Answer, value: int) -> bytes:
    arrays = dict(answer.packet.arrays)
    if "labels" not in arrays:
        return answer.letter
    return answer.changed(arrays={**arrays, "labels": torch.full_like(arrays["labels"], value)})


def _rows(answer: Answer) -> bytes:
    arrays = answer.packet.arrays
    if "labels" not in arrays:
        return answer.letter
    return answer.arrays(lambda leaf: leaf.repeat(500, *([1] * (leaf.dim() - 1))))


def _giant(answer: Answer) -> bytes:
    """A safetensors part that claims an array of a terabyte."""
    content = encode(answer.packet)
    (length,) = struct.unpack_from("<I", content, 8)
    claimed = json.dumps({"0": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}).encode()
    return answer.holding(content[: 12 + length] + struct.pack("<Q", len(claimed)) + claimed + bytes(64))


def _nested(answer: Answer) -> bytes:
    head = b'{"failed":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    return answer.sealed(struct.pack("<I", len(head)) + head)


Forgery = Callable[[Answer], bytes]

FORGERIES: Mapping[str, tuple[Forgery, str]] = {
    "empty": (lambda a: b"", "it has 0 bytes"),
    "random bytes": (lambda a: os.urandom(len(a.letter)), "does not begin as an envelope"),
    "truncated": (lambda a: a.letter[: len(a.letter) // 2], "its body has"),
    "cut off in the front": (lambda a: a.letter[:60], "expected at least"),
    "something added": (lambda a: a.letter + b"more", "its body has"),
    "a bit of the body flipped": (lambda a: _flipped(a.letter, len(a.letter) - 9), "not the one that was signed"),
    "a bit of the front flipped": (lambda a: _flipped(a.letter, 20), "its signature is not that of"),
    "replayed": (lambda a: a.earlier[0] if a.earlier else a.letter, "was answered already"),
    "signed by another site": (lambda a: a.sealed(key=a.other), "its signature is not that of"),
    "from an unknown site": (lambda a: a.sealed(sender="nobody"), "who is not on the list"),
    "in the name of another site": (lambda a: a.sealed(key=a.other, sender="amber"), "its sender is 'amber'"),
    "of another run": (lambda a: a.sealed(run="run-of-others"), "its run is"),
    "of another round": (lambda a: a.sealed(round=a.about.round + 1), "its round is"),
    "of another phase": (lambda a: a.sealed(phase="another"), "its phase is"),
    "of another attempt": (lambda a: a.sealed(attempt=7), "its attempt is"),
    "to no question": (lambda a: a.sealed(nonce=new_nonce()), "is not open"),
    "a request": (lambda a: a.sealed(direction=Direction.REQUEST), "expected a reply"),
    "a name with a path": (lambda a: a.sealed(sender="../../amber"), "who is not on the list"),
    "no JSON": (lambda a: a.sealed(struct.pack("<I", 5) + b"hello"), "not JSON"),
    "nested deeply": (_nested, "not JSON"),
    "a head of four gigabytes": (lambda a: a.sealed(struct.pack("<I", 0xFFFFFFFF) + b"{}"), "its head claims"),
    "no packet": (lambda a: a.holding(b""), "it has 0 bytes"),
    "random bytes for a packet": (lambda a: a.holding(os.urandom(500)), "does not begin as a packet"),
    "an array of a terabyte": (_giant, "cannot be read"),
    "half a packet": (lambda a: a.holding(encode(a.packet)[:-50]), "cannot be read"),
    "a packet of another client": (lambda a: a.changed(sender=0), "it is of client 0"),
    "a packet of another round": (lambda a: a.changed(round=99), "round 100"),
    "a packet of another phase": (lambda a: a.changed(phase="another"), "phase 'another'"),
    "wrong shapes": (lambda a: _one_leaf(a, lambda leaf: leaf.unsqueeze(0)), "expected torch.float32"),
    "wrong types": (lambda a: _one_leaf(a, lambda leaf: leaf.double()), "expected torch.float32"),
    "not a number": (lambda a: _one_leaf(a, _filled(math.nan)), "NaN or infinity"),
    "infinite": (lambda a: _one_leaf(a, _filled(math.inf)), "NaN or infinity"),
    "huge numbers": (lambda a: _one_leaf(a, _filled(1e30)), "expected none of"),
    "a negative weight": (lambda a: a.changed(weight=-5.0), "its weight is"),
    "no weight": (lambda a: a.changed(weight=0.0), "its weight is"),
    "a weight beyond all rows": (lambda a: a.changed(weight=1e9), "its weight is"),
    "a weight that is no number": (lambda a: a.header(weight="heavy"), "its weight is no number"),
    "something undeclared": (lambda a: a.changed(arrays={**a.packet.arrays, "x": torch.ones(1)}), "not declared"),
    "nothing of what is declared": (lambda a: a.changed(arrays={}), "missing"),
    "an array whose name is a path": (
        lambda a: a.header(paths=["../../../etc/passwd", *map(str, range(99))][: _leaves(a)]), "is not declared",
    ),
    "metrics that are no numbers": (lambda a: a.changed(metrics={"steps": math.nan}), "its metric 'steps'"),
    "negative steps": (lambda a: a.changed(metrics={"steps": -1.0}), "its metric 'steps'"),
    "labels of no class": (lambda a: _labels(a, 10), "go up to 10"),
    "negative labels": (lambda a: _labels(a, -3), "go down to -3"),
    "too many rows": (_rows, "rows: expected at most"),
}  # fmt: skip
"""What is done to an answer in a phase, and what the coordinator must say of it."""

SCORES: Mapping[str, Mapping[str, object]] = {
    "no score": {"nothing": 1},
    "numbers beyond all others": {"total": 10**400},
    "more right than there is": {"correct": 1 << 50},
    "less than nothing": {"loss": -1.0},
    "more rows than it has": {"total": 1 << 40},
}


def _leaves(answer: Answer) -> int:
    content = encode(answer.packet)
    (length,) = struct.unpack_from("<I", content, 8)
    return len(json.loads(content[12 : 12 + length])["paths"])


@dataclass
class Forger:
    """Stands between a site's answers and whoever carries them."""

    name: str
    forgery: Forgery
    key: SigningKey
    other: SigningKey
    coordinator: PublicKey
    kind: str = messages.PHASE
    forged: int = 0
    _earlier: list[bytes] = field(default_factory=list)

    def spoiled(self, asked: Parcel, answer: Parcel) -> Parcel:
        expected = Expected(direction=Direction.REQUEST, recipient=self.name, sender=COORDINATOR)
        request = unseal(asked.letter, expected, {COORDINATOR: self.coordinator})
        if request.about.kind != self.kind or Request.read(request.body).stage != TRAINING:
            return answer
        about = request.about.reply()
        body = unseal(answer.letter, Expected.exactly(about), {self.name: self.key.public}).body
        letter = self.forgery(Answer(answer.letter, about, body, self.key, self.other, self._earlier))
        self._earlier.append(answer.letter)
        self.forged += letter != answer.letter
        return Parcel(letter)
