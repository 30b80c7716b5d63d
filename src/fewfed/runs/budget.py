"""The privacy ledger in a run: made from the settings, written into every round, and the end of a spent budget."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fewfed.data.examples import Dataset
from fewfed.data.federation import SplitFederation
from fewfed.engine import gate
from fewfed.engine.gate import LeftOut
from fewfed.engine.homes import Homes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView
from fewfed.engine.turn import Member, context_of
from fewfed.errors import ConfigError, RunError, concerning
from fewfed.phase import Clock, Cohort, Role
from fewfed.plan import Protection
from fewfed.privacy.accounting import Accountant
from fewfed.privacy.ledger import RELATION, VIEWS, WHOM, Gap, Ledger, View
from fewfed.privacy.policy import PolicyGate, gate_of, read, refuse_nobody, row_numbers
from fewfed.runs.experiment import Experiment
from fewfed.runs.scaling import InputScaling, measuring_job
from fewfed.tree import Tree

_SOURCE: Mapping[Protection, str] = {
    "seed": "noise from the seed: for simulation only, since whoever knows the seed can take it away",
    "system": "noise from the operating system",
}

_BUDGET, _LEFT_OUT = "epsilon_budget", "left_out_at_epsilon"
_OF_SITE = "all inputs of a site are scaled by what was measured on its rows without noise, so that one row moves all"
_POOLED = "means and deviations of inputs over all training rows count as public (normalise = pooled)"


class BudgetSpent(RunError):
    """Every client is at the end of its privacy budget. The rounds so far are kept, and a larger budget goes on."""


def ledger_of(
    experiment: Experiment,
    job: Job,
    cohort: int,
    own_budgets: Mapping[int, float] | None = None,
    scaling: InputScaling | None = None,
) -> Ledger | None:
    """The ledger of a run; None where nothing is bounded and no budget was asked for. `own_budgets`: of sites;
    `scaling`: what inputs were scaled with, and what sites sent to measure it."""
    rounds, method = experiment.rounds, job.method
    clocks = [Clock(number, rounds, job.training.epochs) for number in sorted({0, rounds - 1})]
    ledger = Ledger(
        method,
        len(job.federation),
        cohort,
        rounds,
        job.training.epochs,
        experiment.delta,
        experiment.epsilon,
        own_budgets or {},
        *_measured(scaling or InputScaling("none")),
        # Real sites are told the seed, and "released" cohorts are those of the number of the round alone.
        drawn_in_secret=job.plan.sampling == "uniform" and job.plan.protection == "seed",
    )
    if experiment.epsilon is None:
        noisy = any(method.mechanisms(clock) for clock in clocks)
        return ledger if noisy or ledger.has_budget else None
    if ledger.view is None:
        first = ledger.gaps["sites"][0]
        raise ConfigError(
            f"epsilon = {experiment.epsilon:g} is a budget, but nothing bounds what method '{method.label}' sends: "
            f"{first}; {_instead(ledger)}",
            key="epsilon",
            value=experiment.epsilon,
        )
    return ledger


def refuse_hopeless(ledger: Ledger, job: Job) -> None:
    """Raise where every client has a budget, and none of them could ever take part in a whole round."""
    limits = [ledger.budget_of(client) for client in range(ledger.clients)]
    if not all(math.isfinite(limit) for limit in limits):
        return
    if ledger.view is None:
        raise ConfigError(
            f"every site has a privacy budget in its policy, but nothing bounds what method '{ledger.method.label}' "
            f"sends: {ledger.gaps['sites'][0]}; {_instead(ledger)}",
            key="policy",
        )
    clock = Clock(0, ledger.rounds, ledger.epochs)
    phases = [phase for phase in job.method.phases(clock) if phase.cohort in (Cohort.ROUND, Cohort.ALL)]
    least = math.inf
    for client, limit in enumerate(limits):
        try:
            member = Member(client, {}, job.method.client_init(job.setup))
            turns = [context_of(job, phase, clock, {}, member) for phase in phases]
            needed = max((ledger.least_of_turn(ctx).epsilon(ledger.delta) for ctx in turns), default=0.0)
        except Exception:  # What a method asks of a broadcast that is not there: it is seen when the run begins.
            return
        if needed <= limit:
            return
        least = min(least, needed)
    raise ConfigError(
        f"no client can take part in a single round: that takes epsilon = {least:.4g} against {WHOM[ledger.view]} at "
        f"least (delta {ledger.delta:g}), and the largest budget is {max(limits):g}; expected a larger one, more noise "
        "or fewer steps a round",
        key="epsilon",
        value=ledger.budget,
    )


def _measured(scaling: InputScaling) -> tuple[tuple[Gap, ...], str]:
    """What inputs were scaled with, where rows were measured for it: what nothing bounds, and what counts as public."""
    sent = tuple(Gap(phase, "sums over inputs", Role.STATISTICS) for phase in scaling.exchange)
    if scaling.sites:
        return (*sent, Gap("", "inputs", Role.INPUTS, _OF_SITE)), ""
    measured = scaling.common is not None and not (scaling.common.published or scaling.exchange)
    return sent, _POOLED if measured else ""


def _instead(ledger: Ledger) -> str:
    if ledger.before:
        return "inputs that are not measured need no such numbers: normalise = fixed or none"
    return f"use a wrapper that adds noise, as in dp({ledger.method.label}), outside of all others"


def policy_of(experiment: Experiment, job: Job, dataset: Dataset, federation: SplitFederation) -> PolicyGate | None:
    """What stands at every client because of the sites' policies; None where there are none."""
    if not experiment.policy:
        return None
    with concerning("policy", experiment.policy):
        numbers = row_numbers(dataset, federation.places)
        policy = gate_of(read(Path(experiment.policy)), job, dataset.split_names, shapes_of_stages(job), numbers)
        for number in sorted({0, experiment.rounds - 1}):
            clock = Clock(number, experiment.rounds, job.training.epochs)
            # Whether somebody was revoked is no matter of the method.
            refuse_nobody(policy, job.method.phases(clock), dataclasses.replace(clock, round=-1), job.setup)
    return policy


