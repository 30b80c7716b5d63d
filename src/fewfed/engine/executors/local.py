"""What executors share whose clients are all in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fewfed.data.federation import HeldOut
from fewfed.engine import asking
from fewfed.engine.executor import Invited
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.scoring import Answered
from fewfed.engine.turn import Member
from fewfed.phase import Phase
from fewfed.task import Score
from fewfed.tree import Tree


class LocalExecutor:
    """Has the clients' homes, and can score each client's own model."""

    def __init__(self, job: Job, homes: SimulatedHomes | None = None) -> None:
        self._job = job
        self._homes = homes or SimulatedHomes(job)

    @property
    def job(self) -> Job:
        return self._job

    @property
    def homes(self) -> SimulatedHomes:
        return self._homes

    def place(self, server: Tree) -> Tree:
        return server

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        raise NotImplementedError

    def evaluate_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> list[Score]:
        return self.evaluate(self._own_models(server, clients), on)

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        raise NotImplementedError

    def answers_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> Iterator[Answered]:
        return self.answers(self._own_models(server, clients), on)

    def at_home(self, phase: Phase, members: Iterable[Invited]) -> Iterator[Member]:
        """Members together with what they remember, one by one as the executor asks for them."""
        homes = self._homes
        return (
            Member(
                one.client,
                one.personal,
                homes.state(one.client),
                homes.moments(one.client, phase),
                homes.book(one.client),
            )
            for one in members
        )

    def _own_models(self, server: Tree, clients: Sequence[int]) -> Iterator[Tree]:
        return (asking.predictor(self._job, server, self._homes.state(client)) for client in clients)
