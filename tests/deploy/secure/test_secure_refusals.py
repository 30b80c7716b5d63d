"""Nobody gets what would unmask a single site, and a message that is not what the step asks for changes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_play import KEYS, PUBLIC, Play, Value, about_of

from fewfed.deploy.secure.fixed_point import OutOfRange
from fewfed.deploy.secure.layout import NoSum
from fewfed.deploy.secure.masks import Agreement
from fewfed.deploy.secure.messages import (
    Boxes,
    Confirmations,
    Confirmed,
    Deal,
    KeyRing,
    Keys,
    Kind,
    Masked,
    Revealed,
    Secret,
    Survivors,
    transcript,
)
from fewfed.deploy.secure.reveals import Reveals
from fewfed.deploy.secure.server import STEPS, SecureServer
from fewfed.deploy.secure.session import Session
from fewfed.deploy.secure.shares import SHARE_BYTES
from fewfed.deploy.secure.site import SecureSite
from fewfed.deploy.security.envelope import Refused
from fewfed.errors import ConfigError, RunError

NAMES = sorted(KEYS)[:5]
A, B, C, D, E = NAMES


def values(sites: int = 5) -> dict[str, Value]:
    return {
        name: (1.0 + place, {"model": torch.ones(2) * place, "change": {}}) for place, name in enumerate(NAMES[:sites])
    }


def play(until: Kind = Kind.KEYS, gone: dict[Kind, frozenset[str]] | None = None, **more: object) -> Play:
    return Play(values(), **more).until(until, gone)  # type: ignore[arg-type]


def why(function: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(Refused) as caught:
        function(*arguments)
    return str(caught.value)


# What a site refuses.


def invitation(**changes: object) -> bytes:
    return dataclasses.replace(play().session, **changes).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sites": (A, B), "threshold": 2}, "2 sites are to be summed"),
        ({"threshold": 2}, "more than half"),
        ({"threshold": 0}, "more than half"),
        ({"threshold": 6}, "more than half"),
        ({"sites": (B, C, D)}, "is not among the sites"),
        ({"sites": (A, B, "stranger")}, "'stranger' is not on this site's roster"),
    ],
)
def test_invitations_that_a_site_does_not_follow(changes: dict[str, object], told: str) -> None:
    content = invitation(**changes)
    assert told in why(SecureSite, content, about_of(Session.decode(content), A), A, KEYS[A], PUBLIC, Reveals())


def test_a_site_may_ask_for_more_than_a_majority() -> None:
    made = play()
    content, about = made.server.requests()[A], about_of(made.session, A)
    assert "at least 4" in why(SecureSite, content, about, A, KEYS[A], PUBLIC, Reveals(), 4)
    SecureSite(content, about, A, KEYS[A], PUBLIC, Reveals(), 3)


@pytest.mark.parametrize("other", [{"run": "run-2"}, {"round": 3}, {"phase": "tune"}, {"attempt": 1}])
def test_a_sum_of_other_work_than_is_asked_for_is_refused(other: dict[str, object]) -> None:
    """Else a server could have the same phase summed twice, for two groups of sites, under two names."""
    made = play()
    about = dataclasses.replace(about_of(made.session, A), **other)  # type: ignore[arg-type]
    told = why(SecureSite, made.server.requests()[A], about, A, KEYS[A], PUBLIC, Reveals())
    assert "another run, round, phase or attempt" in told


def test_sessions_that_cannot_be() -> None:
    for sites, threshold in ((NAMES[:2], None), (NAMES, 2), (NAMES, 6), ([f"s{n}" for n in range(101)], None)):
        with pytest.raises(ConfigError, match="expected"):
            Session.new("run", 0, "train", 0, sites, bytes(32), threshold)
    assert [Session.new("r", 0, "p", 0, NAMES[:n], bytes(32)).threshold for n in (3, 4, 5)] == [2, 3, 3]


def ring_of(made: Play) -> dict[str, Keys]:
    return dict(KeyRing.decode(made.server.requests()[A], made.session.digest).keys)


def test_keys_that_the_server_puts_under_are_refused() -> None:
    made = play(Kind.DEAL)
    session, ring = made.session.digest, ring_of(made)
    own = Agreement(), Agreement()
    forged = Keys.signed(own[0].public, own[1].public, session, B, KEYS[C])
    other_session = Keys.signed(own[0].public, own[1].public, bytes(32), B, KEYS[B])
    other_name = Keys.signed(own[0].public, own[1].public, session, C, KEYS[B])
    for odd in (forged, other_session, other_name, dataclasses.replace(ring[B], mask=own[0].public)):
        told = why(made.sites[A].answer, KeyRing({**ring, B: odd}).encode(session))
        assert told == f"the keys of site '{B}' are not signed by it"
    mine = Keys.signed(own[0].public, own[1].public, session, A, KEYS[A])
    assert "not its own" in why(made.sites[A].answer, KeyRing({**ring, A: mine}).encode(session))
    twice = Keys.signed(ring[C].box, ring[C].mask, session, B, KEYS[B])
    assert "the same" in why(made.sites[A].answer, KeyRing({**ring, B: twice}).encode(session))
    few = {name: ring[name] for name in (A, B)}
    assert "expected at least 3" in why(made.sites[A].answer, KeyRing(few).encode(session))
    without = {name: ring[name] for name in (B, C, D)}
    assert "this site is not among" in why(made.sites[A].answer, KeyRing(without).encode(session))
    made.to_the_end()  # None of it has done any harm.
    assert made.server.sums.sites == tuple(NAMES)


def test_a_key_with_which_everybody_agrees_is_refused() -> None:
    made = play()
    weak = Keys.signed(Agreement().public, bytes(32), made.session.digest, A, KEYS[A])
    made.answer(A, made.server.requests()[A])
    assert "none that can be used" in why(made.server.take, A, weak.encode(made.session.digest))


def test_a_site_gives_no_second_kind_of_share() -> None:
    """A server that has one kind of everybody's shares asks for the other kind."""
    made = play(Kind.REVEALED, {Kind.MASKED: frozenset({E})})
    session, site = made.session.digest, made.sites[A]
    request = made.server.requests()[A]
    given_shares = Revealed.decode(site.answer(request), session).shares
    assert {name: kind for name, (kind, _) in given_shares.items()} == {
        **dict.fromkeys((A, B, C, D), Secret.SELF),
        E: Secret.PAIR,
    }
    for message in (
        request,
        Survivors((A, C, D)).encode(session),
        Survivors((A, B, C, D, E)).encode(session),
        Confirmations({}).encode(session),
    ):
        assert "has revealed all that it reveals" in why(site.answer, message)


