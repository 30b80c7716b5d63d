"""What leaves a site, as data: derived from what a method declares and does, before any data are touched.

Names, types and shapes of uploads come from stand-in clients without data, what arrives at a site from a rehearsal
(`fewfed.engine.rehearsal`), where an upload goes from following it through rounds (`fewfed.privacy.flows`). Words are
made of it in `fewfed.privacy.statement_text`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from torch import Tensor

from fewfed import tree
from fewfed.engine import asking
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import LOSS, STEPS, TYPES
from fewfed.engine.rehearsal import rehearse
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import RunError
from fewfed.phase import Clock, Cohort, Phase, Role, Upload
from fewfed.privacy.flows import Passed, Plays, Reach, Watched
from fewfed.privacy.sharing import rows_behind
from fewfed.privacy.stand_ins import with_stand_ins

Spans = tuple[tuple[int, int], ...]
"""Rounds, counted from 1, as first and last of each stretch."""
_FEW = 8
"""Rows of a stand-in that takes a turn only for the names of its metrics."""
_MOST_SIZES = 10_000
"""Clients whose sizes are looked at: some federations make the rows of a client to count them."""


@dataclass(frozen=True)
class Form:
    """One array."""

    path: str
    """Its name, below that of the upload or entry it belongs to."""
    dtype: str
    shape: tuple[int | None, ...]
    """None where a length counts rows."""

    def size(self, rows: int) -> int:
        """Bytes, with so many rows."""
        return TYPES[self.dtype].itemsize * math.prod(rows if length is None else length for length in self.shape)

    @property
    def counts_rows(self) -> bool:
        return None in self.shape


@dataclass(frozen=True)
class Sent:
    """One upload."""

    name: str
    role: str
    combine: str
    rows_per_row: float
    """Rows it has at most for each row of the site; 0 where it has none."""
    relayed: bool
    """Whether the server only hands it on to one other site."""
    rounds: Spans
    forms: tuple[Form, ...]
    reaches: tuple[Reach, ...] | None
    """What other sites are sent of it; None where that could not be found out."""
    kept: int | None
    """Rounds after which nothing of it is left at the server; None where no end was seen."""
    unknown: str = ""
    """Why forms or reaches are not known."""
    compared: str = ""
    """How the server compares single sites' values before it combines them; empty where it does not."""
    made_of: int = 1
    """The least number of the site's rows behind each row of it; 1 where nobody can tell."""

    @property
    def seen_raw(self) -> bool:
        """Whether the method needs single sites' values, so that secure aggregation cannot hide them."""
        return self.combine in ("concat", "keep")

    def most_rows(self, rows: int) -> int:
        """Rows of it that a site with so many rows sends at most."""
        return max(1, math.ceil(self.rows_per_row * rows)) if self.rows_per_row else 0

    def size(self, rows_sent: int) -> int:
        """Bytes, with so many rows sent."""
        return sum(form.size(rows_sent) for form in self.forms)


@dataclass(frozen=True)
class Header:
    """What a packet carries beside its arrays."""

    weight_per_row: float
    weight_beside: float
    """A site weighs at most so much for each row of the largest site, and so much beside."""
    weighting: str
    metrics: tuple[str, ...]
    """Names of numbers: steps, "loss." and the name of each loss term, and what the method reports."""
    unknown: str = ""
    """Why there may be more of them."""

    @property
    def tells_rows(self) -> bool:
        """Whether the weight is the number of the site's rows, or grows with it."""
        return self.weighting == "samples" and self.weight_per_row > 0


