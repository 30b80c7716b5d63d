"""Where an upload goes: what other clients are later sent of it, and how long the server keeps it.

Nobody declares that, and nobody need read the method's code for it: rounds are played through with stand-ins, once as
they are and once with one upload of one client changed. Whatever is different afterwards, the server made of that
upload. Everybody else's packets are the same both times, so that nothing is counted which other sites made of it.
Training inside the server is not repeated: what comes out of it counts as changed if anything went in that is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine import asking
from fewfed.engine.blank import untrained_report
from fewfed.engine.combine import Combiner
from fewfed.engine.job import Job, is_inside, members_of
from fewfed.engine.packet import BadPacket, Packet, packet_of
from fewfed.engine.rehearsal import telling_rounds
from fewfed.engine.turn import Member
from fewfed.errors import RunError, told
from fewfed.method import Combined
from fewfed.phase import Clock, Phase, Upload
from fewfed.privacy.stand_ins import varied
from fewfed.tree import Tree

HORIZON = 12
"""Rounds that are played from the one on in which an upload is changed."""
_PLAYERS = 3
_WATCHED = 0
"""The client one of whose uploads is changed. It takes no part in the rounds after that."""
_STRENGTHS = (0.01, 2.0, 100.0, -0.99)
"""How much an upload is changed, in its own size."""
_TELLING, _ALIKE = 16, 0.99
"""Of how many numbers rows must be, and how correlated, so that one is taken for the other in fewer bits."""
_LARGE = 4_000_000
"""Bytes of a packet whose uploads are changed more only where a smaller change shows nothing: that is no rank."""
_SETTLED = 2
"""From this round on, what clients hand over looks alike, and is made once."""


@dataclass(frozen=True)
class Reach:
    """Something that other clients receive and that was made of an upload."""

    entry: str
    """Of the broadcast, or of what single clients receive."""
    phase: str
    """In which it is received."""
    alone: bool
    """Whether single clients receive it, and not all members of the phase."""
    as_it_is: bool
    """Whether the upload, or rows of it, are in it unchanged."""
    first: int
    """How many rounds later it is received: 0 in the same round."""
    last: int | None
    """For the last time; None where no end was seen."""


@dataclass(frozen=True)
class Flow:
    """What becomes of one upload."""

    reaches: tuple[Reach, ...]
    kept: int | None
    """After how many further rounds nothing of it is left at the server: 0 says that nothing is after its own round;
    None where no end was seen."""


@dataclass(frozen=True)
class Passed:
    """One phase of one round of a play."""

    clock: Clock
    phase: Phase
    before: Tree
    """The server's tree."""
    shared: Tree
    personal: Mapping[int, Tree]
    states: Mapping[int, Tree]
    """What members remember."""
    packets: Mapping[int, Packet]
    after: Tree


@dataclass(frozen=True)
class Watched:
    """What is to be changed: an upload of the first round that has it."""

    round: int
    phase: str
    name: str


@dataclass
class Plays:
    """Plays of a job with stand-ins."""

    job: Job
    rounds: int
    _known: dict[int, list[Passed]] = field(default_factory=dict)

    def first(self) -> list[Passed]:
        """The play in which the first round is watched: it has every phase there is."""
        return self.play(0)

    def play(self, watched: int) -> list[Passed]:
        """All that passes; clients are drawn so that an upload of that round can be followed."""
        if watched not in self._known:
            self._known[watched] = list(_play(self.job, self._clocks(watched), watched))
        return self._known[watched]

    def flow(self, watched: Watched) -> Flow:
        """What becomes of an upload. Raises `RunError` where the method cannot do with such uploads.

        It is changed a little, and in another play much: what only decides an order, or is compared with something,
        shows nothing of a small change, and a method may not survive a large one.
        """
        base = self.play(watched.round)
        start = next(
            position
            for position, passed in enumerate(base)
            if (passed.clock.round, passed.phase.name) == (watched.round, watched.phase)
        )
        found = [_followed(self.job, base, start, watched, _STRENGTHS[0])]
        large = tree.nbytes(base[start].packets[_WATCHED].arrays) > _LARGE
        for strength in _STRENGTHS[1:]:
            if large and found[-1].reaches:
                break
            with contextlib.suppress(RunError):
                found.append(_followed(self.job, base, start, watched, strength))
        return _joined(found)

    def _clocks(self, watched: int) -> list[Clock]:
        telling = {clock.round for clock in telling_rounds(self.job, self.rounds)}
        after = {number + 1 for number in telling}
        numbers = telling | after | set(range(watched, watched + HORIZON))
        return [Clock(n, self.rounds, self.job.training.epochs) for n in sorted(numbers) if n < self.rounds]


