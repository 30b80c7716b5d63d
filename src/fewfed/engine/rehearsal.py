"""What a client will receive: the other direction of the boundary. Nobody writes it down either.

Rounds are played through by blank clients, twice, with other numbers of clients and rows: a length that differs between
the two counts rows, and everything else is as it will be. Where clients send rows, rounds are played once more, by
clients that send some in any case. Blank rows alone may not be enough for that: an average of five rows of one class
needs five of one class. A site does so before it takes part, and then accepts from the server only what looks like it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine import asking
from fewfed.engine.blank import blank_report
from fewfed.engine.combine import Combiner
from fewfed.engine.job import Job, is_inside, members_of
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import SERVER, BadPacket, Packet, packet_of
from fewfed.engine.turn import Member
from fewfed.errors import FewfedError, RunError, told
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

_PLAYS = ((2, 40), (3, 60))
"""Clients and rows of each, in the two times rounds are played. So many rows that a share of them is at least one."""


@dataclass(frozen=True)
class Arriving:
    """One array that a client receives."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """None where a length counts rows."""

    def accepts(self, value: Tensor, most_rows: float) -> bool:
        return (
            value.dtype == self.dtype
            and value.dim() == len(self.shape)
            and all(
                found <= most_rows if length is None else found == length
                for found, length in zip(value.shape, self.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('rows' if length is None else str(length) for length in self.shape)})"


Form = Mapping[str, Arriving]
"""Everything a member receives, by path: "shared/..." goes to all, "personal/..." to it alone."""


@dataclass(frozen=True)
class Broadcasts:
    """What clients of a run may receive, for every phase."""

    forms: Mapping[str, tuple[Form, ...]]
    """A phase has more than one where a round sends something else than the first did."""
    most_rows: float
    """Rows that all clients together may have contributed; infinite where nobody knows."""

    def check(self, packet: Packet, round: int, phase: str) -> None:
        """Raise `BadPacket` with the first thing that is wrong with a packet of the server's."""
        if (packet.sender, packet.round, packet.phase) != (SERVER, round, phase) or phase not in self.forms:
            raise BadPacket(
                f"it is of sender {packet.sender}, round {packet.round + 1}, phase '{packet.phase}': expected the "
                f"server, round {round + 1}, phase '{phase}', one of {', '.join(self.forms)}"
            )
        found = dict(tree.leaves(packet.arrays))
        faults = [self._fault(form, found) for form in self.forms[phase]]
        if all(faults):
            raise BadPacket(str(faults[-1]))
        for path, leaf in found.items():
            if not bool(torch.isfinite(leaf).all()):
                raise BadPacket(f"its '{path}' holds NaN or infinity: expected finite numbers")

    def _fault(self, form: Form, found: Mapping[str, Tensor]) -> str:
        """The first difference from a form; nothing where there is none."""
        for path in sorted(form.keys() ^ found.keys()):
            return f"its '{path:.100}' is {'missing' if path in form else 'unknown'}: expected {len(form)} arrays"
        for path, expected in form.items():
            if not expected.accepts(found[path], self.most_rows):
                return f"its '{path}' is {found[path].dtype} {tuple(found[path].shape)}: expected {expected}"
        return ""


def rehearse(job: Job, rounds: int) -> Broadcasts:
    """What the clients of a run of so many rounds may receive, from method, network and task alone."""
    forms: dict[str, list[Form]] = {}
    shares = [0.0]
    for phase, form in _forms(job, rounds, sending=False):
        shares += [upload.rows for upload in phase.uploads.values()]
        _add(forms, phase, form)
    if max(shares):
        # A method whose server cannot do with rows that no client has made is known from the first plays alone.
        with contextlib.suppress(FewfedError):
            for phase, form in _forms(job, rounds, sending=True):
                _add(forms, phase, form)
    each = job.federation.most_rows
    most = math.inf if each is None else max(1, math.ceil(max(shares) * each)) * len(job.federation)
    return Broadcasts({name: tuple(found) for name, found in forms.items()}, most)


def _add(forms: dict[str, list[Form]], phase: Phase, form: Form) -> None:
    known = forms.setdefault(phase.name, [])
    if form not in known:
        known.append(form)


