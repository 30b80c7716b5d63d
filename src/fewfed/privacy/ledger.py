"""The ledger: what every client has released, composed, and the budget that it must not pass.

**One neighbouring relation for everything**: one row of one client is replaced by an empty row, whose gradient and
whose features are zero ("zero-out", Kairouz et al. 2021, Definition 1.1). The number of rows and who takes part are not
hidden, nor, where a method sends them, labels and counts of labels: what is bounded is what is told about the rest of
the row.

- A local step with clipped gradients and noise is a Gaussian release of every row in its batch. Batches are drawn by
  reshuffling, in the open, so that nothing is gained by sampling: a row that is in `a` steps of a turn is released `a`
  times, and one that stands twice in a batch can move it twice as far.
- A row that is sent with noise is a Gaussian release of the rows behind it. Where several are behind it, one of them
  can turn it from one end of the clipping ball to the other: twice as far; but not where each was clipped by itself
  before they were put together. Where what is sent may have been made with a model that the client trained without
  noise, or with something else that it remembers, all its rows are behind it, and one can turn all of them around.
- What a client remembers of noisy steps may be in all that it sends later, so that they count for whoever sees some of
  that. The mean losses of training, and what a method reports beside its uploads, are seen by the server alone.
- Noise that the server adds to a combination once a round protects from those who see its result, not from the server.
  One row can turn its client's whole upload around (twice the clip). For another site, which does not know who took
  part but for itself, the round counts as sampled, once for all its phases, since all have the same clients. It is not
  where cohorts are drawn in the open, nor where something else that these clients send, labels and counts too, reaches
  others without the server's noise: that shows who they are. A site that was not drawn knows that all of a cohort are
  others, so that each of these is there with the chance cohort / (clients - 1), and none has a larger one. Cohorts
  have a fixed size: the two curves that bound sampling without replacement (Zhu, Dong & Wang 2022), one for each
  direction, are those of Poisson sampling with the noise of a replacement, which it is here, and the larger counts.

Other sites see nothing that the server has not seen or made, so their epsilon is never larger than the server's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fewfed.engine.gate import LeftOut
from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism
from fewfed.method import Context, Method, Report
from fewfed.phase import Clock, Cohort, Phase, Role
from fewfed.privacy.accounting import Sampled, Spent
from fewfed.privacy.gaussian import precision_of
from fewfed.tree import Tree

View = Literal["server", "sites"]
VIEWS: tuple[View, View] = ("server", "sites")
OPEN = frozenset({Role.LABELS, Role.COUNTS})
"""What the neighbouring relation does not hide."""
MOST_DELTA = 1e-3
"""With which a budget that a site has set for itself still says something."""
RELATION = "one row of one client replaced by an empty one; number of rows, labels and counts of them are not hidden"

_SERVER, _SITES, _LEAST = "server", "sites", "least"
_ROUND_UP = 3
"""Digits of a precision that is looked up among those whose epsilon takes long to compute."""


@dataclass(frozen=True)
class Gap:
    """An upload that is sent without any noise, so that no bound holds."""

    phase: str
    upload: str
    role: str
    instead: str = ""
    """What is said of it where it is no upload."""

    def __str__(self) -> str:
        return self.instead or f"phase '{self.phase}' sends '{self.upload}' ({self.role}) without noise"


@dataclass(frozen=True)
class Ledger:
    """A gate that adds up what each client releases, row by row, and keeps it from passing a budget."""

    method: Method
    clients: int
    cohort: int
    rounds: int
    epochs: int
    delta: float = 1e-5
    budget: float | None = None
    """The most epsilon of a row; None where it is only added up."""
    own_budgets: Mapping[int, float] = field(default_factory=dict)
    """Of clients whose sites allow less."""
    before: tuple[Gap, ...] = ()
    """What was sent before the first round, or made of rows together, without noise."""
    assumed: str = ""
    """What is taken for public although it was measured on rows."""
    drawn_in_secret: bool = True
    """Whether other sites cannot compute who is drawn for a round."""
    name: str = field(default="ledger", init=False)
    withdraws: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.own_budgets and self.delta > MOST_DELTA:
            raise ConfigError(
                f"delta = {self.delta:g}, and a site has a privacy budget of its own, into which anything would fit "
                f"with a large enough delta: expected at most {MOST_DELTA:g}",
                key="delta",
                value=self.delta,
            )

    def withdrawn(self, clock: Clock) -> frozenset[int]:  # noqa: ARG002
        return frozenset()

    @property
    def has_budget(self) -> bool:
        return self.budget is not None or bool(self.own_budgets)

    def budget_of(self, client: int) -> float:
        """What a client may spend: infinite where nobody has said."""
        return min(math.inf if self.budget is None else self.budget, self.own_budgets.get(client, math.inf))

    @cached_property
    def view(self) -> View | None:
        """From whom the budget protects: the server where noise is added at clients, else other sites; None if nobody
        is kept from seeing something without noise."""
        return next((view for view in VIEWS if not self.gaps[view]), None)

    @cached_property
    def gaps(self) -> Mapping[View, tuple[Gap, ...]]:
        """What any round sends without noise. Of all of them: a method may share rows once, in the middle of a run."""
        clocks = [self._clock(number) for number in range(self.rounds)]
        always = (*self.before, *self._remembered_in_steps)
        return {
            view: tuple(dict.fromkeys((*always, *(gap for at in clocks for gap in gaps(self.method, at, view)))))
            for view in VIEWS
        }

    def admit(self, ctx: Context, notes: Tree) -> None:
        """Raise `LeftOut` where this turn would pass the budget."""
        budget = self.budget_of(ctx.client)
        if math.isinf(budget):
            return
        if self.view is None:
            raise LeftOut(
                f"it has a privacy budget, but nothing bounds what is sent: {self.gaps['sites'][0]}", "budget"
            )
        server, sites = self._cost(ctx)
        own = {"server": server, "sites": sites}[self.view]
        after = float((own + notes[self.view]).max() if self.view in notes else own.max()) if len(own) else 0.0
        if not self._fits(budget, after, ctx.clock.round + 1):
            raise LeftOut(
                f"this turn would take it past its privacy budget (epsilon {budget:g} against "
                f"{WHOM[self.view]}, delta {self.delta:g})",
                "budget",
            )

    def released(self, report: Report, ctx: Context, notes: Tree) -> tuple[Report, Tree]:
        """Everything goes through; what it costs is noted."""
        server, sites = self._cost(ctx)
        if report.metrics and not _in_noisy_steps(self.method, ctx.clock, ctx.phase):
            if self.view == "server" and math.isfinite(self.budget_of(ctx.client)):
                first = min(report.metrics)
                raise LeftOut(f"it has a privacy budget, but would report '{first}' without noise", "budget")
            server = torch.full_like(server, math.inf)
        if not (server.any() or sites.any()):
            return report, notes
        least = {**notes.get(_LEAST, {}), ctx.phase.name: torch.stack([server.min(), sites.min()])}
        before = {name: notes.get(name, 0.0) for name in VIEWS}
        return report, {_SERVER: before["server"] + server, _SITES: before["sites"] + sites, _LEAST: least}

    def tells_losses(self, client: int) -> bool:  # noqa: ARG002
        return True

    def spent(self, notes: Tree, view: View, rounds: int) -> Spent:
        """What a client has released after so many rounds, as the one sees it who sees the most of one row."""
        precision = float(notes[view].max()) if view in notes else 0.0
        if view == "server":
            return Spent(precision)
        certain, sampled = self._by_server(rounds)
        return Spent(precision + certain, sampled)

    def is_at_end(self, client: int, notes: Tree, rounds: int) -> bool:
        """Whether a client that has released this cannot take part in a whole round once more."""
        budget = self.budget_of(client)
        if math.isinf(budget) or self.view is None:
            return False
        place = VIEWS.index(self.view)
        so_far = float(notes[self.view].max()) if self.view in notes else 0.0
        next_turn = max((float(costs[place]) for costs in notes.get(_LEAST, {}).values()), default=0.0)
        return not self._fits(budget, so_far + next_turn, rounds + 1)

    def least_of_turn(self, ctx: Context) -> Spent:
        """What whoever is protected from a client is told, at the least, by any turn in this phase."""
        server, sites = self._cost(ctx)
        own = server if self.view == "server" else sites
        certain, sampled = self._by_server(1) if self.view == "sites" else (0.0, ())
        return Spent((float(own.min()) if len(own) else 0.0) + certain, sampled)

    def of_rows(self, one: Mechanism, ctx: Context) -> float:
        """The precision with which noise on rows that are sent shows any one row of the client, in one turn."""
        moves = self._moves(one, ctx)
        return _precision(one.noise) * float(moves.max()) if len(moves) else 0.0

    def _fits(self, budget: float, precision: float, rounds: int) -> bool:
        """Whether a client that has released so much after some rounds has stayed within its budget."""
        if self.view == "server":
            return precision <= precision_of(budget, self.delta)
        certain, sampled = self._by_server(rounds)
        if not sampled:
            return precision + certain <= precision_of(budget, self.delta)
        return Spent(_rounded_up(precision + certain), sampled).epsilon(self.delta) <= budget

    def _cost(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """The precision with which each row of the client is released in a turn: as the server sees it, as sites do."""
        found = []
        declared = of_phase(self.method, ctx.clock, ctx.phase)
        for view in VIEWS:
            cost = torch.zeros(len(ctx.data), dtype=torch.float64)
            if unbounded(ctx.phase, declared, view):
                cost += math.inf
            for one in _at_clients(declared, view, shown_later=ctx.phase.keeps_state and self._shows_state):
                cost += _precision(one.noise) * self._moves(one, ctx)
            if view == "sites" and self._shows_members(ctx.clock, ctx.phase):
                cost += sum(_precision(one.noise) for one in declared if one.each == "round")
            found.append(cost)
        return found[0], found[1]

    def _moves(self, one: Mechanism, ctx: Context) -> Tensor:
        """For each row of the client the sum over the noisy things of a turn of how far, squared, it can move each."""
        if one.each == "step":
            return _in_steps(ctx).double()
        own_model = ctx.phase.trains_on_clients_rows and not _in_noisy_steps(self.method, ctx.clock, ctx.phase)
        return _in_sent_rows(ctx, one.singly, by_all=own_model or bool(self._remembers_rows))

    @cached_property
    def _remembers_rows(self) -> tuple[str, ...]:
        """The phases of which clients remember something of their rows that no noise was on."""
        found = (
            phase.name
            for clock, phase in self._crossing
            if phase.keeps_state and not _in_noisy_steps(self.method, clock, phase)
        )
        return tuple(dict.fromkeys(found))

    @property
    def _remembered_in_steps(self) -> tuple[Gap, ...]:
        """Where noisy steps may use that: a row can then turn the gradients of all others."""
        noisy = any(_in_noisy_steps(self.method, clock, phase) for clock, phase in self._crossing)
        said = "lets clients remember what has no noise, and steps may use it"
        return tuple(Gap(name, "state", "", f"phase '{name}' {said}") for name in self._remembers_rows if noisy)

    @cached_property
    def _shows_state(self) -> bool:
        """Whether other sites see something of what clients send, in any round, without noise of the server on it."""
        return any(
            phase.uploads.keys() - _by_server_noise(of_phase(self.method, clock, phase))
            for clock, phase in self._crossing
        )

    @cached_property
    def _crossing(self) -> list[tuple[Clock, Phase]]:
        """The phases of all rounds in which something leaves clients."""
        clocks = map(self._clock, range(self.rounds))
        return [
            (clock, phase)
            for clock in clocks
            for phase in self.method.phases(clock)
            if phase.cohort in (Cohort.ROUND, Cohort.ALL)
        ]

    def _by_server(self, rounds: int) -> tuple[float, tuple[Sampled, ...]]:
        """Of all noise that the server has added in so many rounds: the precision of what is certain, and what is
        sampled."""
        return self._after_rounds[min(rounds, self.rounds)]

    @cached_property
    def _after_rounds(self) -> list[tuple[float, tuple[Sampled, ...]]]:
        certain, counts = 0.0, dict[tuple[float, float], int]()
        found: list[tuple[float, tuple[Sampled, ...]]] = [(0.0, ())]
        for number in range(self.rounds):
            clock = self._clock(number)
            together = 0.0
            for phase in self.method.phases(clock):
                if self._shows_members(clock, phase):  # Then each client is billed for its own turns.
                    continue
                added = sum(_precision(one.noise) for one in of_phase(self.method, clock, phase) if one.each == "round")
                if phase.cohort is Cohort.ROUND and self._draws:
                    together += added
                else:
                    certain += added
            if together:  # All phases of a round have the same clients: who is drawn for one is drawn for the others.
                key = (self._rate, together**-0.5)
                counts[key] = counts.get(key, 0) + 1
            sampled = tuple(Sampled(rate, noise, count) for (rate, noise), count in sorted(counts.items()))
            found.append((certain, sampled))
        return found

    @property
    def _draws(self) -> bool:
        """Whether not everybody takes part in every round."""
        return self.cohort < self.clients

    @property
    def _rate(self) -> float:
        """The chance of a client to be in a round, for another site that was not drawn and knows that it was not."""
        return min(1.0, self.cohort / max(1, self.clients - 1))

    def _shows_members(self, clock: Clock, phase: Phase) -> bool:
        """Whether other sites can see who was drawn for a phase that not everybody takes part in."""
        if phase.cohort is not Cohort.ROUND or not self._draws:
            return False
        return not self.drawn_in_secret or self._rate >= 1 or not hides_members(self.method, clock)

    def _clock(self, number: int) -> Clock:
        return Clock(number, self.rounds, self.epochs)


WHOM: Mapping[View, str] = {"server": "the server", "sites": "other sites"}


def gaps(method: Method, clock: Clock, view: View) -> tuple[Gap, ...]:
    """What a round sends without noise that would bound it, as one sees it who is to learn little."""
    declared = method.mechanisms(clock)
    return tuple(
        gap
        for phase in method.phases(clock)
        if phase.cohort is not Cohort.SERVER
        for gap in unbounded(phase, [one for one in declared if one.phase == phase.name], view)
    )


def unbounded(phase: Phase, declared: Sequence[Mechanism], view: View) -> tuple[Gap, ...]:
    """The uploads of a phase that none of its mechanisms protects."""
    protecting = [one for one in declared if one.noise and (view == "sites" or one.hides_from_server)]
    if phase.cohort is Cohort.UNION:  # Rows themselves are in one place.
        return tuple(Gap(phase.name, name, upload.role) for name, upload in phase.uploads.items())
    covered = frozenset[str]().union(*(one.uploads for one in protecting))
    found = tuple(
        Gap(phase.name, name, upload.role)
        for name, upload in phase.uploads.items()
        if upload.role not in OPEN and name not in covered
    )
    quiet = phase.trains_on_clients_rows and not any(one.each == "step" for one in protecting)
    if found or not quiet or view == "sites":
        return found
    return (Gap(phase.name, "losses", Role.SCORE, f"phase '{phase.name}' reports its mean losses without noise"),)


def hides_members(method: Method, clock: Clock) -> bool:
    """Whether all that the clients drawn for a round send in it reaches others with noise of the server only. Rows,
    labels and counts of theirs would show who was drawn."""
    return all(
        phase.uploads.keys() <= _by_server_noise(of_phase(method, clock, phase))
        for phase in method.phases(clock)
        if phase.cohort is Cohort.ROUND
    )


def of_phase(method: Method, clock: Clock, phase: Phase) -> tuple[Mechanism, ...]:
    """What is declared of one phase."""
    return tuple(one for one in method.mechanisms(clock) if one.phase == phase.name)


def _in_noisy_steps(method: Method, clock: Clock, phase: Phase) -> bool:
    """Whether all that clients make of their rows in a phase is made in steps with noise."""
    return any(one.each == "step" and one.noise for one in of_phase(method, clock, phase))


def _at_clients(declared: tuple[Mechanism, ...], view: View, shown_later: bool) -> Iterator[Mechanism]:
    """Noise added at clients, as far as the one who looks sees what it is on, and not only what the server makes of
    it; `shown_later`: what clients remember of the phase may be in what is seen of another."""
    by_server = _by_server_noise(declared)
    for one in declared:
        seen = view == "server" or one.uploads - by_server or (shown_later and one.each == "step")
        if one.noise and one.hides_from_server and seen:
            yield one


def _by_server_noise(declared: tuple[Mechanism, ...]) -> frozenset[str]:
    """The uploads of a phase that others see with noise of the server only."""
    return frozenset[str]().union(*(one.uploads for one in declared if one.each == "round" and one.noise))


def _in_steps(ctx: Context) -> Tensor:
    """For each row the sum over the steps of a turn of the squared number of times it is in the batch."""
    rows, phase = len(ctx.data), ctx.phase
    batches = ctx.plan.batches(ctx.clock.round, phase.name, ctx.client, rows, phase.epochs)
    places = [number * rows + batch for number, batch in enumerate(batches)]
    if not places:
        return torch.zeros(rows)
    times = torch.bincount(torch.cat(places), minlength=len(batches) * rows)
    return times.reshape(len(batches), rows).square().sum(0)


def _in_sent_rows(ctx: Context, singly: bool, by_all: bool) -> Tensor:
    """For each row the sum over the rows that are sent of how far, squared, it can move each. `singly`: in parts of
    what each of several rows behind it can; `by_all`: all rows of the client are behind each."""
    origins = ctx.phase.does.origins(ctx).cpu()
    present = origins >= 0
    behind = present.sum(1, keepdim=True)
    if by_all:
        each = 2 * behind if singly else torch.full_like(behind, 2)
        return torch.full((len(ctx.data),), float(each.square().sum()), dtype=torch.float64)
    moved = torch.where((behind > 1) & (not singly), 4, 1).expand_as(origins)
    return torch.bincount(origins[present], weights=moved[present].double(), minlength=len(ctx.data))


def _precision(noise: float) -> float:
    return 1 / noise**2 if noise else math.inf


def _rounded_up(value: float) -> float:
    if not 0 < value < math.inf:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - _ROUND_UP + 1)
    return math.ceil(value / unit) * unit