def test_a_site_signs_one_list_of_survivors() -> None:
    made = play(Kind.CONFIRMED)
    session, site = made.session.digest, made.sites[A]
    site.answer(Survivors((A, B, C)).encode(session))
    assert "expected 8, confirmations" in why(site.answer, Survivors((A, B, C, D)).encode(session))


@pytest.mark.parametrize(
    ("names", "told"),
    [((A, B), "expected at least 3"), ((B, C, D), "this site is not among"), ((A, B, C, E), "was not there before")],
)
def test_lists_of_survivors_that_cannot_be(names: tuple[str, ...], told: str) -> None:
    made = play(Kind.CONFIRMED, {Kind.DEAL: frozenset({E})})
    assert told in why(made.sites[A].answer, Survivors(names).encode(made.session.digest))


def test_sites_that_are_told_different_survivors_reveal_nothing() -> None:
    """Some are told that B's vector arrived and others that it did not: the server wants both kinds of B's shares."""
    made = play(Kind.CONFIRMED)
    session = made.session.digest
    lists = {A: (A, C, D, E), C: (A, C, D, E), D: (A, B, C, D, E), E: (A, B, C, D, E)}
    signatures = {
        name: Confirmed.decode(made.sites[name].answer(Survivors(lists[name]).encode(session)), session).signature
        for name in lists
    }
    for name in lists:
        among = {other: signatures[other] for other in lists}
        told = why(made.sites[name].answer, Confirmations(among).encode(session))
        assert "has not signed the list of survivors that this site was told" in told
        same = {other: signatures[other] for other in lists if lists[other] == lists[name]}
        assert "expected at least 3" in why(made.sites[name].answer, Confirmations(same).encode(session))


