"""From a configuration to a job: data read and split, network built, everything checked before anything is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewfed import networks
from fewfed.data.examples import Dataset
from fewfed.data.federation import SplitFederation
from fewfed.data.leave_out import leave_out
from fewfed.data.readers.roles import GROUPS
from fewfed.data.reading import Reading
from fewfed.data.sources import load, names
from fewfed.data.splits import BY_CLASS, RELEASED, DirichletOptions, Split, make_split, parse_rule, released_options
from fewfed.data.validation import hold_back
from fewfed.engine import asking
from fewfed.engine.evaluation import refuse_metric
from fewfed.engine.gate import Gate
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError, concerning
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Plan, Random
from fewfed.privacy.ledger import Ledger
from fewfed.privacy.policy import budgets
from fewfed.privacy.recording import Recording, recording_of
from fewfed.runs.blueprint import Blueprint, blueprint_of
from fewfed.runs.budget import ledger_of, policy_of, refuse_hopeless
from fewfed.runs.executors import refuse_unused
from fewfed.runs.experiment import AUTO, RECORDS, Experiment, Resolved
from fewfed.runs.first_model import first_model
from fewfed.runs.identity import content_of, inputs_of, sources_of
from fewfed.runs.robustness import attackers_of, defence_of, told_robustness
from fewfed.runs.scaling import InputScaling, scale
from fewfed.runs.user_code import network_code
from fewfed.task import Task
from fewfed.tasks.classification import Classification
from fewfed.tasks.segmentation import Segmentation


@dataclass(frozen=True)
class Prepared:
    """An experiment whose data are read, split and checked: nothing can be wrong with the settings any more."""

    resolved: Resolved
    job: Job
    split: Split
    manifest: dict[str, Any]
    inputs: dict[str, Any]
    """What identifies the data and the first weights: a resumed run must be given the same."""
    cohort: int
    note: str
    scaling: InputScaling
    """What was done to the inputs."""
    blueprint: Blueprint
    """What is needed beside the weights to use the model."""
    own_data: Dataset | None = None
    """The user's own object, where the data are not looked up by name."""
    own_network: bool = False
    reading: Reading | None = None
    """How the user's own files were read."""
    recording: Recording | None = None
    """Which packets are kept; None where none are."""
    ledger: Ledger | None = None
    """What adds up what clients release; None where nothing is bounded and nobody asked for a budget."""


def prepare(
    resolved: Resolved,
    *,
    data: Dataset | None = None,
    network: nn.Module | Network | None = None,
    loaded: Dataset | None = None,
) -> Prepared:
    """Read, split, build and check everything before anything is written.

    `data` and `network` are the user's own objects; `loaded` is what the configuration's data are, where somebody has
    read them already.
    """
    check_rule(resolved.experiment)
    with concerning("data", resolved.experiment.data):
        sources = _sources(resolved, data, network)
        given = loaded if data is None else data
        whole = data_of(resolved) if given is None else given
    resolved = settled(resolved, whole)
    experiment = resolved.experiment
    dataset = training_part(whole, experiment)
    split, held_back = parts_of(dataset, experiment)
    with concerning("normalise", resolved.options.normalise):
        dataset, scaling = scale(dataset, split, held_back, resolved.options)
    federation = federation_of(resolved, dataset, split, held_back)
    made = made_from(resolved, dataset, federation, scaling, network)
    job, ledger, cohort = made.job, made.ledger, made.cohort
    recording = _recording(experiment, len(split))
    manifest = {**manifest_of(dataset, split, held_back, whole.reading), "scaling": scaling.mode}
    inputs = inputs_of(dataset, job.net, sources)
    note = "; ".join(filter(None, (dataset.note, split.note, scaling.told, made.said)))
    own = network is not None
    blueprint = blueprint_of(resolved, job, dataset, split, scaling, own)
    return Prepared(
        resolved,
        job,
        split,
        manifest,
        inputs,
        cohort,
        note,
        scaling,
        blueprint,
        data,
        own,
        whole.reading,
        recording,
        ledger,
    )


@dataclass(frozen=True)
class Made:
    """A job, checked, and what was found on the way."""

    job: Job
    cohort: int
    ledger: Ledger | None
    said: str = ""
    """What a result says of attackers and of what is done against them."""


