"""How a method behaves: what it touches, what it hands over, what it does to scarce clients, and that it learns."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from fewfed import tree
from fewfed.conformance.clients import SIZES, odd_clients
from fewfed.conformance.differences import differences
from fewfed.conformance.playing import COHORT, ROUNDS, Played, play
from fewfed.conformance.property import Broken, refuse
from fewfed.conformance.reference import TRAINING, Reference, Subject, job_for, job_of, training_for
from fewfed.conformance.watchers import Careful, Scales
from fewfed.engine.executors.sequential import Sequential
from fewfed.method import Method
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import label_of, wrapped_field
from fewfed.phase import BY_ROWS, EQUAL, Clock, Cohort, Phase, Weight
from fewfed.training import Training, Weighting
from fewfed.tree import Tree

_ODD = {0, 1}
"""Clients with one sample, or one class."""
_LEARNT = 0.1
_TWO_SHARES = Weight(2.0)
"""Of the rows of two clients that a model has visited."""


def says_what_it_is(reference: Reference) -> str:
    method = reference.method
    told = {"family": method.family, "paper": method.paper, "label": method.label}
    missing = [f"its '{name}' is empty" for name, text in told.items() if not text]
    doc = type(method).__doc__ or ""
    if not doc or doc.startswith(f"{type(method).__name__}("):  # What a dataclass says of itself, where nobody did.
        missing.append("its class has no docstring")
    if method.name not in label_of(reference.spec):
        missing.append(f"'{reference.spec}' does not have its name '{method.name}'")
    refuse(missing, "a method says what it is and where it comes from")
    return ""


def nobody_fails(reference: Reference) -> str:
    refuse(_failures(reference.played), "nobody fails on ordinary clients")
    return ""


def leaves_inputs_alone(reference: Reference) -> str:
    refuse(reference.guard.changed_inputs, "what a client is given is not changed")
    return ""


def no_function_changes_inputs(subject: Subject) -> str:
    """Looked at after every single call of every function."""
    job = subject.job
    played = play(job, Careful(job), rounds=2, cohort=2, evaluate_every=2)
    refuse(_failures(played), "no function changes what a client is given")
    return ""


def packets_survive(reference: Reference) -> str:
    refuse(reference.guard.odd_packets, "packets survive being written and read")
    return ""


def shapes_are_known(reference: Reference) -> str:
    phases = [
        f"those of phase '{name}' are only known from its first packet" for name in reference.guard.guessed_shapes
    ]
    refuse(phases, "names and shapes of uploads follow from a client whose rows are zeros")
    return ""


def takes_fedavgs_steps(reference: Reference) -> str:
    """Unless the method says why not."""
    job = reference.job
    if job.method.steps_differ:
        refuse([] if " " in job.method.steps_differ else [f"it is '{job.method.steps_differ}'"],
               "'steps_differ' is a reason in words")  # fmt: skip
        return job.method.steps_differ
    problems = []
    for round, metrics in enumerate(reference.played.metrics):
        phases = job.method.phases(Clock(round, ROUNDS, job.training.epochs))
        found = sum(metrics["phases"][p.name]["steps"] for p in phases if p.cohort is not Cohort.SERVER)
        cohort = job.plan.cohort(round, len(SIZES), COHORT)
        expected = sum(job.plan.steps(SIZES[client], job.training.epochs) for client in cohort)
        problems += [] if found == expected else [f"in round {round + 1} they take {found} instead of {expected}"]
    refuse(problems, "clients take as many steps as under FedAvg, or 'steps_differ' says why not")
    return ""


def odd_clients_finish_or_are_reported(reference: Reference) -> str:
    """One sample or one class is handled or reported, never a crash, never a NaN."""
    job = dataclasses.replace(reference.job, federation=odd_clients())
    played = play(job, rounds=2, cohort=5)
    problems = []
    for metrics in played.metrics:
        ordinary = [failure for failure in metrics["failed"] if failure["client"] not in _ODD]
        problems += [f"client {failure['client']} failed beside them: {failure['reason']}" for failure in ordinary]
        problems += [
            f"client {failure['client']} failed without a reason"
            for failure in metrics["failed"]
            if not failure["reason"]
        ]
        problems += [] if math.isfinite(metrics["loss"]) else [f"the loss is {metrics['loss']}"]
    broken = [path for path, leaf in tree.leaves(played.last.server) if not torch.isfinite(leaf).all()]
    problems += [f"the server's {path} holds NaN or infinity" for path in broken]
    refuse(problems, "clients with one sample or one class finish or are reported")
    return ""


def learns(subject: Subject) -> str:
    """With the method's own training, not a preset's: its learning rate may be made for hundreds of rounds."""
    method = subject.method
    if any(one.each != "row" for one in method.mechanisms(Clock(0, 6, TRAINING["epochs"]))):
        return "noise on its model hides what so few rows tell"
    job = job_of(method, Training(**{**TRAINING, **method.own_training}))
    fresh = method.predictor(method.server_init(job.setup), method.client_init(job.setup))
    start = Sequential(job).evaluate([fresh])[0]
    end = play(job, rounds=6, cohort=len(SIZES), evaluate_every=6).metrics[-1]
    if method.personal_model:
        matched = [start.matched(job.federation.counts(client)) for client in range(len(SIZES))]
        before, after = sum(matched) / len(matched), end["accuracy_matched"]
    else:
        before, after = start.accuracy, end["accuracy"]
    if not after > before + _LEARNT:
        raise Broken(
            f"within six rounds on digits accuracy rises by more than {100 * _LEARNT:.0f} points, but it went from "
            f"{100 * before:.1f} to {100 * after:.1f} %"
        )
    return ""


def neutral_is_fedavg(subject: Subject) -> str:
    """Where a method declares settings with which it is FedAvg (a wrapper: what it wraps), it is, bit for bit."""
    neutral = subject.method.neutral
    if neutral is None:
        return "it declares no neutral setting"
    values = {**subject.values, **neutral}
    ours = play(job_for(subject.spec, values))
    plain = play(job_of(_without_wrapper(ours.job.method), training_for(subject.spec)))
    found = [differences(a, b) for a, b in zip(_predictors(ours), _predictors(plain), strict=True)]
    refuse(
        [text for texts in found for text in texts], f"with {dict(neutral)} the model is FedAvg's, or what is wrapped's"
    )
    return ""


def _without_wrapper(method: Method) -> Method:
    """What a neutral wrapper leaves as it was; FedAvg for everything that wraps nothing."""
    inside = wrapped_field(type(method))
    wrapped: Method = getattr(method, inside) if inside else FedAvg()
    return wrapped


def _predictors(played: Played) -> list[Tree]:
    """The model that predicts for each client."""
    method, last = played.job.method, played.last
    fresh = method.client_init(played.job.setup)
    return [method.predictor(last.server, last.states.get(client, fresh)) for client in range(len(SIZES))]


def weighs_as_set(subject: Subject) -> str:
    """By samples a client weighs its rows, where a phase declares two shares of rows also those of one other client
    (a model that visited both), and where it declares none the same as everybody; uniformly all weigh the same."""
    problems = []
    for phase, weights in _weighed(subject, "samples"):
        rows = {client: float(SIZES[client]) for client in weights}
        if phase.weight == EQUAL:
            fits = set(weights.values()) == {1.0}
        elif phase.weight == _TWO_SHARES:
            fits = sorted(weight - rows[client] for client, weight in weights.items()) == sorted(rows.values())
        else:
            fits = phase.weight != BY_ROWS or weights == rows
        problems += [] if fits else [f"by samples, in phase '{phase.name}', they weigh {weights}"]
    for phase, weights in _weighed(subject, "uniform"):
        all_alike = {phase.weight.per_row + phase.weight.beside}
        fits = phase.weight not in (EQUAL, _TWO_SHARES, BY_ROWS) or set(weights.values()) == all_alike
        problems += [] if fits else [f"uniformly, in phase '{phase.name}', they weigh {weights}"]
    refuse(problems, "clients weigh what the training says, unless a phase declares otherwise")
    return ""


def _weighed(subject: Subject, weighting: Weighting) -> list[tuple[Phase, dict[int, float]]]:
    job = subject.job
    job = dataclasses.replace(job, training=dataclasses.replace(job.training, weighting=weighting))
    scales = Scales(job)
    play(job, scales, rounds=2, evaluate_every=2)
    return scales.found


def _failures(played: Played) -> list[str]:
    every: list[dict[str, Any]] = [failure for metrics in played.metrics for failure in metrics["failed"]]
    return [
        f"client {failure['client']} failed in phase '{failure['phase']}': {failure['reason']}" for failure in every
    ]
