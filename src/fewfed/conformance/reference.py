"""A method as it is examined: on eight clients with few digits of few classes, beside its run in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fewfed.conformance.clients import digits_network, federation, plain_network
from fewfed.conformance.playing import Played, play
from fewfed.conformance.watchers import Guarded
from fewfed.data.federation import Federation
from fewfed.engine.job import Job
from fewfed.method import Method
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training

TRAINING: Mapping[str, Any] = {"epochs": 2, "batch": 8, "lr": 0.003}


@dataclass(frozen=True)
class Subject:
    """A method as a user writes it, and a job to examine it on."""

    spec: str
    values: Mapping[str, Any]
    """Fields that let it show all its phases in a run as short as these."""
    job: Job

    @classmethod
    def of(cls, spec: str, values: Mapping[str, Any] | None = None) -> Subject:
        return Subject(spec, dict(values or {}), job_for(spec, values))

    @property
    def method(self) -> Method:
        return self.job.method


@dataclass(frozen=True)
class Reference(Subject):
    """The same with its run in one process, and what was noticed on the way."""

    played: Played
    guard: Guarded

    @classmethod
    def of(cls, spec: str, values: Mapping[str, Any] | None = None) -> Reference:
        subject = Subject.of(spec, values)
        guard = Guarded(subject.job)
        return cls(subject.spec, subject.values, subject.job, play(subject.job, guard), guard)


def training_for(spec: str) -> Training:
    return Training(**{**TRAINING, **choose(spec).training})


def job_for(spec: str, values: Mapping[str, Any] | None = None, clients: Federation | None = None) -> Job:
    """The method on digits, with its preset's training."""
    return job_of(choose(spec, values).method, training_for(spec), clients)


def job_of(method: Method, training: Training, clients: Federation | None = None) -> Job:
    plan = Plan(0, training.batch, training.batch_rule, training.sampling)
    net = plain_network() if method.no_batchnorm else digits_network()
    return Job(method, net, Classification(10), clients or federation(), training, plan)
