"""Runs that answer for others: one that scores a second model beside its own has also done what would predict with it.

A method and its moving average train alike, so that one run fills two cells of a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fewfed.engine.evaluation import BESIDE
from fewfed.method import Method
from fewfed.reproduction.study import Planned
from fewfed.wrapper import Wrapper


@dataclasses.dataclass(frozen=True)
class Answer:
    """A planned run that another one answers for, and the name of the model in the other's record."""

    run: Planned
    name: str


def answers(runs: Sequence[Planned]) -> dict[str, list[Answer]]:
    """By the names of runs, those among the others that each answers for. A run that is answered for answers none."""
    groups: dict[Any, list[Planned]] = {}
    for run in runs:
        groups.setdefault(_around(run), []).append(run)
    found: dict[str, list[Answer]] = {}
    for group in groups.values():
        methods = [(run, run.resolved.chosen.method) for run in group]
        for run, method in methods:
            for name, other in method.besides.items():
                plain = _without_idle(other)
                alike = [Answer(one, name) for one, its in methods if one is not run and _without_idle(its) == plain]
                found.setdefault(run.name, []).extend(alike)
    return {name: answered for name, answered in found.items() if answered}


def needed(runs: Sequence[Planned], going: Iterable[Planned]) -> list[Planned]:
    """Those of `going` that no other of them answers for. `runs`: all of the study that are looked at."""
    left = list(going)
    there, by_name = {run.name for run in left}, answers(runs)
    answered = {answer.run.name for name, each in by_name.items() if name in there for answer in each}
    return [run for run in left if run.name not in answered]


def as_if_alone(metrics: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]] | None:
    """The records of a run's rounds as they would be if the other model had predicted; None where it was not scored."""
    made: list[dict[str, Any]] = []
    for record in metrics:
        if "accuracy" not in record and BESIDE not in record:  # A round after which nothing was scored.
            made.append(dict(record))
            continue
        numbers = record.get(BESIDE, {}).get(name)
        if numbers is None:
            return None
        alone = _without_scores(record) | numbers
        if "validation" in record:
            alone["validation"] = _without_scores(record["validation"]) | record["validation"][BESIDE][name]
        made.append(alone)
    return made


def _without_scores(record: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is known of the predicting model alone: its accuracy by class or group would be taken for both's."""
    return {name: value for name, value in record.items() if not name.startswith("per_") and name != BESIDE}


def _around(run: Planned) -> Any:
    """All of a configuration but its method, to compare with others'."""
    alone = dataclasses.replace(run.resolved.identity, spec="", values={})
    parts = (alone.experiment, alone.training, alone.options)
    executors = sorted((name, sorted(given.items())) for name, given in alone.executors.items())
    return (*map(repr, parts), repr(executors))


def _without_idle(method: Method) -> Method:
    """What is inside of wrappers that do nothing with their settings."""
    while isinstance(method, Wrapper) and method.neutral is not None:
        if any(getattr(method, name) != value for name, value in method.neutral.items()):
            return method
        method = method.inner
    return method