def refuse_unmeasured(job: Job, scaling: InputScaling) -> None:
    """Raise where inputs are measured before the run and the policy of some site does not let its sums leave. A real
    site answers so itself, when it is asked; here everybody has been summed up, and no run must begin with that."""
    policies = [gate for gate in job.gates if isinstance(gate, PolicyGate)]
    if not (policies and scaling.exchange):
        return
    federation, clock = job.federation, Clock(0, 1, 1)
    measuring = dataclasses.replace(measuring_job(federation, job.task.classes), gates=tuple(policies))
    names = list(federation.client_groups) or [str(client) for client in range(len(federation))]
    for phase in measuring.method.phases(clock):
        for client, name in enumerate(names):
            try:
                gate.admit(measuring, context_of(measuring, phase, clock, {}, Member(client)), {})
            except LeftOut as why:
                raise ConfigError(
                    f"normalise = {scaling.mode} sends sums over the inputs of all sites before the first round, and "
                    f"site '{name}' does not send them, since {why}; expected a policy that lets counts and statistics "
                    "leave, or inputs that nobody measures: normalise = fixed, or none where no value is missing",
                    key="policy",
                ) from None


def shapes_of_stages(job: Job) -> dict[str, tuple[int, ...]]:
    """What one row of features looks like behind each stage of the network."""
    model, x = job.net.model(), torch.zeros(1, *job.federation.shape, dtype=job.net.dtype)
    found: dict[str, tuple[int, ...]] = {}
    with torch.no_grad():
        for number, stage in enumerate(job.net.stages if not job.net.one_piece else ()):
            x = job.net.apply(model, x, start=number, stop=number + 1, train=False)
            found[stage] = tuple((x[0] if isinstance(x, tuple) else x).shape[1:])
    return found