def made_from(
    resolved: Resolved,
    dataset: Dataset,
    federation: SplitFederation,
    scaling: InputScaling,
    network: nn.Module | Network | None = None,
) -> Made:
    """The job of a configuration whose data are read, split and scaled; a pure function of what it is given, and of
    the files that the configuration names for its method, network, first model and policy."""
    experiment, training = resolved.experiment, resolved.training
    plan = Plan(experiment.seed, training.batch, training.batch_rule, training.sampling)
    method = resolved.chosen.method
    with concerning("network", experiment.network):
        net = _network(experiment, dataset, network)
        _refuse_unfit_network(net, dataset)
    if experiment.start_from:
        with concerning("start_from", experiment.start_from):
            net = net.starting_from(first_model(Path(experiment.start_from), net))
    job = Job(method, net, _task(dataset), federation, training, plan, rows_public=experiment.rows_public)
    with concerning("method", resolved.spec):
        asking.check_fit(job)
    with concerning("metric", experiment.metric):
        refuse_metric(job, experiment.metric)
    for number in (0, experiment.rounds - 1):  # A method may refuse the epochs where it lays out a round.
        asking.phases(job, Clock(number, experiment.rounds, training.epochs))
    cohort = experiment.cohort_size(len(federation))
    refuse_unused(resolved, cohort)
    policy = policy_of(experiment, job, dataset, federation)
    ledger = ledger_of(experiment, job, cohort, budgets(policy) if policy else None, scaling)
    if ledger is not None and ledger.has_budget:
        refuse_hopeless(ledger, job)
    gates: tuple[Gate | None, ...] = (policy, ledger)  # Whoever a policy leaves out is not billed.
    job = dataclasses.replace(job, gates=tuple(gate for gate in gates if gate is not None))
    defence, attackers = defence_of(experiment, job, cohort), attackers_of(experiment, job)
    job = dataclasses.replace(job, defence=defence, adversary=attackers)
    return Made(job, cohort, ledger, told_robustness(attackers, defence, len(federation)))


def federation_of(resolved: Resolved, dataset: Dataset, split: Split, held_back: Split | None) -> SplitFederation:
    """The clients of a configuration, from data that are split and scaled."""
    experiment = resolved.experiment
    return SplitFederation(
        dataset,
        split,
        validation=held_back,
        noise=experiment.noise,
        noise_kind=experiment.noise_kind,
        noise_test=experiment.noise_test,
        noise_fresh=experiment.noise_fresh,
        variation=resolved.options.variation,
        seed=experiment.seed,
    )


def _recording(experiment: Experiment, clients: int) -> Recording | None:
    usual = Experiment()
    if experiment.record == usual.record:
        for name in RECORDS:
            if getattr(experiment, name) != getattr(usual, name):
                raise ConfigError(f"{name} is set, but nothing is recorded: add record = packets", key=name)
        return None
    return recording_of(
        experiment.record_rounds,
        experiment.record_clients,
        experiment.record_mb,
        of_rounds=experiment.rounds,
        of_clients=clients,
    )


def data_of(resolved: Resolved) -> Dataset:
    """The data of a configuration, read."""
    with concerning("data", resolved.experiment.data):
        return load(resolved.experiment.data, options=resolved.options, seed=resolved.experiment.seed)


def settled(resolved: Resolved, whole: Dataset) -> Resolved:
    """The configuration with what it leaves to the data decided: its split, clients and cohort."""
    experiment = resolved.experiment
    if experiment.is_settled:
        return resolved
    own = experiment.data not in names()
    unseen = 1 if experiment.leave_out else 0
    found = {group: len(np.unique(whole.groups[group])) - unseen for group in GROUPS if own and group in whole.groups}
    return dataclasses.replace(resolved, experiment=experiment.settled(found))


def check_rule(experiment: Experiment) -> None:
    """Raise `ConfigError` for a split rule that cannot be read."""
    if experiment.split != AUTO:
        with concerning("split", experiment.split):
            parse_rule(experiment.split)


