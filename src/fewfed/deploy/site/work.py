"""From the coordinator's offer to a site's own job: the method, the network, the rows, and what stands at its door."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.deploy.messages import Offer, Terms
from fewfed.deploy.model import network_of, refuse_code, task_of
from fewfed.deploy.site.own_rows import OwnRows, parted, with_classes
from fewfed.engine import asking
from fewfed.engine.gate import Gate
from fewfed.engine.job import Job, is_inside
from fewfed.engine.rehearsal import Broadcasts, rehearse
from fewfed.errors import ConfigError, DataError, FewfedError, RunError
from fewfed.phase import Clock, Role
from fewfed.plan import Plan
from fewfed.privacy.policy import Policies, Policy, PolicyGate, budgets, gate_of, read, row_numbers
from fewfed.runs.budget import ledger_of, shapes_of_stages
from fewfed.runs.experiment import Resolved
from fewfed.runs.identity import weights_of
from fewfed.runs.scaling import InputScaling, measuring_job
from fewfed.version import __version__


@dataclass(frozen=True)
class Work:
    """One run as a site takes part in it."""

    name: str
    offer: Offer
    resolved: Resolved
    dataset: Dataset
    """Its own rows with the federation's classes, not scaled yet."""
    policies: Policies | None
    secret: bytes = field(repr=False)
    """What its staying noise is made with."""

    @property
    def number(self) -> int:
        """Which client this site is."""
        return self.offer.sites.index(self.name)

    @property
    def policy(self) -> Policy:
        """What this site allows."""
        if self.policies is None:
            return Policy()
        return self.policies.sites.get(self.name, self.policies.common)

    def allows(self, role: Role) -> bool:
        """Whether the site's policy lets something of this role leave."""
        return self.policy.roles is None or role in self.policy.roles

    @cached_property
    def measuring(self) -> Job:
        """The exchange before the first round, in which inputs are measured. The policy stands at it too."""
        job = measuring_job(OwnRows(self._parts[0], self.offer.sites, self.number), self.dataset.classes)
        return dataclasses.replace(job, gates=self._policy_gates(job, {}))

    def training(self, scaling: InputScaling) -> Job:
        """The run itself, on inputs that are scaled like everybody's."""
        experiment, training = self.resolved.experiment, self.resolved.training
        dataset, held_back = self._parts
        common = scaling.common
        if common is not None:
            if len(common.mean) != dataset.shape[0]:
                raise DataError(f"constants for {len(common.mean)} channels scale inputs of {dataset.shape[0]}")
            dataset = dataset.with_inputs(common.apply(dataset.train.x), common.apply(dataset.test.x))
            if held_back is not None:
                held_back = dataclasses.replace(held_back, x=common.apply(held_back.x))
        variation = self.resolved.options.variation
        rows = OwnRows(dataset, self.offer.sites, self.number, validation=held_back, variation=variation)
        plan = Plan(
            experiment.seed,
            training.batch,
            training.batch_rule,
            training.sampling,
            protection="system",
            secret=self.secret,
        )
        net, task = network_of(experiment, self.offer), task_of(self.offer)
        job = Job(self.resolved.chosen.method, net, task, rows, training, plan)
        asking.check_fit(job)
        policy = self._policy_gates(job, shapes_of_stages(job))
        own_budgets = budgets(policy[0]) if policy else None
        ledger = ledger_of(experiment, job, experiment.cohort_size(len(self.offer.sites)), own_budgets, scaling)
        gates: tuple[Gate, ...] = (*policy, *(() if ledger is None else (ledger,)))
        return dataclasses.replace(job, gates=gates)

    def terms(self) -> Terms:
        """What the site says of itself. It tells how many rows it has where its policy lets counts leave."""
        net = network_of(self.resolved.experiment, self.offer)
        dataset, held_back = self._parts
        tells = self.allows(Role.COUNTS)
        both = (self.dataset.train.x, self.dataset.test.x)
        return Terms(
            rows=len(dataset.train) if tells else None,
            test_rows=len(dataset.test) if tells else 0,
            validation_rows=0 if held_back is None else len(held_back) if tells else 1,
            fills=any(bool(torch.isnan(x).any()) for x in both),
            inputs=None if dataset.inputs is None else dataset.inputs.as_json(),
            weights=weights_of(net),
            version=__version__,
        )

    @cached_property
    def _parts(self) -> tuple[Dataset, Examples | None]:
        return parted(self.dataset, self.resolved.experiment.validation, self.resolved.experiment.seed + self.number)

    def _policy_gates(self, job: Job, shapes: Mapping[str, tuple[int, ...]]) -> tuple[PolicyGate, ...]:
        if self.policies is None:
            return ()
        mine = {name: each for name, each in self.policies.sites.items() if name == self.name}
        own = Policies(self.policies.common, mine)
        numbers = row_numbers(self.dataset, OwnRows(self._parts[0], self.offer.sites, self.number).places)
        return (gate_of(own, job, self.dataset.split_names, shapes, numbers),)