@dataclass(frozen=True)
class Exchange:
    """One phase."""

    name: str
    rounds: Spans
    members: Literal["drawn", "all", "server", "union"]
    trains: bool
    keeps_state: bool
    sends: tuple[Sent, ...]
    header: Header | None
    """None where nothing leaves a site."""
    receives: tuple[Form, ...]
    """Paths begin with "shared/" for what all members receive and with "personal/" for what one alone does."""
    receives_unknown: str = ""

    @property
    def crosses(self) -> bool:
        """Whether anything crosses between a site and the server."""
        return self.members in ("drawn", "all")

    def size(self, rows: int) -> int:
        """Bytes that a site with so many rows sends at most when it takes part."""
        return sum(sent.size(sent.most_rows(rows)) for sent in self.sends)

    def in_all(self, rows: int, chance: float) -> float:
        """The same in all rounds, as is to be expected of a site that takes part with that chance in each."""
        share = 1.0 if self.members == "all" else chance
        return share * sum(count(sent.rounds) * sent.size(sent.most_rows(rows)) for sent in self.sends)


@dataclass(frozen=True)
class About:
    """The run that the statement is about."""

    method: str
    preset: str
    network: str
    data: str
    split: str
    sites: int
    cohort: int
    """Sites drawn for a round."""
    rounds: int
    usual_rows: int
    """Of the site in the middle."""
    largest_rows: int
    fewfed: str

    @property
    def chance(self) -> float:
        """That a site takes part in a round for which sites are drawn."""
        return self.cohort / self.sites


@dataclass(frozen=True)
class Statement:
    """What leaves a site in a run, who sees it, for how long, and what does not."""

    about: About
    scaling: str
    """Whose means and deviations inputs are scaled by: none, fixed, pooled, federated, site."""
    before: tuple[Exchange, ...]
    """Before the first round."""
    exchanges: tuple[Exchange, ...]
    never: tuple[str, ...]
    """Kinds of things (`fewfed.phase.Role`) that no site sends."""
    attacks: Mapping[str, str] | None
    """Attacks of this project that apply, and to what; None where this version has none to try."""
    bounds: tuple[str, ...] = ()
    """Formal bounds that hold on what can be learnt; none unless a defence gives one."""
    partial: tuple[str, ...] = ()
    """Where no bound holds on all that is sent: those on a part of it, by itself."""

    @property
    def pools_rows(self) -> bool:
        """Whether all rows of all sites are in one place: no federation at all."""
        return any(exchange.members == "union" for exchange in self.exchanges)

    def once(self, rows: int) -> int:
        """Bytes that a site sends at most in a round in which every exchange takes place, of those that recur."""
        return sum(each.size(rows) for each in self.exchanges if count(each.rounds) > 1 or self.about.rounds == 1)

    def in_all(self, rows: int) -> float:
        """Bytes to be expected of a site over the whole run, before the first round included."""
        chance = self.about.chance
        return sum(each.in_all(rows, 1.0) for each in self.before) + sum(
            each.in_all(rows, chance) for each in self.exchanges
        )

    def as_json(self) -> dict[str, Any]:
        about = self.about
        sizes = {"usual_site": about.usual_rows, "largest_site": about.largest_rows}
        return {
            **dataclasses.asdict(self),
            "pools_rows": self.pools_rows,
            "bytes_up": None
            if self.pools_rows
            else {
                name: {
                    "rows": rows,
                    "a_round": self.once(rows),
                    "expected_in_all": self.in_all(rows),
                    "by_exchange": {each.name: each.size(rows) for each in (*self.before, *self.exchanges)},
                }
                for name, rows in sizes.items()
            },
        }

    def __str__(self) -> str:
        from fewfed.privacy.statement_text import plain

        return plain(self)


def about_of(job: Job, rounds: int, cohort: int, **named: str) -> About:
    """What is known of a run; `named`: method, preset, network, data, split, fewfed."""
    clients = len(job.federation)
    sizes = [job.federation.size(client) for client in range(min(clients, _MOST_SIZES))]
    return About(
        sites=clients, cohort=cohort, rounds=rounds, usual_rows=int(median(sizes)), largest_rows=max(sizes), **named
    )


def statement_of(job: Job, about: About, scaling: str = "none", measuring: Job | None = None) -> Statement:
    """The statement of a run; `measuring`: the exchange before it in which sites measure their inputs together."""
    before = () if measuring is None else exchanges_of(measuring, 1)
    occurring = _occurring(job, about.rounds)
    exchanges = _exchanges(job, about.rounds, occurring)
    attacks = _attacks(tuple(each.phase for each in occurring.values() if not is_inside(each.phase)))
    return Statement(about, scaling, before, exchanges, _never((*before, *exchanges)), attacks)


