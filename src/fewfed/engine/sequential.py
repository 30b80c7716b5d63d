"""The reference executor: one client after another, in this process, on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fewfed.engine.client import evaluate, run_member
from fewfed.engine.job import Job, Member, Outcome
from fewfed.engine.threads import one_thread
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree


class Sequential:
    """Readable and slow; what every other executor must agree with."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def place(self, server: Tree) -> Tree:
        return server

    def run(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[Member]) -> Iterator[Outcome]:
        for member in members:
            with one_thread():
                outcome = run_member(self._job, phase, clock, shared, member)
            yield outcome

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        with one_thread():
            return [evaluate(self._job, model) for model in models]

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
