"""A site that misbehaves, and the ways in which it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from federation import Federation

from fewfed import tree
from fewfed.deploy import messages
from fewfed.deploy.messages import Reply, pack
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import About, Expected, Opened, seal, unseal
from fewfed.deploy.security.keys import SigningKey
from fewfed.engine.packet import Packet, decode, encode

BAD = "cedar"
Spoil = Callable[[Opened, "Culprit"], Parcel | None]


@dataclasses.dataclass
class Culprit:
    """A site whose answers in phases of the rounds are spoiled on their way out, by somebody who has its key."""

    federation: Federation
    spoil: Spoil
    name: str = BAD
    stage: str = messages.TRAINING
    before: Parcel | None = None
    """An answer that it gave before."""

    def __post_init__(self) -> None:
        self.site = self.federation.site(self.name)
        self.federation.transport.restart(self.name, self.answer)

    @property
    def key(self) -> SigningKey:
        return self.federation.keys[self.name]

    def answer(self, parcel: Parcel) -> Parcel | None:
        found = self.site.answer(parcel)
        if found is None:
            return None
        opened = unseal(found.letter, Expected(), {self.name: self.key.public})
        asked = unseal(parcel.letter, Expected(), {"coordinator": self.federation.keys["coordinator"].public})
        if opened.about.kind != messages.PHASE or b'"stage":"training"' not in asked.body:
            return found
        spoiled = self.spoil(opened, self)
        self.before = found
        return spoiled

    def sealed(self, about: About, body: bytes, key: SigningKey | None = None) -> Parcel:
        return Parcel(seal(body, about, key or self.key))


def packets(change: Callable[[Packet], Packet]) -> Spoil:
    """Another packet in an envelope that is good."""

    def spoil(opened: Opened, culprit: Culprit) -> Parcel:
        packet = change(decode(Reply.read(opened.body).content))
        return culprit.sealed(opened.about, Reply(content=encode(packet)).body())

    return spoil


def arrays(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return packets(lambda packet: dataclasses.replace(packet, arrays=tree.map(change, packet.arrays)))


def contents(change: Callable[[bytes], bytes]) -> Spoil:
    """Other bytes in place of the packet."""

    def spoil(opened: Opened, culprit: Culprit) -> Parcel:
        return culprit.sealed(opened.about, Reply(content=change(Reply.read(opened.body).content)).body())

    return spoil


def letters(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda opened, culprit: Parcel(change(culprit.sealed(opened.about, opened.body).letter))


def about(**changes: Any) -> Spoil:
    """An envelope that says something else of itself, and is signed."""
    return lambda opened, culprit: culprit.sealed(dataclasses.replace(opened.about, **changes), opened.body)


def replayed(opened: Opened, culprit: Culprit) -> Parcel:
    """The answer of the round before, once there is one."""
    return culprit.before or Parcel(b"nothing yet")


KINDS: dict[str, tuple[Spoil, str]] = {
    "an empty letter": (letters(lambda letter: b""), "bytes: expected at least"),
    "a letter of noise": (letters(lambda letter: bytes(range(256)) * 8), "does not begin"),
    "half a letter": (letters(lambda letter: letter[: len(letter) // 2]), "bytes: expected the"),
    "a longer letter": (letters(lambda letter: letter + b"x"), "bytes: expected the"),
    "an altered letter": (letters(lambda letter: letter[:-9] + b"\x00" + letter[-8:]), "not the one that was signed"),
    "another key": (lambda opened, culprit: culprit.sealed(opened.about, opened.body, SigningKey.new()), "signature"),
    "another site's name": (about(sender="amber"), "signature"),
    "a site that nobody knows": (about(sender="mallory"), "not on the list"),
    "another run": (about(run="run-2"), "its run is"),
    "another round": (about(round=7), "its round is"),
    "another phase": (about(phase="share"), "its phase is"),
    "another nonce": (about(nonce=bytes(16)), "not open"),
    "an answer of before": (replayed, "refused"),
    "no JSON": (lambda opened, culprit: culprit.sealed(opened.about, b"\x02\x00\x00\x00{]"), "not JSON"),
    "a head without end": (lambda opened, culprit: culprit.sealed(opened.about, b"\xff\xff\xff\xff"), "claims"),
    "JSON of something else": (lambda opened, culprit: culprit.sealed(opened.about, pack({"a": 1})), "short text"),
    "an unknown cause": (
        lambda opened, culprit: culprit.sealed(opened.about, pack({"failed": "x", "cause": "worker", "score": None})),
        "its cause is",
    ),
    "a packet of noise": (contents(lambda content: b"noise" * 50), "does not begin as a packet"),
    "no packet": (contents(lambda content: b""), "0 bytes"),
    "half a packet": (contents(lambda content: content[: len(content) // 2]), "cannot be read"),
    "no number": (arrays(lambda leaf: leaf * float("nan")), "NaN"),
    "infinity": (arrays(lambda leaf: leaf + float("inf")), "infinity"),
    "absurd numbers": (arrays(lambda leaf: leaf * 0 + 1e30), "numbers of"),
    "another type": (arrays(lambda leaf: leaf.double()), "float64"),
    "another shape": (arrays(lambda leaf: leaf.flatten()[:1]), "expected"),
    "too little": (packets(lambda packet: dataclasses.replace(packet, arrays={})), "missing"),
    "too much": (
        packets(lambda packet: dataclasses.replace(packet, arrays={**packet.arrays, "more": torch.zeros(9)})),
        "not declared",
    ),
    "another sender": (packets(lambda packet: dataclasses.replace(packet, sender=0)), "it is of client 0"),
    "a packet of another round": (packets(lambda packet: dataclasses.replace(packet, round=9)), "round 10"),
    "a packet of another phase": (packets(lambda packet: dataclasses.replace(packet, phase="x")), "phase 'x'"),
    "no weight": (packets(lambda packet: dataclasses.replace(packet, weight=0.0)), "weight"),
    "a negative weight": (packets(lambda packet: dataclasses.replace(packet, weight=-3.0)), "weight"),
    "too much weight": (packets(lambda packet: dataclasses.replace(packet, weight=1e9)), "at most 30"),
    "a weight that is none": (packets(lambda packet: dataclasses.replace(packet, weight=float("nan"))), "weight"),
    "an endless metric": (
        packets(lambda packet: dataclasses.replace(packet, metrics={"loss.task": float("inf")})),
        "finite",
    ),
    "steps that are none": (packets(lambda packet: dataclasses.replace(packet, metrics={"steps": -1.5})), "steps"),
}
