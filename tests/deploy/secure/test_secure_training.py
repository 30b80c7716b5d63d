"""Methods train through secure sums as they train without: over whole rounds, and through signed envelopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pytest
import torch
from secure_play import KEYS, PUBLIC, Play, Value

from fewfed import tree
from fewfed.deploy.secure.layout import Layout, Limits, outline_of
from fewfed.deploy.secure.messages import Kind
from fewfed.deploy.secure.reveals import Reveals
from fewfed.deploy.secure.server import SecureServer
from fewfed.deploy.secure.session import Session
from fewfed.deploy.secure.site import SecureSite
from fewfed.deploy.secure.stand_ins import StandIns, stand_ins
from fewfed.deploy.security.envelope import Direction, Expected, seal, unseal
from fewfed.deploy.security.keys import SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.security.replay import Waiting
from fewfed.engine.combine import Combiner
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import is_inside
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import BadPacket, Packet, decode, encode
from fewfed.phase import Combine, Phase, Role, Upload
from fewfed.tree import Tree
from support import digits_federation, job_of, run

NAMES = sorted(KEYS)
LIMITS = Limits(value=2.0**20, weight=2.0**12)


def summed(phase: Phase, packets: list[Packet], check: partial[None], round: int, silent: str = "") -> StandIns:
    """The packets of a phase, summed under masks; the first site with a vector drops out before it reveals."""
    sites = {NAMES[packet.sender]: packet for packet in packets}
    values: dict[str, Value] = {name: (packet.weight, packet.arrays) for name, packet in sites.items()}
    first = packets[0].arrays
    layout = Layout.of(phase.uploads, outline_of(first), len(sites), LIMITS, "clear")
    extras = {
        name: encode(Packet(round, phase.name, packet.sender, 1.0, layout.in_clear(packet.arrays)))
        for name, packet in sites.items()
    }
    play = Play(values, phase.uploads, LIMITS, rest="clear", extras=extras)
    play.to_the_end({Kind.REVEALED: frozenset(list(sites)[:1])})
    clear = {name: dict(tree.leaves(decode(content).arrays)) for name, content in play.server.extras.items()}
    clear.pop(silent, None)
    numbers = {name: packet.sender for name, packet in sites.items()}
    return stand_ins(play.server.sums, play.layout, round, phase.name, numbers, check, clear, list(tree.hollows(first)))


class Masked(Sequential):
    """Clients in this process, whose packets are summed under masks before anybody combines them."""

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        outcomes = []
        for outcome in super().run(briefing, members):
            assert isinstance(outcome, Done)
            packet = outcome.packet
            kept = Packet(packet.round, packet.phase, packet.sender, packet.weight, tree.clone(packet.arrays))
            outcomes.append(kept)
        if is_inside(briefing.phase) or not outcomes[0].arrays:
            yield from map(Done, outcomes)
            return

        def check(packet: Packet) -> None:
            briefing.schema.check(packet, packet.sender)

        found = summed(briefing.phase, outcomes, partial(check), briefing.clock.round)
        assert not found.refused
        yield from map(Done, found.packets)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn", "flea", "ccvr(fedavg)", "fedproto"])
def test_methods_train_as_without_masks(method: str) -> None:
    job = job_of(method, digits_federation(clients=6))
    plain = run(job, rounds=2, cohort=4)
    masked = run(job, rounds=2, cohort=4, executor=Masked(job))
    compared = 0
    first, second = dict(tree.leaves(plain.server)), dict(tree.leaves(masked.server))
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        # Rounding of the first round is magnified by the training of the second.
        assert torch.allclose(leaf.double(), second[path].double(), rtol=1e-3, atol=1e-4), path
        compared += leaf.numel()
    assert compared > 100


UPLOADS: Mapping[str, Upload] = {
    "model": Upload(Combine.MEAN, Role.MODEL),
    "count": Upload(Combine.SUM, Role.COUNTS),
    "rows": Upload(Combine.CONCAT, Role.FEATURES, 1.0),
}


def packets(sites: int) -> list[Packet]:
    def arrays(place: int) -> Tree:
        model = {"w": torch.randn(3), "seen": torch.tensor(place), "none": {}}
        return {"model": model, "count": torch.tensor([place, 1]), "rows": torch.full((2, 2), float(place))}

    return [Packet(0, "train", place, 1.0 + place, arrays(place)) for place in range(sites)]


def phase() -> Phase:
    return Phase("train", job_of("fedavg").method, uploads=UPLOADS)


def combined(found: Iterable[Packet]) -> Tree:
    combiner = Combiner(phase(), 4)
    for packet in found:
        combiner.add(packet)
    return combiner.finish().values


def nothing_wrong(_packet: Packet) -> None:
    return None


def test_stand_ins_combine_to_what_the_packets_would() -> None:
    plain = packets(4)
    made = summed(phase(), plain, partial(nothing_wrong), 0)
    assert [packet.sender for packet in made.packets] == [0, 1, 2, 3]
    expected, found = combined(plain), combined(made.packets)
    assert torch.allclose(found["model"]["w"], expected["model"]["w"], rtol=0, atol=1e-6)
    assert found["model"]["seen"] == expected["model"]["seen"] == 3  # A counter, sent as it is: the largest.
    assert found["model"]["none"] == {}
    assert list(found["model"]) == list(expected["model"])
    assert found["count"].tolist() == expected["count"].tolist() == [6, 4]
    assert torch.equal(found["rows"], expected["rows"])


def test_stand_ins_say_nothing_of_single_sites() -> None:
    made = summed(phase(), packets(4), partial(nothing_wrong), 0).packets
    assert {packet.weight for packet in made} == {2.5}
    assert all(torch.equal(packet.arrays["model"]["w"], made[0].arrays["model"]["w"]) for packet in made)
    assert [packet.arrays["count"].tolist() for packet in made] == [[6, 4], [0, 0], [0, 0], [0, 0]]


def test_a_site_without_what_cannot_be_summed_is_refused() -> None:
    made = summed(phase(), packets(4), partial(nothing_wrong), 0, silent=NAMES[1])
    assert made.refused.keys() == {NAMES[1]}
    assert "it lacks 'model/seen'" in made.refused[NAMES[1]]
    assert combined(made.packets)["count"].tolist() == [6, 4]


def test_a_site_with_bad_rows_does_not_take_the_sum_with_it() -> None:
    def check(packet: Packet) -> None:
        if packet.sender in (0, 2):
            raise BadPacket("its rows are odd")

    made = summed(phase(), packets(4), partial(check), 0)
    assert made.refused == {NAMES[0]: "its rows are odd", NAMES[2]: "its rows are odd"}
    assert [packet.sender for packet in made.packets] == [1, 3]
    assert combined(made.packets)["count"].tolist() == [6, 4]


def test_a_session_through_signed_envelopes_with_every_request_twice() -> None:
    """The coordinator sends each request twice, and each reply arrives twice: the site works once, one reply counts."""
    coordinator = SigningKey.new()
    sites = NAMES[:4]
    values: dict[str, Value] = {name: (2.0, {"model": torch.randn(4)}) for name in sites}
    uploads = {"model": Upload(Combine.MEAN, Role.MODEL)}
    layout = Layout.of(uploads, outline_of(values[sites[0]][1]), 4, Limits())
    server = SecureServer(Session.new("run-9", 3, "train", 0, sites, layout.digest), layout, PUBLIC)
    waiting = Waiting(PUBLIC)
    answered: dict[tuple[str, str], bytes] = {}
    parts: dict[str, SecureSite] = {}
    worked = 0

    def at_site(name: str, content: bytes) -> bytes:
        nonlocal worked
        expected = Expected(direction=Direction.REQUEST, recipient=name, sender=COORDINATOR, run="run-9")
        request = unseal(content, expected, {COORDINATOR: coordinator.public})
        answer = answered.get((name, request.about.kind))
        if answer is None:
            worked += 1
            if request.about.kind == "secure keys":
                parts[name] = SecureSite(request.body, request.about, name, KEYS[name], PUBLIC, Reveals())
                parts[name].put(layout, *values[name])
                answer = parts[name].keys()
            else:
                answer = parts[name].answer(request.body)
            answered[name, request.about.kind] = answer
        return seal(answer, request.about.reply(), KEYS[name])

    while not server.is_done:
        kind = f"secure {server.step.name.lower()}"
        for name, body in server.requests().items():
            about = waiting.ask(name, "run-9", 3, "train", kind)
            sealed = seal(body, about, coordinator)
            replies = [at_site(name, sealed) for _ in range(2)]
            assert replies[0] == replies[1]
            server.take(name, waiting.take(name, replies[0]).body)
            with pytest.raises(Exception, match="answered already"):
                waiting.take(name, replies[1])
        server.close_step()
    assert worked == 4 * 5
    mean = sum(arrays["model"].double() for _, arrays in values.values()) / 4
    assert torch.allclose(server.sums.values["model"], mean, rtol=0, atol=1e-9)