def _sources(resolved: Resolved, data: Dataset | None, network: nn.Module | Network | None) -> dict[str, Any]:
    """What identifies the files, or the user's own objects, that a run is made from. Before data are read, so that
    files which change meanwhile are noticed."""
    found = sources_of(resolved, None if data is None else content_of(data))
    return found if network is None else {**found, "network": network_code(network)}


def training_part(dataset: Dataset, experiment: Experiment) -> Dataset:
    """The data without the client an experiment leaves out, which becomes its test part."""
    if not experiment.leave_out:
        return dataset
    with concerning("leave_out", experiment.leave_out):
        return leave_out(dataset, parse_rule(experiment.split).name, experiment.leave_out)


def split_of(dataset: Dataset, experiment: Experiment) -> Split:
    """The clients of an experiment."""
    with concerning("split", experiment.split):
        return _split(dataset, experiment)


def parts_of(dataset: Dataset, experiment: Experiment) -> tuple[Split, Split | None]:
    """The rows that clients train on, and those they hold back for validation; None where they hold back none."""
    split = split_of(dataset, experiment)
    if not experiment.validation:
        return split, None
    with concerning("validation", experiment.validation):
        return hold_back(split, experiment.validation, experiment.seed, experiment.min_size)


def manifest_of(
    dataset: Dataset, split: Split, held_back: Split | None, reading: Reading | None = None
) -> dict[str, Any]:
    """What a run folder keeps about the split, and about how the user's own files were read."""
    manifest = split.manifest(dataset.split_labels, len(dataset.split_names))
    if held_back is not None:
        manifest["validation"] = {"rows": len(held_back.order), "digest": held_back.digest}
    if reading is not None:
        manifest["reading"] = reading.as_json()
    return {**manifest, "by_class": split.head(dataset.split_labels, dataset.split_names)}


def _split(dataset: Dataset, experiment: Experiment) -> Split:
    rule = parse_rule(experiment.split)
    if dataset.task == "segmentation" and rule.name in BY_CLASS:
        raise ConfigError(
            f"split '{experiment.split}' needs class labels but data '{dataset.name}' has masks: expected domain, "
            "subject, client, iid or size:BETA"
        )
    clients = 0 if experiment.clients is None else experiment.clients
    legacy = experiment.legacy_seed if experiment.legacy_seed >= 0 else None
    options: DirichletOptions | None = None
    if rule.name == RELEASED or (legacy is not None and rule.name == "dir"):
        options = released_options(dataset.name, clients, float(rule.values[0]))
    return make_split(
        experiment.split,
        dataset.split_labels,
        len(dataset.split_names),
        clients,
        experiment.seed,
        groups=dataset.groups,
        volume=experiment.volume,
        min_size=experiment.min_size if experiment.min_size >= 0 else None,
        legacy_seed=legacy,
        options=options,
    )


def _task(dataset: Dataset) -> Task:
    return Segmentation(dataset.classes) if dataset.task == "segmentation" else Classification(dataset.classes)


def _network(experiment: Experiment, dataset: Dataset, own: nn.Module | Network | None) -> Network:
    if own is not None:
        with one_thread():
            return own if isinstance(own, Network) else Network.of(own, example=dataset.train.x)
    name = experiment.network
    if name == "auto" and dataset.task == "segmentation":
        name = "unet"
    elif name == "auto":
        name = networks.default_for(dataset.name, dataset.shape)
    with one_thread():
        return networks.build(name, dataset.shape, dataset.classes, seed_of_weights(experiment), dataset.train.x)


def seed_of_weights(experiment: Experiment) -> int:
    """What the first weights of a network by name depend on."""
    return int(Random(experiment.seed, "weights").integers(2**31, 1))


def _refuse_unfit_network(net: Network, dataset: Dataset) -> None:
    try:
        with torch.no_grad():
            scores = net.apply(net.model(), dataset.test.x[:1], train=False)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"network '{net.name}' cannot take inputs of shape {dataset.shape} and type {dataset.test.x.dtype}: {error}"
        ) from error
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    masks = tuple(dataset.test.y.shape[1:])
    if found != (1, dataset.classes, *masks):
        each = "pixel and class" if masks else "class"
        raise ConfigError(
            f"network '{net.name}' answers one input with {found}: expected {(1, dataset.classes, *masks)}, a score a "
            f"{each}"
        )
