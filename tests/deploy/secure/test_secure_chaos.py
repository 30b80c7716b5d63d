"""Whatever arrives in whatever order: a sum of honest vectors, or none; and never anything but a refusal."""

from __future__ import annotations

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_play import KEYS, Play, Value

from fewfed.deploy.secure.layout import NoSum
from fewfed.deploy.secure.messages import Kind
from fewfed.deploy.security.envelope import Refused

NAMES = sorted(KEYS)[:5]


def changed(content: bytes, draw: random.Random) -> bytes:
    """The same with some bytes altered, cut out or put in."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(made) + 1)
        made[place : place + draw.randrange(12)] = draw.randbytes(draw.randrange(12))
    return bytes(made)


def attempt(take: object, *arguments: object) -> bool:
    """Whether it was accepted; nothing but `Refused` may be raised."""
    try:
        take(*arguments)  # type: ignore[operator]
    except Refused:
        return False
    return True


def values() -> dict[str, Value]:
    return {
        name: (1.0 + place, {"model": torch.full((3,), float(place)), "change": {}}) for place, name in enumerate(NAMES)
    }


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.floats(0, 0.25))
def test_a_server_in_bad_company(seed: int, leaving: float) -> None:
    """Answers come in any order, with rubbish, repetitions and others' answers between them; some never come."""
    draw = random.Random(seed)
    play = Play(values())
    heard: list[bytes] = [b"", b"\0" * 100]
    arrived: list[str] = []
    try:
        while not play.server.is_done:
            step, requests, before = play.server.step, play.server.requests(), tuple(heard)
            for name in draw.sample(sorted(requests), len(requests)):
                if draw.random() < leaving:
                    continue
                answer = play.answer(name, requests[name])
                for _ in range(draw.randrange(3)):
                    # Another vector, or another digest, says the same to the server: that is what envelopes are for.
                    odd = [changed(answer, draw)] if step not in (Kind.MASKED, Kind.DEAL) else []
                    bad = draw.choice([*before, *odd])
                    sender = draw.choice([*NAMES, "stranger"])
                    assert not attempt(play.server.take, sender, bad) or sender not in requests or bad == answer
                play.server.take(name, answer)
                assert not attempt(play.server.take, name, answer)
                heard.append(answer)
                arrived += [name] if step is Kind.MASKED else []
            play.server.close_step()
    except NoSum:
        return
    sums = play.server.sums
    assert sums.sites == tuple(sorted(arrived))
    weights = [play.values[name][0] for name in sums.sites]
    total = sum(weight * (weight - 1.0) for weight in weights)
    assert sums.weight == sum(weights)
    assert torch.allclose(sums.values["model"], torch.full((3,), total / sum(weights)).double(), rtol=0, atol=1e-6)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_sites_with_a_bad_server(seed: int) -> None:
    """Before each honest request come changed and old ones. A site refuses them, or treats what it cannot open as
    missing; the sum is right nevertheless."""
    draw = random.Random(seed)
    play = Play(values())
    play.step()
    said: list[bytes] = [b""]
    while not play.server.is_done:
        step, requests = play.server.step, play.server.requests()
        said += requests.values()
        for name in sorted(requests):
            if step is Kind.MASKED:
                play.sites[name].put(play.layout, *play.values[name])
            else:
                for _ in range(draw.randrange(3)):
                    bad = draw.choice([changed(requests[name], draw), draw.choice(said[:-5])])
                    assert bad == requests[name] or not attempt(play.sites[name].answer, bad)
            play.server.take(name, play.sites[name].answer(requests[name]))
        play.server.close_step()
    assert play.server.sums.weight == 15.0
