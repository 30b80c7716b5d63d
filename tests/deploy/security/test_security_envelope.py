"""Envelopes: one encoding, everything signed, and what is not as it should be is refused with the true reason."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewfed.deploy.security.envelope import (
    VERSION,
    About,
    Direction,
    Expected,
    Refused,
    new_nonce,
    seal,
    unseal,
)
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.security.names import COORDINATOR

EXAMPLES = int(os.environ.get("FEWFED_FUZZ", "500"))
thorough = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == 500)

KEYS = {name: SigningKey.new() for name in (COORDINATOR, "a", "b")}
PUBLIC: dict[str, PublicKey] = {name: key.public for name, key in KEYS.items()}
ABOUT = About("run-1", 4, "train", "work", 0, Direction.REPLY, "a", COORDINATOR, bytes(range(16)))
ANY = Expected()

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=40)
ABOUTS = st.builds(
    About,
    run=TEXTS,
    round=st.integers(0, 2**63 - 1),
    phase=st.one_of(st.just(""), TEXTS),
    kind=st.one_of(st.just(""), TEXTS),
    attempt=st.integers(0, 2**32 - 1),
    direction=st.sampled_from(Direction),
    sender=st.sampled_from(sorted(KEYS)),
    recipient=TEXTS,
    nonce=st.binary(min_size=16, max_size=16),
)


def refused(content: bytes, expected: Expected = ANY, **more: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        unseal(content, expected, PUBLIC, **more)
    return caught.value


def by_hand(about: About, body: bytes, version: int = VERSION) -> bytes:
    """An envelope written from the page that describes it, and signed."""
    front = b"FEWFEDEN" + struct.pack("<BBQI", version, about.direction, about.round, about.attempt) + about.nonce
    front += struct.pack("<Q", len(body)) + hashlib.sha256(body).digest()
    for text in (about.run, about.phase, about.kind, about.sender, about.recipient):
        front += struct.pack("<H", len(text.encode())) + text.encode()
    return front + KEYS[about.sender].sign(b"fewfed signed envelope\x00" + front) + body


@thorough
@given(ABOUTS, st.binary(max_size=200))
def test_what_is_sealed_comes_out_and_has_one_encoding(about: About, body: bytes) -> None:
    sealed = seal(body, about, KEYS[about.sender])
    opened = unseal(sealed, Expected.exactly(about), PUBLIC)
    assert (opened.about, opened.body, opened.digest) == (about, body, hashlib.sha256(body).digest())
    assert sealed == by_hand(about, body)
    assert seal(opened.body, opened.about, KEYS[about.sender]) == sealed


@thorough
@given(ABOUTS, st.binary(max_size=60), st.data())
def test_an_altered_byte_a_cut_and_an_addition_are_refused(about: About, body: bytes, data: st.DataObject) -> None:
    sealed = seal(body, about, KEYS[about.sender])
    place, change = data.draw(st.integers(0, len(sealed) - 1)), data.draw(st.integers(1, 255))
    refused(sealed[:place] + bytes([sealed[place] ^ change]) + sealed[place + 1 :])
    refused(sealed[:place])
    refused(sealed + data.draw(st.binary(min_size=1, max_size=5)))


def test_every_single_byte_counts() -> None:
    sealed = seal(b"a body", ABOUT, KEYS["a"])
    for place in range(len(sealed)):
        for bit in (1, 128):
            refused(sealed[:place] + bytes([sealed[place] ^ bit]) + sealed[place + 1 :])


OTHERS: dict[str, Any] = {
    "run": "run-2",
    "round": 5,
    "phase": "evaluate",
    "kind": "score",
    "attempt": 1,
    "direction": Direction.REQUEST,
    "sender": "b",
    "recipient": "b",
    "nonce": bytes(16),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_of_anything_is_refused_and_named(name: str) -> None:
    other = dataclasses.replace(ABOUT, **{name: OTHERS[name]})
    error = refused(seal(b"x", other, KEYS[other.sender]), Expected.exactly(ABOUT))
    assert error.cause == name
    assert error.sender == other.sender
    assert name in str(error) or name == "direction"
    # The same envelope is taken where it is expected.
    assert unseal(seal(b"x", other, KEYS[other.sender]), Expected.exactly(other), PUBLIC).body == b"x"


def test_what_cannot_be_blamed_on_anybody_is_blamed_on_nobody() -> None:
    forged = seal(b"x", ABOUT, KEYS["b"])
    error = refused(forged)
    assert (error.cause, error.sender) == ("signature", "")
    stranger = seal(b"x", dataclasses.replace(ABOUT, sender="mallory"), SigningKey.new())
    error = refused(stranger)
    assert (error.cause, error.sender) == ("sender", "")
    assert "'mallory'" in str(error)


def test_a_signature_of_one_envelope_does_not_fit_another() -> None:
    one, two = (seal(body, ABOUT, KEYS["a"]) for body in (b"one", b"two"))
    front = len(one) - 3 - 64
    assert refused(two[:front] + one[front : front + 64] + two[-3:]).cause == "signature"
    assert refused(one[:-3] + b"two").cause == "body"
    for content, length in ((one[:-1], 2), (one + b"!", 4)):
        error = refused(content)
        assert (error.cause, str(error)) == ("body", f"its body has {length} bytes: expected the 3 that were signed")


def test_sizes_are_looked_at_first() -> None:
    sealed = seal(bytes(1000), ABOUT, KEYS["a"])
    assert refused(sealed, most_bytes=999).cause == "size"
    claimed = bytearray(sealed)
    claimed[78:80] = b"\xff\xff"  # The length of the first text.
    assert "claims 65535 bytes" in str(refused(bytes(claimed)))


def test_any_beginning_is_refused() -> None:
    sealed = seal(b"body", ABOUT, KEYS["a"])
    for length in range(len(sealed)):
        refused(sealed[:length])


def test_another_version_is_named() -> None:
    error = refused(by_hand(ABOUT, b"x", version=2))
    assert (error.cause, "version 2" in str(error)) == ("version", True)


@pytest.mark.parametrize(
    "odd",
    [
        {"run": ""},
        {"run": "a\nb"},
        {"phase": "\x1b[31m"},
        {"kind": "x" * 301},
        {"sender": ""},
        {"recipient": "\ud800"},
        {"round": -1},
        {"round": 2**63},
        {"attempt": 2**32},
        {"nonce": b"short"},
    ],
)
def test_what_cannot_be_written_is_not(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"its|no run"):
        seal(b"x", dataclasses.replace(ABOUT, **odd), KEYS["a"])


@pytest.mark.parametrize(
    "odd", [{"run": ""}, {"run": "a\nb"}, {"phase": "\x1b[31m"}, {"kind": "x" * 301}, {"round": 2**63}]
)
def test_what_nobody_would_write_is_refused_even_if_it_is_signed(odd: dict[str, Any]) -> None:
    assert refused(by_hand(dataclasses.replace(ABOUT, **odd), b"x")).cause == "form"


def test_text_that_is_none_is_refused() -> None:
    sealed = seal(b"x", ABOUT, KEYS["a"])
    assert refused(sealed.replace(b"train", b"\xff\xfe\xff\xfe\xff")).cause == "form"


@thorough
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(content: bytes) -> None:
    refused(content)
    refused(b"FEWFEDEN\x01" + content)


def test_a_reply_goes_back_with_the_same_nonce() -> None:
    request = About("run", 0, "train", "work", 0, Direction.REQUEST, COORDINATOR, "a", new_nonce())
    reply = request.reply()
    assert (reply.sender, reply.recipient, reply.direction) == ("a", COORDINATOR, Direction.REPLY)
    assert (reply.nonce, reply.run, reply.round) == (request.nonce, "run", 0)
    assert len({new_nonce() for _ in range(1000)}) == 1000