def test_confirmations_are_bound_to_keys_dealers_and_session() -> None:
    made = play(Kind.REVEALED)
    session = made.session.digest
    ring, dealers = KeyRing(made.server._ring), tuple(NAMES)
    other_ring = KeyRing({name: ring.keys[name] for name in (A, B, C)})
    for agreed in (
        transcript(bytes(32), ring, dealers, dealers),
        transcript(session, other_ring, dealers, dealers),
        transcript(session, ring, (A, B, C), dealers),
        transcript(session, ring, dealers, (A, B, C)),
    ):
        forged = {name: KEYS[name].sign(agreed) for name in (A, B, C)}
        assert "has not signed" in why(made.sites[A].answer, Confirmations(forged).encode(session))
    good = {name: KEYS[name].sign(transcript(session, ring, dealers, dealers)) for name in (A, B, C)}
    made.sites[A].answer(Confirmations(good).encode(session))


def test_the_same_phase_is_not_summed_for_another_group() -> None:
    """Two sums of the same values, with and without a site, differ by its value."""
    reveals = {name: Reveals() for name in NAMES}
    play(reveals=reveals).to_the_end()
    again = play(reveals=reveals, attempt=1).to_the_end()  # After a crash, with the same sites.
    assert again.server.sums.sites == tuple(NAMES)
    other = play(Kind.REVEALED, {Kind.MASKED: frozenset({E})}, reveals=reveals, attempt=2)
    request = other.server.requests()[A]
    for name in (A, B, C, D):
        assert "for another group of sites" in why(other.sites[name].answer, request)
    back = Reveals()
    back.restore(json.loads(json.dumps(reveals[A].as_json())))
    assert back.as_json() == reveals[A].as_json()


def test_what_was_revealed_is_forgotten_only_for_rounds_that_are_closed() -> None:
    reveals = Reveals(most=3)
    for round in range(10):
        reveals.note("run", round, "train", (A, B, C))
    assert "another group" in why(reveals.note, "run", 2, "train", (A, B, D))
    assert "another group" in why(reveals.note, "run", 9, "train", (A, B, D))
    reveals.note("run", 10, "train", (A, B, D))
    reveals.note("another run", 2, "train", (A, B, D))
    for odd in ({}, {"known": [[1]], "floors": []}, {"known": [], "floors": [1]}):
        with pytest.raises(RunError, match="cannot be read"):
            Reveals().restore(odd)


def test_a_site_gives_one_value_and_only_what_was_agreed_on() -> None:
    made = play(Kind.MASKED)
    site, request = made.sites[A], made.server.requests()[A]
    with pytest.raises(ValueError, match="call put before"):
        site.answer(request)
    other = Play({name: (1.0, {"model": torch.ones(3), "change": {}}) for name in NAMES})
    assert "other arrays" in why(site.put, other.layout, 1.0, {"model": torch.ones(3), "change": {}})
    with pytest.raises(OutOfRange, match="expected none beyond 16384"):
        site.put(made.layout, 1.0, {"model": torch.tensor([1.0, 1e9]), "change": {}})
    site.put(made.layout, 1.0, {"model": torch.ones(2), "change": {}})
    assert "already" in why(site.put, made.layout, 1.0, {"model": torch.zeros(2), "change": {}})