def _play(job: Job, clocks: Iterable[Clock], watched: int) -> Iterator[Passed]:
    players = list(range(min(_PLAYERS, len(job.federation))))
    server, first = asking.server_init(job), asking.client_init(job)
    states: dict[int, Tree] = {}
    alike: dict[tuple[Any, ...], dict[int, tuple[Packet, Tree]]] = {}
    for clock in clocks:
        drawn = players if clock.round <= watched else (players[1:] or players)
        for phase in asking.phases(job, clock):
            shared = asking.broadcast(job.method, phase, server)
            members = members_of(phase, drawn, len(players))
            personal = {client: asking.personal(job.method, phase, server, client) for client in members}
            held = {client: states.get(client, first) for client in members}
            key = (phase.name, *phase.uploads, *members)
            results = alike.get(key) or {
                client: _handed_over(job, phase, clock, shared, Member(client, personal[client], held[client]))
                for client in members
            }
            if clock.round >= _SETTLED:
                alike[key] = results
            if phase.keeps_state:
                states |= {client: state for client, (_, state) in results.items()}
            packets = {client: packet for client, (packet, _) in results.items()}
            after = asking.absorb(job.method, phase, server, _combined(job, phase, packets))
            yield Passed(clock, phase, server, shared, personal, held, packets, after)
            server = after


def _handed_over(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member) -> tuple[Packet, Tree]:
    try:
        data = job.federation.examples(max(0, member.client))
        report = untrained_report(job, phase, clock, shared, member, data)
        packet = packet_of(report, clock.round, phase.name, member.client)
        if packet.arrays.keys() != phase.uploads.keys():
            raise BadPacket(f"it uploads {', '.join(packet.arrays)}: expected {', '.join(phase.uploads)}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RunError(
            f"method '{job.method.label}', phase '{phase.name}' cannot be tried out without data: {told(error)}"
        ) from error
    return _changed(job, phase, packet, phase.uploads, clock.round, _STRENGTHS[0]), report.state


def _changed(job: Job, phase: Phase, packet: Packet, names: Iterable[str], seed: int, strength: float) -> Packet:
    """A packet in which some uploads are others."""
    arrays = dict(packet.arrays)
    for number, name in enumerate(names):
        own = 1000 * seed + 10 * packet.sender + number
        arrays[name] = varied(phase.uploads[name], {name: arrays[name]}, job.task.outputs, own, strength)[name]
    return Packet(packet.round, packet.phase, packet.sender, packet.weight, arrays, packet.metrics)


def _combined(job: Job, phase: Phase, packets: Mapping[int, Packet]) -> Combined:
    combiner = Combiner(phase, len(job.federation))
    for client in sorted(packets):
        combiner.add(packets[client])
    return combiner.finish()


def _followed(job: Job, base: list[Passed], start: int, watched: Watched, strength: float) -> Flow:
    origin = base[start]
    changed = _changed(job, origin.phase, origin.packets[_WATCHED], [watched.name], 77 + watched.round, strength)
    if _equal({"": changed.arrays[watched.name]}, {"": origin.packets[_WATCHED].arrays[watched.name]}):
        rows = len(job.federation.examples(_WATCHED))
        raise RunError(f"a stand-in with {rows} rows sends nothing in it that could be followed")
    packets = {**origin.packets, _WATCHED: changed}
    server = asking.absorb(job.method, origin.phase, origin.before, _combined(job, origin.phase, packets))
    sent = _Sent(origin.phase.uploads[watched.name], {watched.name: changed.arrays[watched.name]})
    found: list[_Arrival] = []
    kept, last = 0, watched.round
    alive = not _equal(server, origin.after)
    for passed in base[start + 1 :]:
        later = passed.clock.round - watched.round
        if alive and passed.clock.round != last:
            kept = later
        last = passed.clock.round
        if not alive:
            break
        phase = passed.phase
        shared = asking.broadcast(job.method, phase, server)
        inside = is_inside(phase)
        if not inside:
            found += _arrivals(passed, later, sent, shared, _personal(job, passed, server))
        packets = dict(passed.packets)
        if inside and not _equal(shared, passed.shared):
            packets = _inside(job, passed, shared)
        server = asking.absorb(job.method, phase, server, _combined(job, phase, packets))
        alive = not _equal(server, passed.after)
    end = base[-1].clock.round - watched.round
    return Flow(_summed(found, end), None if alive else kept)


def _personal(job: Job, passed: Passed, server: Tree) -> dict[int, Tree]:
    others = [client for client in passed.personal if client != _WATCHED]
    return {client: asking.personal(job.method, passed.phase, server, client) for client in others}


def _inside(job: Job, passed: Passed, shared: Tree) -> dict[int, Packet]:
    """What a phase inside the server comes to, where it was given something else."""
    packets = {}
    for client, packet in passed.packets.items():
        if passed.phase.epochs:
            packets[client] = _changed(job, passed.phase, packet, passed.phase.uploads, 99, _STRENGTHS[0])
        else:
            member = Member(client, passed.personal[client], asking.client_init(job))
            packets[client], _ = _handed_over(job, passed.phase, passed.clock, shared, member)
    return packets