def own_policies(path: Path, name: str, others: Collection[str]) -> Policies:
    """What a site's policy file says. A table that is for no site, as one with a number, would be passed over in
    silence: what it was to keep back would leave."""
    found = read(path)
    if unknown := sorted(found.sites.keys() - {name, *others}):
        raise ConfigError(
            f"policy '{path}' has a table [site.{unknown[0]}], and no site is called so: a real site goes by its name "
            f"on the roster, never by a number; expected [site.{name}] for this one, or its lines above all tables",
            key="policy",
        )
    return found


def accepted(
    name: str, offer: Offer, dataset: Dataset, policy: Path | None, secret: bytes, others: Collection[str] = ()
) -> Work:
    """What a site makes of an offer, or an error that says why it does not take part. `others`: sites that it knows
    beside those of the run.

    Code comes from nobody: methods and networks are those of the installed package, by name.
    """
    resolved = Resolved.from_json(offer.config)
    refuse_code(resolved)
    method = resolved.chosen.method
    if name not in offer.sites:
        raise RunError(f"site '{name}' is not on the run's list of {len(offer.sites)} sites")
    if len(set(offer.sites)) != len(offer.sites) or list(offer.sites) != sorted(offer.sites):
        raise RunError("the run's list of sites is not in the order of their names: expected each once, sorted")
    if resolved.experiment.rows_public:
        raise ConfigError("rows_public: whether everybody may see a site's rows is not for the coordinator to say")
    resolved.experiment.cohort_size(len(offer.sites))
    if tuple(offer.shape) != dataset.shape:
        raise DataError(f"its inputs have shape {dataset.shape}: expected the federation's {tuple(offer.shape)}")
    if offer.task != dataset.task:
        raise DataError(f"its data are for {dataset.task}: expected {offer.task}")
    if method.needs_classes and offer.task != "classification":
        raise ConfigError(f"method '{method.label}' needs class labels: expected a classification task")
    dataset = with_classes(dataset, offer.classes)
    policies = None if policy is None else own_policies(policy, name, {*others, *offer.sites})
    return Work(name, offer, resolved, dataset, policies, secret)


def leaving(job: Job, rounds: int) -> str:
    """What the method sends from a site, by what it is and how it is combined, in the words of its declarations."""
    clocks = (Clock(number, rounds, job.training.epochs) for number in sorted({0, min(1, rounds - 1), rounds - 1}))
    crossing = [phase for clock in clocks for phase in asking.phases(job, clock) if not is_inside(phase)]
    said = {f"{upload.role} ({upload.combine.value})": None for phase in crossing for upload in phase.uploads.values()}
    return ", ".join(said) or "nothing"


def rehearsed(job: Job, rounds: int) -> Broadcasts | None:
    """What the coordinator may send in this job; None where the method cannot be tried out without data."""
    try:
        return rehearse(job, rounds)
    except FewfedError:
        return None
