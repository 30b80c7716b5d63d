"""How the inputs of a run are scaled: whose means and deviations, and what had to be exchanged to know them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fewfed.data.examples import Dataset
from fewfed.data.federation import Federation, SplitFederation
from fewfed.data.readers.options import DataOptions
from fewfed.data.scaling import Scaling
from fewfed.data.splits import NATURAL, Split, parse_rule
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.records import PhaseRecord
from fewfed.errors import ConfigError, DataError
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.runs.measure import MeasureInputs
from fewfed.tasks.classification import Classification
from fewfed.training import Training

Mode = Literal["none", "fixed", "pooled", "federated", "site"]


@dataclass(frozen=True)
class InputScaling:
    """What was done to the inputs of a run, so that it can be done to new ones."""

    mode: Mode
    common: Scaling | None = None
    """The constants of everybody; None where inputs are left alone, or every site has its own."""
    sites: Mapping[str, Scaling] = field(default_factory=dict)
    """By the site's name, where every site has its own."""
    exchange: Mapping[str, PhaseRecord] = field(default_factory=dict)
    """What crossed between clients and server to measure them, by phase; nothing where nothing did."""

    @property
    def told(self) -> str:
        """What a result says about it; nothing where it is what everybody expects of a simulation."""
        return {
            "federated": "inputs scaled by sums over all clients (normalise = federated)",
            "site": "inputs scaled by each site for itself (normalise = site)",
        }.get(self.mode, "")

    def as_json(self) -> dict[str, Any]:
        common = None if self.common is None else self.common.as_json()
        return {"mode": self.mode, "common": common, "sites": {name: own.as_json() for name, own in self.sites.items()}}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> InputScaling:
        try:
            mode, common, sites = recorded["mode"], recorded["common"], dict(recorded["sites"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"how inputs are scaled is damaged ({error}): expected what 'fewfed run' wrote") from error
        made = None if common is None else Scaling.from_json(common)
        return cls(mode, made, {str(name): Scaling.from_json(own) for name, own in sites.items()})


def mode_of(dataset: Dataset, split: str, options: DataOptions) -> Mode:
    """Whose constants are used where nobody said: published ones; those of all clients' sums between natural sites;
    else those of all training rows together, as papers do where a benchmark is split."""
    if options.normalise != "auto":
        return options.normalise
    if dataset.scaling is None:
        return "none"
    if dataset.scaling.published:
        return "fixed"
    return "federated" if parse_rule(split).name in NATURAL else "pooled"


def scaled_by_known(dataset: Dataset, split: str, options: DataOptions) -> Dataset:
    """The data set with what its reader knows applied, where that is what a run will use: done once, it may then be
    shared by many runs."""
    if dataset.is_scaled or mode_of(dataset, split, options) not in ("fixed", "pooled"):
        return dataset
    return apply_known(dataset, options)


def apply_known(dataset: Dataset, options: DataOptions) -> Dataset:
    """The data set scaled with the constants that its reader, or the user, knows."""
    known = _given(dataset, options) or dataset.scaling
    if known is None:
        raise ConfigError(
            f"normalise = {options.normalise}, but data '{dataset.name}' has no constants of its own: expected "
            "scale_mean and scale_std with it, a number for each channel or column",
            key="normalise",
        )
    return dataclasses.replace(_scaled(dataset, known), scaling=known, is_scaled=True)


def scale(
    dataset: Dataset, split: Split, held_back: Split | None, options: DataOptions
) -> tuple[Dataset, InputScaling]:
    """The data set as clients train and are tested on it, and what was done to it."""
    mode = mode_of(dataset, split.name, options)
    if dataset.is_scaled:
        return dataset, InputScaling(mode, dataset.scaling)
    missing = bool(torch.isnan(dataset.train.x).any() or torch.isnan(dataset.test.x).any())
    match mode:
        case "none" if missing:
            natural = parse_rule(split.name).name in NATURAL
            found, exchange = _measured(dataset, split) if natural else (_pooled(dataset), {})
            filling = found.only_filling()
            return _scaled(dataset, filling), InputScaling("none", filling, exchange=exchange)
        case "none":
            return dataset, InputScaling("none")
        case "federated":
            common, exchange = _measured(dataset, split)
            return _scaled(dataset, common), InputScaling("federated", common, exchange=exchange)
        case "site":
            return _by_site(dataset, split, held_back)
    done = apply_known(dataset, options)
    return done, InputScaling(mode, done.scaling)


def _pooled(dataset: Dataset) -> Scaling:
    known = Scaling.of(dataset.train.x)
    return dataclasses.replace(known, fill=known.mean)


def _given(dataset: Dataset, options: DataOptions) -> Scaling | None:
    """The user's own constants."""
    if options.normalise != "fixed" or not (options.scale_mean or options.scale_std):
        return None
    return given_constants(options, dataset.shape[0], f"data '{dataset.name}'")


def given_constants(options: DataOptions, wanted: int, whose: str) -> Scaling:
    """The constants in `scale_mean` and `scale_std`: so many of each."""
    parts = []
    for name, text in (("scale_mean", options.scale_mean), ("scale_std", options.scale_std)):
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        usable = all(math.isfinite(number) and (number > 0 or name == "scale_mean") for number in numbers)
        if len(numbers) != wanted or not usable:
            above = "" if name == "scale_mean" else " above 0"
            raise ConfigError(
                f"{name} = '{text[:80]}': expected {wanted} numbers{above} with commas between, one for each channel "
                f"or column of {whose}",
                key=name,
            )
        parts.append(numbers)
    mean, std = parts
    return Scaling.constants(mean, std)


def _scaled(dataset: Dataset, scaling: Scaling) -> Dataset:
    return dataset.with_inputs(scaling.apply(dataset.train.x), scaling.apply(dataset.test.x))


def _measured(dataset: Dataset, split: Split) -> tuple[Scaling, Mapping[str, PhaseRecord]]:
    """The constants that the clients measure together, by the same packets as everything else that leaves them."""
    job = measuring_job(SplitFederation(dataset, split), dataset.classes)
    seen: list[RoundView] = []
    server = run_rounds(job, Sequential(job), [_Keep(seen)], rounds=1, cohort=len(split))
    record = seen[0].record
    if record.failed:
        first = record.failed[0]
        raise DataError(
            f"the inputs of client {first.client} cannot be summed up ({first.reason}): expected numbers of ordinary "
            "size; leave such columns out, or use other units"
        )
    fills = bool(torch.isnan(dataset.train.x).any() or torch.isnan(dataset.test.x).any())
    return Scaling.from_moments(server["mean"], server["std"], fills), record.phases


def measuring_job(federation: Federation, classes: int) -> Job:
    """The exchange in which clients measure their inputs together."""
    stand_in = Network("inputs", {"inputs": nn.Identity()})
    return Job(MeasureInputs(), stand_in, Classification(max(2, classes)), federation, Training(), Plan(0, 1))


@dataclass(frozen=True)
class _Keep:
    seen: list[RoundView]

    def after_round(self, view: RoundView) -> None:
        self.seen.append(view)


def _by_site(dataset: Dataset, split: Split, held_back: Split | None) -> tuple[Dataset, InputScaling]:
    grouping = split.name
    if grouping not in NATURAL or grouping not in dataset.test_groups:
        raise ConfigError(
            f"normalise = site needs to know whose every row is, training and test: expected a natural split and data "
            f"that says so, not split '{grouping}' of data '{dataset.name}'; use federated or none",
            key="normalise",
        )
    train_x, test_x = dataset.train.x.clone(), dataset.test.x.clone()
    tested = torch.from_numpy(dataset.test_groups[grouping])
    unseen = torch.ones(len(test_x), dtype=torch.bool)
    sites: dict[str, Scaling] = {}
    for client in range(len(split)):
        rows = torch.tensor(split.rows(client))
        group = int(dataset.groups[grouping][split.rows(client)[0]])
        own = _own(dataset.train.x[rows])
        for part in (rows, *([] if held_back is None else [torch.tensor(held_back.rows(client))])):
            train_x[part] = own.apply(train_x[part])
        theirs = tested == group
        test_x[theirs] = own.apply(test_x[theirs])
        unseen &= ~theirs
        sites[dataset.group_name(grouping, group)] = own
    if bool(unseen.any()):
        name = dataset.group_name(grouping, int(tested[unseen][0]))
        raise ConfigError(
            f"normalise = site, but {grouping} '{name}' has test rows and nobody trains there: expected every site in "
            "both parts; use federated or none",
            key="normalise",
        )
    return dataset.with_inputs(train_x, test_x), InputScaling("site", sites=sites)


def _own(x: Tensor) -> Scaling:
    """Of a site's training rows; its test rows may miss values that these have."""
    known = Scaling.of(x)
    return dataclasses.replace(known, fill=known.mean)