@dataclass(frozen=True)
class _Sent:
    """The upload that is followed."""

    upload: Upload
    value: Tree

    def is_in(self, entry: Any) -> bool:
        """Whether it, or one of its rows, is in something unchanged, or in fewer bits alone. A mean or a sum of several
        never is."""
        if not self.upload.combine.seen_raw:
            return False
        arrived = [("", entry)] if isinstance(entry, Tensor) else list(tree.leaves(entry))
        own = [leaf for _, leaf in tree.leaves(self.value) if leaf.numel()]
        rows = self.upload.rows > 0
        return any(
            _holds(theirs, leaf, rows) or (rows and (_resembles(theirs, leaf) or self._is_some(path, theirs, leaf)))
            for leaf in own
            for path, theirs in arrived
        )

    def _is_some(self, path: str, theirs: Tensor, leaf: Tensor) -> bool:
        """Whether single numbers, such as labels, arrived under the upload's own name: some of them in another order
        look like that, and which number is whose cannot be told."""
        alike = leaf.dim() == theirs.dim() == 1 and leaf.dtype == theirs.dtype
        return alike and path.rpartition("/")[2] in self.value and bool(torch.isin(theirs, leaf).any())


@dataclass(frozen=True)
class _Arrival:
    entry: str
    phase: str
    alone: bool
    as_it_is: bool
    later: int


def _arrivals(
    passed: Passed, later: int, sent: _Sent, shared: Tree, personal: Mapping[int, Tree]
) -> Iterator[_Arrival]:
    """What other members of a phase receive that is not what it was."""
    for name in _different(shared, passed.shared):
        yield _Arrival(name, passed.phase.name, False, name in shared and sent.is_in(shared[name]), later)
    for client, received in personal.items():
        for name in _different(received, passed.personal[client]):
            yield _Arrival(name, passed.phase.name, True, name in received and sent.is_in(received[name]), later)


def _summed(found: list[_Arrival], end: int) -> tuple[Reach, ...]:
    groups: dict[tuple[str, str, bool, bool], list[int]] = {}
    for each in found:
        groups.setdefault((each.entry, each.phase, each.alone, each.as_it_is), []).append(each.later)
    return tuple(
        Reach(*key, first=min(later), last=max(later) if max(later) < end else None) for key, later in groups.items()
    )


def _joined(flows: list[Flow]) -> Flow:
    """What any of several plays has shown."""
    ends: dict[Reach, list[Reach]] = {}
    for reach in (reach for flow in flows for reach in flow.reaches):
        ends.setdefault(dataclasses.replace(reach, first=0, last=None), []).append(reach)
    reaches = tuple(
        dataclasses.replace(
            key,
            first=min(each.first for each in group),
            last=None if any(each.last is None for each in group) else max(each.last or 0 for each in group),
        )
        for key, group in ends.items()
    )
    kept = [flow.kept for flow in flows]
    return Flow(reaches, None if None in kept else max(each or 0 for each in kept))


def _holds(arrived: Tensor, leaf: Tensor, rows: bool) -> bool:
    """Whether a tensor has another in it, piece by piece: a row of it where that has rows, or the whole of it."""
    if arrived.numel() < leaf.numel() // (len(leaf) if rows and leaf.dim() else 1) or arrived.dtype != leaf.dtype:
        return False
    if rows and leaf.dim() == 1:  # Single numbers, such as labels, are in anything: they are looked for in a run.
        return leaf.numel() <= arrived.numel() and bool(
            (arrived.reshape(-1).unfold(0, leaf.numel(), 1) == leaf).all(1).any()
        )
    width = leaf[0].numel() if rows else leaf.numel()
    if not width or arrived.numel() % width:
        return False
    pieces = arrived.reshape(-1, width)
    return any(bool((pieces == wanted).all(1).any()) for wanted in leaf.reshape(-1, width))


def _different(ours: Tree, theirs: Tree) -> list[str]:
    """Names of entries that are not the same in both."""
    return [name for name in {**theirs, **ours} if not _equal({"": ours.get(name, {})}, {"": theirs.get(name, {})})]


def _equal(a: Tree, b: Tree) -> bool:
    ours, theirs = dict(tree.leaves(a)), dict(tree.leaves(b))
    return ours.keys() == theirs.keys() and all(_same(ours[path], theirs[path]) for path in ours)


def _same(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is not even itself.


def _resembles(arrived: Tensor, leaf: Tensor) -> bool:
    """Whether a tensor has a row of another in it, but for scale, offset and rounding: as codes, say."""
    width = leaf[0].numel() if leaf.dim() > 1 else 0
    if width < _TELLING or not arrived.numel() or arrived.numel() % width:
        return False
    ours, theirs = (_centred(each.reshape(-1, width).double()) for each in (leaf, arrived))
    return bool((ours @ theirs.T > _ALIKE).any())


def _centred(rows: Tensor) -> Tensor:
    apart = rows - rows.mean(1, keepdim=True)
    length: Tensor = apart.norm(dim=1, keepdim=True)
    return apart / length.clamp(min=1e-30)
