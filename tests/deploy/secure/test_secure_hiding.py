"""What the server sees of a single site says nothing of its value, and the sum is what hands would compute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from secure_by_hand import total_by_hand, x25519
from secure_play import KEYS, Play, Value

from fewfed.deploy.secure.masks import add_mask, derived, from_bytes
from fewfed.deploy.secure.messages import Kind, Masked
from fewfed.deploy.secure.shares import join, split

NAMES = sorted(KEYS)
FAR = 9.0
"""Standard deviations beyond which a test of chance fails: never by chance."""


def unusual(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """How many standard deviations Pearson's statistic is above what chance gives."""
    degrees = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


def of_bytes(content: bytes) -> float:
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    return unusual(counts, len(content) / 256)


def masked_of(value: torch.Tensor, weight: float = 100.0) -> bytes:
    """What the server receives of one site in a session of its own."""
    values: dict[str, Value] = {name: (50.0, {"model": torch.zeros_like(value), "change": {}}) for name in NAMES[:3]}
    values[NAMES[0]] = (weight, {"model": value, "change": {}})
    play = Play(values).until(Kind.CONFIRMED)
    return Masked.decode(play.received[Kind.MASKED][NAMES[0]], play.session.digest).vector


NUMBERS = 1 << 16
VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(NUMBERS),
    "the largest": lambda: torch.full((NUMBERS,), 16384.0),
    "the smallest": lambda: torch.full((NUMBERS,), -16384.0),
    "a model": lambda: torch.randn(NUMBERS) * 0.05,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_masked_vector_is_uniform_whatever_the_value(name: str) -> None:
    vector = masked_of(VALUES[name]())
    assert of_bytes(vector) < FAR
    numbers = np.frombuffer(vector, "<u8")
    for shift in (0, 8, 29, 48, 56):  # Each byte of the numbers for itself: high ones carry the value, low ones noise.
        counts = np.bincount((numbers >> np.uint64(shift)).astype(np.uint8), minlength=256)
        assert unusual(counts, len(numbers) / 256) < FAR
    # Neighbours are as independent as bytes.
    pairs = (numbers[:-1] - numbers[1:]) >> np.uint64(56)
    assert unusual(np.bincount(pairs.astype(np.uint8), minlength=256), len(pairs) / 256) < FAR


def test_the_plain_vector_would_fail_this_test() -> None:
    """The test has teeth: what is masked here is far from uniform before."""
    values: dict[str, Value] = {name: (100.0, {"model": torch.randn(NUMBERS), "change": {}}) for name in NAMES[:3]}
    play = Play(values)
    plain = play.layout.write(*values[NAMES[0]]).tobytes()
    assert of_bytes(plain) > 1000 * FAR


def test_two_values_look_the_same_in_two_samples() -> None:
    """As many numbers of one value as of the other fall into each of 256 parts of the range, up to chance."""
    first, second = (
        np.bincount((np.frombuffer(masked_of(value), "<u8") >> np.uint64(56)).astype(np.uint8), minlength=256)
        for value in (torch.zeros(NUMBERS), torch.full((NUMBERS,), 12345.678))
    )
    both = (first + second) / 2
    statistic = float((((first - both) ** 2 + (second - both) ** 2) / both).sum())
    assert (statistic - 255) / math.sqrt(2 * 255) < FAR


def test_a_masked_vector_does_not_follow_the_value() -> None:
    """Over many numbers, the masked one and the plain one are not correlated."""
    value = torch.randn(NUMBERS) * 1000
    masked = np.frombuffer(masked_of(value), "<i8")[:-1].astype(np.float64)
    assert abs(np.corrcoef(masked, value.numpy())[0, 1]) * math.sqrt(NUMBERS) < FAR


def test_the_weight_is_hidden_like_the_values() -> None:
    """The last number of 160 sessions is the weight under its mask: its highest bits are evenly spread."""
    tops: Counter[int] = Counter()
    for number in range(160):
        vector = masked_of(torch.zeros(1), weight=1.0 + number % 2)
        tops[int(np.frombuffer(vector, "<u8")[-1] >> np.uint64(60))] += 1
    assert unusual(np.array([tops[each] for each in range(16)]), 10.0) < FAR