_OF_THE_MODEL = (Role.MODEL, Role.UPDATE, Role.CONTROL)
"""Whoever has one of them and knows the broadcast can tell the others."""


def _never(exchanges: Sequence[Exchange]) -> tuple[str, ...]:
    """Kinds of things that are not declared, and that nothing which is declared has in it under another name."""
    if any(each.members == "union" for each in exchanges):
        return ()
    sent = [sent for each in exchanges for sent in each.sends]
    roles = {Role(each.role) for each in sent}
    if roles & set(_OF_THE_MODEL):
        roles |= set(_OF_THE_MODEL)
    if any(each.role == Role.MODEL and any("/buffers/" in form.path for form in each.forms) for each in sent):
        roles.add(Role.STATISTICS)  # Running means and deviations of features.
    if any(each.header is not None and terms_in(each.header) for each in exchanges):
        roles.add(Role.SCORE)  # The training loss.
    return tuple(role.value for role in Role if role not in roles)


def exchanges_of(job: Job, rounds: int) -> tuple[Exchange, ...]:
    """Every phase of a run, with all that crosses in it."""
    return _exchanges(job, rounds, _occurring(job, rounds))


def _exchanges(job: Job, rounds: int, occurring: Mapping[str, _Occurring]) -> tuple[Exchange, ...]:
    with one_thread():
        stand_ins = with_stand_ins(job)
        plays = Plays(stand_ins, rounds)
        try:
            passed, why = plays.first(), ""
        except RunError as error:
            passed, why = [], str(error)
        forms, why_not = _received(stand_ins, rounds)
        return tuple(
            Exchange(
                name=name,
                rounds=spans(each.rounds),
                members=_MEMBERS[each.phase.cohort],
                trains=each.phase.trains_on_clients_rows,
                keeps_state=each.phase.keeps_state,
                sends=() if is_inside(each.phase) else _sends(plays, name, each, passed, why),
                header=None if is_inside(each.phase) else _header(stand_ins, name, each.phase, passed, why),
                receives=forms.get(name, ()),
                receives_unknown="" if is_inside(each.phase) else why_not,
            )
            for name, each in occurring.items()
        )


_MEMBERS: Mapping[Cohort, Literal["drawn", "all", "server", "union"]] = {
    Cohort.ROUND: "drawn",
    Cohort.ALL: "all",
    Cohort.SERVER: "server",
    Cohort.UNION: "union",
}


@dataclass(frozen=True)
class _Occurring:
    """A phase, and when there is one of its name."""

    phase: Phase
    rounds: list[int]
    uploads: dict[tuple[str, Upload], list[int]]


def _occurring(job: Job, rounds: int) -> dict[str, _Occurring]:
    found: dict[str, _Occurring] = {}
    for number in range(rounds):
        for phase in asking.phases(job, Clock(number, rounds, job.training.epochs)):
            here = found.setdefault(phase.name, _Occurring(phase, [], {}))
            here.rounds.append(number + 1)
            for declared in phase.uploads.items():
                here.uploads.setdefault(declared, []).append(number + 1)
    return found


def _sends(plays: Plays, name: str, each: _Occurring, passed: Sequence[Passed], why: str) -> tuple[Sent, ...]:
    found = []
    for (upload_name, upload), rounds in each.uploads.items():
        seen = [one for one in passed if one.phase.name == name and one.phase.uploads.get(upload_name) == upload]
        reaches: tuple[Reach, ...] | None = None
        kept, unknown = None, why
        if seen:
            try:
                flow = plays.flow(Watched(seen[0].clock.round, name, upload_name))
                reaches, kept = flow.reaches, flow.kept
            except RunError as error:
                unknown = str(error)
        found.append(
            Sent(
                name=upload_name,
                role=upload.role.value,
                combine=upload.combine.value,
                rows_per_row=upload.rows,
                relayed=upload_name in each.phase.relayed,
                rounds=spans(rounds),
                forms=_merged(
                    _form(path, leaf, upload.rows > 0)
                    for one in seen
                    for packet in one.packets.values()
                    for path, leaf in tree.leaves({upload_name: packet.arrays[upload_name]})
                ),
                reaches=reaches,
                kept=kept,
                unknown=unknown,
                made_of=rows_behind(plays.job, seen[0].clock, seen[0].phase) if seen and upload.rows else 1,
            )
        )
    return tuple(found)