def _forms(job: Job, rounds: int, *, sending: bool) -> Iterator[tuple[Phase, Form]]:
    """What the first client receives in every phase, from both plays together."""
    # Nobody plays who is not there: a method may hold something for each of its clients.
    (few, some), (more, many) = ((min(clients, len(job.federation)), rows) for clients, rows in _PLAYS)
    plays = _play(job, rounds, few, some, sending), _play(job, rounds, more, many, sending)
    for (phase, first), (_, second) in zip(*plays, strict=True):
        yield phase, _form(first, second)


def _play(job: Job, rounds: int, clients: int, rows: int, sending: bool) -> Iterator[tuple[Phase, Tree]]:
    """What the first of some blank clients receives in every phase of every round that is unlike those before."""
    method = job.method
    server, first = asking.server_init(job), asking.client_init(job)
    states: dict[int, Tree] = {}
    for clock in telling_rounds(job, rounds):
        for phase in asking.phases(job, clock):
            shared = asking.broadcast(method, phase, server)
            members = members_of(phase, range(clients), clients)
            if not is_inside(phase):
                yield phase, {"shared": shared, "personal": asking.personal(method, phase, server, members[0])}
            combiner = Combiner(phase, len(job.federation))
            for client in members:
                personal = asking.personal(method, phase, server, client)
                found = _blank(job, phase, clock, shared, Member(client, personal, states.get(client, first)), rows)
                if phase.keeps_state:
                    states[client] = found.state
                combiner.add(_with_rows(found.packet, phase, rows) if sending else found.packet)
            server = asking.absorb(method, phase, server, combiner.finish())


def _with_rows(packet: Packet, phase: Phase, rows: int) -> Packet:
    """The same packet with at least so many rows in every upload that counts them; those it lacks are zeros.

    An upload without rows says what each of them would look like, so it does not matter how many rows of data, of
    which class, the method wants for one: a group may be of fifty, or of a thousand.
    """
    sent = {name: packet.arrays[name] for name, upload in phase.uploads.items() if upload.rows}
    return dataclasses.replace(packet, arrays={**packet.arrays, **tree.map(lambda leaf: _padded(leaf, rows), sent)})


def _padded(leaf: Tensor, rows: int) -> Tensor:
    missing = rows - len(leaf) if leaf.dim() else 0
    return torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]) if missing > 0 else leaf


def _blank(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, rows: int) -> Finished:
    """What a blank client hands over, or an error that says why it cannot."""
    try:
        report = blank_report(job, phase, clock, shared, member.personal, member.client, member.state, rows)
        packet = packet_of(report, clock.round, phase.name, member.client)
        if packet.arrays.keys() != phase.uploads.keys():
            raise BadPacket(f"it uploads {', '.join(packet.arrays)}: expected {', '.join(phase.uploads)}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RunError(
            f"method '{job.method.label}', phase '{phase.name}' cannot be rehearsed without data: {told(error)}"
        ) from error
    return Finished(packet, report.state)


def telling_rounds(job: Job, rounds: int) -> list[Clock]:
    """The first three rounds, and every later one whose phases are others than those of the rounds before."""
    clocks = [Clock(number, rounds, job.training.epochs) for number in range(rounds)]
    seen: list[list[tuple[str, frozenset[str]]]] = []
    found = []
    for clock in clocks:
        outline = [(phase.name, frozenset(phase.uploads)) for phase in asking.phases(job, clock)]
        if clock.round < 3 or outline not in seen:
            found.append(clock)
        seen.append(outline)
    return found


def _form(first: Tree, second: Tree) -> Form:
    others = dict(tree.leaves(second))
    return {path: _arriving(leaf, others.get(path, leaf)) for path, leaf in tree.leaves(first)}


def _arriving(leaf: Tensor, other: Tensor) -> Arriving:
    # Two plays may also differ in more than lengths: six blank rows of a class are an average of five, four are none.
    if leaf.dim() != other.dim():
        return Arriving(leaf.dtype, tuple(leaf.shape))
    both = zip(leaf.shape, other.shape, strict=True)
    return Arriving(leaf.dtype, tuple(one if one == another else None for one, another in both))