def test_the_same_value_is_masked_anew_in_every_session() -> None:
    value = torch.ones(1000)
    first, second = (np.frombuffer(masked_of(value), "<u8") for _ in range(2))
    assert not (first == second).any()


def test_all_but_the_last_mask_do_not_help() -> None:
    """A server that has every secret of every other site still sees a uniform vector: the site's own mask is left."""
    values: dict[str, Value] = {name: (50.0, {"model": torch.zeros(NUMBERS), "change": {}}) for name in NAMES[:3]}
    play = Play(values).until(Kind.CONFIRMED)
    victim = play.sites[NAMES[0]]
    vector = from_bytes(
        Masked.decode(play.received[Kind.MASKED][NAMES[0]], play.session.digest).vector, play.layout.length
    ).copy()
    for other in NAMES[1:3]:
        mask = play.sites[other]._mask
        public = play.server._ring[NAMES[0]].mask
        key = mask.key_with(public, play.session.digest, "pair mask", (NAMES[0], other))
        add_mask(vector, key, -1)
    assert of_bytes(vector.tobytes()) < FAR
    add_mask(vector, derived(victim._self_secret, play.session.digest, "self mask", NAMES[0]), -1)
    assert not vector[:-1].any()  # With it, and only with it, the zeros appear.


def test_shares_below_the_threshold_say_nothing() -> None:
    """Two of three needed shares are uniform for every secret, alone and together, and do not give it."""
    for secret in (bytes(32), b"\xff" * 32):
        singles, together = bytearray(), bytearray()
        for _ in range(200):
            shares = split(secret, 3, 5)
            singles += shares[1][4:36]
            together += bytes(a ^ b for a, b in zip(shares[1][4:36], shares[3][4:36], strict=True))
            assert join({1: shares[1], 3: shares[3]}, 3) is None
            assert join({1: shares[1], 3: shares[3]}, 2) != secret
            assert join({0: shares[0], 1: shares[1], 3: shares[3]}, 3) == secret
        assert of_bytes(bytes(singles)) < FAR
        assert of_bytes(bytes(together)) < FAR


@pytest.mark.parametrize(
    ("gone", "late"),
    [((), ()), ((), (NAMES[2],)), ((NAMES[1],), ()), ((NAMES[1],), (NAMES[2],)), ((NAMES[0], NAMES[4]), ())],
)
def test_unmasking_by_hand_gives_the_same_sum(gone: tuple[str, ...], late: tuple[str, ...]) -> None:
    values: dict[str, Value] = {
        name: (10.0 + place, {"model": torch.randn(5), "change": {"x": torch.randn(2)}})
        for place, name in enumerate(NAMES[:5])
    }
    play = Play(values).to_the_end({Kind.MASKED: frozenset(gone), Kind.REVEALED: frozenset(late)})
    found = total_by_hand(
        play.sent[Kind.KEYS][NAMES[0]],
        play.received[Kind.KEYS],
        sorted(play.received[Kind.DEAL]),
        play.received[Kind.MASKED],
        play.received[Kind.REVEALED],
        play.session.threshold,
        play.layout.length,
    )
    survivors = [name for name in NAMES[:5] if name not in gone]
    plain = np.zeros(play.layout.length, np.uint64)
    for name in survivors:
        plain += play.layout.write(*values[name])
    assert found == plain.tolist()
    sums = play.server.sums
    signed = np.array(found, np.uint64).view(np.int64)
    assert sums.weight == signed[-1] / 2**play.layout.weight.bits == sum(values[name][0] for name in survivors)
    by_hand = signed[2:-1] / 2.0 ** play.layout.places[1].numbers.bits / sums.weight
    assert np.allclose(sums.values["model"].numpy(), by_hand, rtol=0, atol=1e-15)


def test_x25519_by_hand_is_that_of_rfc_7748() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert x25519(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