def _form(path: str, leaf: Tensor, rows: bool) -> Form:
    shape = tuple(leaf.shape)
    return Form(path, str(leaf.dtype), (None, *shape[1:]) if rows and shape else shape)


def _merged(forms: Iterable[Form]) -> tuple[Form, ...]:
    """Each array once; lengths that are not always the same count rows."""
    found: dict[tuple[str, str, int], Form] = {}
    for form in forms:
        key = (form.path, form.dtype, len(form.shape))
        known = found.get(key, form)
        shape = tuple(a if a == b else None for a, b in zip(known.shape, form.shape, strict=True))
        found[key] = Form(form.path, form.dtype, shape)
    return tuple(found.values())


def _header(job: Job, name: str, phase: Phase, passed: Sequence[Passed], why: str) -> Header:
    """What packets carry beside their arrays, found out by letting a stand-in take a turn in every play of the phase
    that is unlike those before."""
    metrics, unknown, seen = {STEPS: None}, why, set()
    for one in passed:
        outline = (tuple(_different_shapes(one)), one.clock.round if one.clock.round <= 2 else one.clock.last)
        if one.phase.name != name or outline in seen:
            continue
        seen.add(outline)
        client = max(one.personal)
        member = Member(client, one.personal[client], one.states[client])
        short = dataclasses.replace(one.phase, epochs=min(1, one.phase.epochs))
        found = run_turn(with_stand_ins(job, _FEW), short, one.clock, one.shared, member)
        if not isinstance(found, Finished):  # So few rows may not be enough for it.
            found = run_turn(job, short, one.clock, one.shared, member)
        if isinstance(found, Finished):
            metrics |= dict.fromkeys(found.packet.metrics)
        else:
            unknown = found.reason
    weighting = job.training_of(phase).weighting
    return Header(phase.weight.per_row, phase.weight.beside, weighting, tuple(metrics), unknown)


def _different_shapes(one: Passed) -> list[tuple[str, bool]]:
    """What the loss may depend on beside the round: what there is, and whether there is anything in it."""
    received = {"shared": one.shared, "personal": one.personal[max(one.personal)]}
    return [(path, leaf.numel() > 0) for path, leaf in tree.leaves(received)]


def _received(job: Job, rounds: int) -> tuple[dict[str, tuple[Form, ...]], str]:
    """What members of each phase receive, and why that is not known."""
    try:
        rehearsed = rehearse(job, rounds)
    except RunError as error:
        return {}, str(error)
    return {
        name: _merged(Form(path, str(one.dtype), one.shape) for form in forms for path, one in form.items())
        for name, forms in rehearsed.forms.items()
    }, ""


def _attacks(phases: tuple[Phase, ...]) -> dict[str, str] | None:
    try:
        from fewfed.privacy.attacks.applicable import applicable  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return dict(applicable(phases))


def spans(rounds: Sequence[int]) -> Spans:
    """Ascending numbers as stretches."""
    found: list[tuple[int, int]] = []
    for number in rounds:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def count(rounds: Spans) -> int:
    """How many rounds there are in some stretches."""
    return sum(last - first + 1 for first, last in rounds)


def terms_in(header: Header) -> tuple[str, ...]:
    """The loss terms whose means a packet carries."""
    return tuple(name.removeprefix(LOSS) for name in header.metrics if name.startswith(LOSS))


def reported_in(header: Header) -> tuple[str, ...]:
    """The numbers that the method itself reports."""
    return tuple(name for name in header.metrics if name != STEPS and not name.startswith(LOSS))