@dataclass
class Bill:
    """The observer that writes what has been spent into every round's record."""

    ledger: Ledger
    protection: Protection
    _notes: dict[int, Tree] = field(default_factory=dict)
    """Of every client that has released something, what its ledger says."""
    _epsilon: dict[int, float] = field(default_factory=dict)
    """Against the server."""
    _left_out: set[int] = field(default_factory=set)
    """Clients whose budget did not suffice for a turn: they count as being at its end, although another turn, in which
    no row is used twice in a batch, might fit."""

    def begin(self, homes: Homes, records: Sequence[Mapping[str, Any]]) -> None:
        """A run goes on after some rounds, of which these are the records."""
        if records:
            self._look(homes, range(self.ledger.clients))
        for record in records:
            for client, budget in record.get(_LEFT_OUT, {}).items():
                if self.ledger.budget_of(int(client)) <= budget:  # With a larger one it may go on.
                    self._left_out.add(int(client))

    def after_round(self, view: RoundView) -> None:
        everybody = any(result.phase.cohort is Cohort.ALL for result in view.phases)
        self._look(view.executor.homes, range(self.ledger.clients) if everybody else view.cohort)
        now = sorted({failure.client for failure in view.record.failed if failure.cause == "budget"})
        self._left_out |= set(now)
        view.record.add(self._shown(view.clock.round + 1))
        if now:
            view.record.add({_LEFT_OUT: {str(client): self.ledger.budget_of(client) for client in now}})

    @property
    def _budget(self) -> float | None:
        """The largest of all clients'; None where one has none."""
        largest = max(self.ledger.budget_of(client) for client in range(self.ledger.clients))
        return largest if math.isfinite(largest) else None

    def is_spent(self, rounds: int) -> bool:
        """Whether no client can take part in a whole round any more."""
        return self.ledger.has_budget and all(
            client in self._left_out or self.ledger.is_at_end(client, self._notes.get(client, {}), rounds)
            for client in range(self.ledger.clients)
        )

    def refuse_end(self, done: int, rounds: int, folder: Path) -> None:
        """Raise `BudgetSpent` where rounds are left in which nobody could take part."""
        if done < rounds and self.is_spent(done):
            raise BudgetSpent(
                f"the privacy budget is spent: after round {done} of {rounds} no client can take part without passing "
                f"epsilon = {self._budget:g} (delta {self.ledger.delta:g}); the rounds so far are kept: a larger "
                f"budget goes on from there, {self._larger(folder)}",
                key="epsilon",
            )

    def _larger(self, folder: Path) -> str:
        """How somebody gives a larger budget."""
        said = f"as in 'fewfed resume {folder} --epsilon NUMBER'" if self.ledger.budget is not None else ""
        sites = (
            "where sites allow it in their policy" if said else f"in the sites' policy, with 'fewfed resume {folder}'"
        )
        return " ".join(filter(None, (said, sites if self.ledger.own_budgets else "")))

    def summary(self, rounds: int) -> dict[str, Any]:
        """What a result says of it: JSON without infinities."""
        ledger = self.ledger
        spent = {view: self._most(view, rounds) for view in VIEWS}
        return {
            **{f"epsilon_{view}": value for view, value in spent.items()},
            "delta": ledger.delta,
            "budget": self._budget,
            "rdp": {f"epsilon_{view}": self._rdp(view, rounds) for view in VIEWS} if _can_compare() else None,
            "relation": RELATION,
            "assumed": ledger.assumed or None,
            "noise": _SOURCE[self.protection],
            "without_bound": {view: [str(gap) for gap in ledger.gaps[view]] for view in VIEWS},
        }

    def _rdp(self, view: View, rounds: int) -> float | None:
        """The same by Rényi divergences: looser, and another road to the same number."""
        return self._most(view, rounds, "rdp")

    def _look(self, homes: Homes, clients: Iterable[int]) -> None:
        for client in clients:
            notes: Tree = homes.book(client).get(self.ledger.name, {})
            if notes:
                self._notes[client] = notes
                self._epsilon[client] = self.ledger.spent(notes, "server", 0).epsilon(self.ledger.delta)

    def _shown(self, rounds: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for view in VIEWS:
            most = self._most(view, rounds)
            if most is not None:
                found[f"epsilon_{view}"] = most
        if self._budget is not None:
            found[_BUDGET] = self._budget
        if "epsilon_server" in found:
            found["epsilon_server_mean"] = sum(self._epsilon.values()) / self.ledger.clients
        return found

    def _most(self, view: View, rounds: int, accountant: Accountant = "pld") -> float | None:
        """The largest epsilon of a client; None where there is no bound."""
        # Sites see nothing but what the server has seen or made.
        seen = VIEWS if view == "sites" else VIEWS[:1]
        found = min(self._largest(each, rounds, accountant) for each in seen)
        return found if math.isfinite(found) else None

    def _largest(self, view: View, rounds: int, accountant: Accountant) -> float:
        if self.ledger.gaps[view]:
            return math.inf
        worst = max(self._notes.values(), key=lambda notes: _most_of(notes, view), default={})
        return self.ledger.spent(worst, view, rounds).epsilon(self.ledger.delta, accountant)


@dataclass(frozen=True)
class StopAtEnd:
    """The observer that ends a run whose budget is spent. It comes after the one that keeps the round."""

    bill: Bill
    folder: Path

    def after_round(self, view: RoundView) -> None:
        self.bill.refuse_end(view.clock.round + 1, view.clock.rounds, self.folder)


def told_privacy(privacy: Mapping[str, Any]) -> str:
    """What a result says of privacy in one line."""
    whom = {"server": "the server", "sites": "other sites"}
    parts = []
    for view, said in whom.items():
        epsilon = privacy[f"epsilon_{view}"]
        missing = privacy["without_bound"][view]
        if epsilon is not None:
            parts.append(f"epsilon {epsilon:.3g} against {said}")
        else:
            parts.append(f"no bound against {said}" + (f" ({missing[0]})" if missing else ""))
    assumed = f"; {privacy['assumed']}" if privacy.get("assumed") else ""
    return f"privacy: {', '.join(parts)}, delta {privacy['delta']:g}; {privacy['noise']}{assumed}"


def _can_compare() -> bool:
    """Whether the library that knows Rényi divergences is there."""
    return importlib.util.find_spec("dp_accounting") is not None


def _most_of(notes: Tree, view: View) -> float:
    return float(notes[view].max()) if view in notes else 0.0