def test_boxes_of_somebody_else_are_not_opened_and_the_others_suffice() -> None:
    """A server that mixes up boxes gets vectors under masks, and no share that is not the holder's."""
    made = play(Kind.MASKED)
    session, requests = made.session.digest, made.server.requests()
    for_b = Boxes.decode(requests[B], session).dealt
    mixed = {**Boxes.decode(requests[A], session).dealt, C: for_b[C]}
    made.sites[A].put(made.layout, *made.values[A])
    answered = made.sites[A].answer(Boxes(mixed).encode(session))
    assert Masked.decode(answered, session).missing == (C,)
    made.server.take(A, answered)
    for name in NAMES[1:]:
        made.server.take(name, made.answer(name, requests[name]))
    made.server.close_step()
    made.to_the_end()
    assert made.server.complaints == {A: (C,)}
    assert made.server.sums.weight == 15.0


# What the server refuses.


@pytest.mark.parametrize("step", STEPS)
def test_messages_of_other_steps_sessions_and_sites_are_refused(step: Kind) -> None:
    made, other = play(step), play(step, attempt=1)
    requests, others = made.server.requests(), other.server.requests()
    good, strange = made.answer(A, requests[A]), other.answer(A, others[A])
    before = [content for received in made.received.values() for content in received.values()]
    told = {why(made.server.take, A, content) for content in (strange, *before)}
    assert any("another session" in each for each in told)
    for content in (b"", good[:-1], good + b"\0", good[: len(good) // 2], requests[A]):
        why(made.server.take, A, content)
    why(made.server.take, "stranger", good)
    assert made.server.waiting_for == tuple(NAMES)
    made.server.take(A, good)
    with pytest.raises(Refused, match="already") as caught:
        made.server.take(A, good)
    assert (caught.value.cause, caught.value.sender) == ("repeated", A)
    for name in NAMES[1:]:
        made.server.take(name, made.answer(name, requests[name]))
    made.server.close_step()
    made.to_the_end()
    assert made.server.sums.weight == 15.0  # A repeated vector would have counted twice.
    assert "not asked" in why(made.server.take, A, good)


def test_another_site_s_answer_is_not_taken() -> None:
    made = play()
    first = {name: made.answer(name, request) for name, request in made.server.requests().items()}
    assert "not signed by it" in why(made.server.take, A, first[B])
    made.server.take(B, first[B])
    same = ring = Keys.decode(first[B], made.session.digest)
    same = Keys.signed(ring.box, ring.mask, made.session.digest, A, KEYS[A])
    assert "another's" in why(made.server.take, A, same.encode(made.session.digest))


def test_a_site_that_fell_out_is_not_asked_again() -> None:
    made = play(Kind.MASKED, {Kind.DEAL: frozenset({B})})
    assert set(made.server.requests()) == {A, C, D, E}
    assert B not in Boxes.decode(made.server.requests()[A], made.session.digest).dealt
    assert "not asked" in why(made.server.take, B, b"")


def test_deals_for_others_than_those_on_the_ring_are_refused() -> None:
    made = play(Kind.DEAL)
    session = made.session.digest
    deal = Deal.decode(made.answer(A, made.server.requests()[A]), session)
    fewer = {name: dealt for name, dealt in deal.dealt.items() if name != B}
    assert "other sites" in why(made.server.take, A, dataclasses.replace(deal, dealt=fewer).encode(session))
    short = {**deal.dealt, B: dataclasses.replace(deal.dealt[B], box=b"short")}
    assert "its box for" in why(made.server.take, A, dataclasses.replace(deal, dealt=short).encode(session))


def test_a_vector_of_another_length_is_refused() -> None:
    made = play(Kind.MASKED)
    session = made.session.digest
    masked = Masked.decode(made.answer(A, made.server.requests()[A]), session)
    for vector in (masked.vector[:-8], masked.vector + bytes(8), masked.vector[:-1], b""):
        assert "its vector has" in why(made.server.take, A, dataclasses.replace(masked, vector=vector).encode(session))


def test_shares_that_were_not_dealt_are_refused_and_the_others_suffice() -> None:
    made = play(Kind.REVEALED, {Kind.MASKED: frozenset({E})})
    session, requests = made.session.digest, made.server.requests()
    revealed = Revealed.decode(made.answer(A, requests[A]), session)
    kind, share = revealed.shares[B]
    other_kind = Secret.PAIR if kind is Secret.SELF else Secret.SELF
    flipped = share[:-1] + bytes([share[-1] ^ 1])
    for odd, told in (
        ({B: (kind, flipped)}, "is not the one that"),
        ({B: (kind, bytes(SHARE_BYTES))}, "another site's"),
        ({B: (other_kind, share)}, "nobody asked for"),
        ({"stranger": (kind, share)}, "nobody asked for"),
        ({B: revealed.shares[C]}, "is not the one that"),
    ):
        assert told in why(made.server.take, A, Revealed({**revealed.shares, **odd}).encode(session))
    for name in (B, C, D):
        made.server.take(name, made.answer(name, requests[name]))
    made.server.close_step()
    assert made.server.sums.sites == (A, B, C, D)  # Three of five were enough.


def test_a_site_that_deals_badly_is_blamed_and_gives_no_sum() -> None:
    """Its shares fit the digests that it gave, but they are shares of something else."""
    made = play(Kind.DEAL)
    made.sites[B]._self_secret, real = bytes(32), made.sites[B]._self_secret
    requests = made.server.requests()
    for name in NAMES:
        answered = made.answer(name, requests[name])
        if name == B:
            made.sites[B]._self_secret = real
            deal = Deal.decode(answered, made.session.digest)
            answered = dataclasses.replace(deal, self_digest=b"\1" * 32).encode(made.session.digest)
        made.server.take(name, answered)
    made.server.close_step()
    with pytest.raises(NoSum, match="do not give its secret") as caught:
        made.to_the_end()
    assert caught.value.blamed == (B,)


def test_a_secret_of_which_too_few_have_shares_gives_no_sum_and_blames_nobody() -> None:
    made = play(Kind.DEAL)
    session = made.session.digest

    def spoiled(name: str, content: bytes) -> bytes:
        if name != B:
            return content
        deal = Deal.decode(content, session)
        boxes = {holder: dataclasses.replace(dealt, box=bytes(len(dealt.box))) for holder, dealt in deal.dealt.items()}
        return dataclasses.replace(deal, dealt=boxes).encode(session)

    made.step(change=spoiled)
    made.step()
    assert made.server.complaints == dict.fromkeys((A, C, D, E), (B,))
    with pytest.raises(NoSum, match=f"1 sites gave their share of what hides '{B}'") as caught:
        made.to_the_end()
    assert caught.value.blamed == ()


def test_a_share_that_is_not_what_its_dealer_says_is_not_kept() -> None:
    """The box opens, but a digest beside it is of something else: the holder says so, and the others suffice."""
    made = play(Kind.DEAL)
    session = made.session.digest

    def spoiled(name: str, content: bytes) -> bytes:
        if name != B:
            return content
        deal = Deal.decode(content, session)
        own, pair = deal.dealt[C].digests
        odd = dataclasses.replace(deal.dealt[C], digests=(own, pair[::-1]))
        return dataclasses.replace(deal, dealt={**deal.dealt, C: odd}).encode(session)

    made.step(change=spoiled)
    made.to_the_end()
    assert made.server.complaints == {C: (B,)}
    assert made.server.sums.weight == 15.0


@pytest.mark.parametrize("at", [0, -1])
def test_a_vector_that_no_honest_site_sends_spoils_the_sum_and_is_noticed(at: int) -> None:
    made = play(Kind.MASKED)
    session = made.session.digest

    def spoiled(name: str, content: bytes) -> bytes:
        if name != C:
            return content
        masked = Masked.decode(content, session)
        numbers = bytearray(masked.vector)
        place = (at % made.layout.length) * 8 + 7
        numbers[place] ^= 0x40
        return dataclasses.replace(masked, vector=bytes(numbers)).encode(session)

    made.step(change=spoiled)
    with pytest.raises(NoSum, match="did not keep to the protocol"):
        made.to_the_end()


def test_a_server_needs_the_layout_of_its_session() -> None:
    made = play()
    with pytest.raises(ValueError, match="another layout"):
        SecureServer(dataclasses.replace(made.session, layout=bytes(32)), made.layout, PUBLIC)


# What comes as bytes.


def good_messages() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    made = play().to_the_end({Kind.MASKED: frozenset({E})})
    session = made.session.digest
    decoders: dict[Kind, Callable[[bytes, bytes], object]] = {
        Kind.KEYS: Keys.decode,
        Kind.DEAL: Deal.decode,
        Kind.MASKED: Masked.decode,
        Kind.CONFIRMED: Confirmed.decode,
        Kind.REVEALED: Revealed.decode,
    }
    asked: dict[Kind, Callable[[bytes, bytes], object]] = {
        Kind.DEAL: KeyRing.decode,
        Kind.MASKED: Boxes.decode,
        Kind.CONFIRMED: Survivors.decode,
        Kind.REVEALED: Confirmations.decode,
    }
    found: dict[str, tuple[bytes, Callable[[bytes], object]]] = {"session": (made.sent[Kind.KEYS][A], Session.decode)}
    for kind, decode in decoders.items():
        found[kind.name] = (made.received[kind][A], lambda content, decode=decode: decode(content, session))  # type: ignore[misc]
    for kind, decode in asked.items():
        found[f"request {kind.name}"] = (made.sent[kind][A], lambda content, decode=decode: decode(content, session))  # type: ignore[misc]
    return found


GOOD = good_messages()


@pytest.mark.parametrize("name", GOOD)
def test_every_message_has_one_encoding_and_every_beginning_is_refused(name: str) -> None:
    content, decode = GOOD[name]
    found = decode(content)
    again = found.encode() if isinstance(found, Session) else found.encode(content[8:40])  # type: ignore[attr-defined]
    assert again == content
    for length in range(0, len(content), max(1, len(content) // 200)):
        why(decode, content[:length])
    why(decode, content + b"\0")


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_changed_messages_are_refused_or_mean_what_they_say(name: str, data: st.DataObject) -> None:
    content, decode = GOOD[name]
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        changed = changed or bytearray(1)
    try:
        found = decode(bytes(changed))
    except Refused:
        return
    again = found.encode() if isinstance(found, Session) else found.encode(bytes(changed[8:40]))  # type: ignore[attr-defined]
    assert again == bytes(changed)


def test_names_stand_in_order_and_once() -> None:
    head = GOOD["request CONFIRMED"][0][:40]
    for names in ((B, A), (A, A), (A, B, B), ("", A), ("../a", A), (A, "coordinator")):
        entries = b"".join(len(name).to_bytes(4, "little") + name.encode() for name in names)
        content = head + len(names).to_bytes(8, "little") + entries
        assert "names" in why(GOOD["request CONFIRMED"][1], content)


def test_a_list_that_claims_to_be_long_takes_no_memory() -> None:
    content, decode = GOOD["request DEAL"]
    told = why(decode, content[:40] + (1 << 62).to_bytes(8, "little") + content[48:])
    assert "at most 1000" in told
    content, decode = GOOD["MASKED"]
    told = why(decode, content[:48] + (1 << 40).to_bytes(8, "little") + content[56:])
    assert "at most" in told
    told = why(decode, content[:48] + (1 << 31).to_bytes(8, "little") + content[56:])
    assert "ends too early" in told
