"""Looking at everything, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator

from fewfed.doctor import folders, limits, requirements, torch_here, trying
from fewfed.doctor.finding import Finding


def examine(*, slow_too: bool = False) -> Iterator[Finding]:
    """One finding after the other. `slow_too`: also executors that take long to start are tried."""
    yield from torch_here.look()
    yield from limits.look()
    yield from folders.look()
    yield folders.data_sets()
    yield from requirements.look()
    yield from trying.look(slow_too)
    yield from torch_here.gpus()  # Last: it starts CUDA, after which processes could not be forked for the others.


def is_well(findings: list[Finding]) -> bool:
    """Whether fewfed works here, whatever else could be added."""
    return all(each.state != "broken" for each in findings)
