"""What clients remember lives with the executor that runs them: the loop never holds it, and nothing of it is lost."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.client_store import ClientStore
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.cuda import options as cuda
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import options as workers
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Outcome
from fewfed.method import Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import NOTHING, Clock, Phase
from fewfed.tree import Tree
from support import briefing_of, digits_federation, job_of, linear_network, run, states

WIDTH = 997
"""Numbers of a state: no other array of these tests has this many."""
STATE_BYTES = 8 * WIDTH


@dataclass(frozen=True)
class Remembers(FedAvg):
    """Nobody trains or uploads; every client turns what it remembers into something else."""

    epochs: int = 0

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, self.epochs, NOTHING, keeps_state=True),)

    def client_init(self, setup: Setup) -> Tree:
        return {"kept": {"long": torch.zeros(WIDTH, dtype=torch.float64), "times": torch.tensor(0)}}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {"kept": after(ctx.client, ctx.state["kept"])}, 1.0)


def after(client: int, kept: Tree) -> Tree:
    """What a client remembers after one more participation."""
    own = torch.randn(WIDTH, generator=torch.Generator().manual_seed(client), dtype=torch.float64)
    return {"long": kept["long"].cpu() / 3 + own, "times": kept["times"].cpu() + 1}


def expected(client: int, times: int) -> Tree:
    kept: Tree = {"long": torch.zeros(WIDTH, dtype=torch.float64), "times": torch.tensor(0)}
    for _ in range(times):
        kept = after(client, kept)
    return {"kept": kept}


def small_job(method: FedAvg, clients: int) -> Job:
    rows = Examples(torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    federation = GeneratedFederation(clients, lambda client: rows, rows, classes=2)
    return job_of(method, federation, net=linear_network([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]), training={"batch": 1})


@contextmanager
def executor(kind: str, job: Job, homes: SimulatedHomes) -> Iterator[Executor]:
    made: Executor
    if kind == "sequential":
        made = Sequential(job, homes)
    elif kind == "workers":
        made = Workers(job, homes, workers.Options(2, stack=1, layout="plain"))
    else:
        made = Device(job, homes, cuda.Options(device="cpu", mode="graphs"))
    try:
        yield made
    finally:
        made.close()


KINDS = ("sequential", "workers", "device")


def test_before_the_first_participation_a_client_has_what_the_method_gives_it() -> None:
    homes = SimulatedHomes(small_job(Remembers(), 3))
    assert homes.remembered(1) is None
    assert not differences(homes.state(1), expected(1, 0))
    assert homes.commit() == {}, "nothing was put there by looking"


def test_only_a_phase_that_says_so_leaves_something(tmp_path: Path) -> None:
    job = small_job(Remembers(), 3)
    homes = SimulatedHomes(job, ClientStore(tmp_path))
    homes.keep(Phase("other", FedAvg(), 1), 1, expected(1, 1))
    assert homes.remembered(1) is None
    homes.keep(job.method.phases(Clock(0, 1, 1))[0], 1, expected(1, 1))
    assert not differences(homes.remembered(1) or {}, expected(1, 1))
    assert homes.commit().keys() == {"1"}
    assert [file.name for file in tmp_path.iterdir()] == [name for name, _ in homes.commit().values()], (
        "in the store that was given"
    )


class Discreet:
    """An executor that does not say where its clients live, and looks at everything that goes in and out."""

    def __init__(self, inner: Sequential) -> None:
        self._inner = inner
        self.place, self.evaluate, self.events, self.close = inner.place, inner.evaluate, inner.events, inner.close
        self.evaluate_personal = inner.evaluate_personal
        self.seen = 0

    @property
    def homes(self) -> NoReturn:
        raise AssertionError("somebody asked where the clients live")

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        for outcome in self._inner.run(briefing, self._watched(members)):
            assert not holds_a_state(outcome)
            self.seen += 1
            yield outcome

    def _watched(self, members: Iterable[Invited]) -> Iterator[Invited]:
        for member in members:
            assert not holds_a_state(member)
            yield member


def holds_a_state(value: object) -> bool:
    """Whether an array of a state's size is somewhere in records, tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.numel() == WIDTH
    if isinstance(value, dict):
        return any(holds_a_state(part) for part in value.values())
    if isinstance(value, (tuple, list)):
        return any(holds_a_state(part) for part in value)
    return dataclasses.is_dataclass(value) and any(
        holds_a_state(getattr(value, field.name)) for field in dataclasses.fields(value)
    )


def test_the_loop_neither_asks_for_states_nor_hands_them_on() -> None:
    job = small_job(Remembers(), 5)
    inner = Sequential(job)
    assert holds_a_state(Report({}, expected(0, 1), 1.0))
    watched = Discreet(inner)
    run_rounds(job, watched, [], rounds=3, cohort=5)
    assert watched.seen == 15
    for client in range(5):
        assert not differences(states(inner, 5)[client], expected(client, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_states_stay_at_home_on_every_executor(kind: str) -> None:
    job = small_job(Remembers(), 7)
    homes = SimulatedHomes(job)
    with executor(kind, job, homes) as made:
        recorder = run(job, rounds=4, cohort=3, executor=made)
        assert made.homes is homes
        drawn = [client for view in recorder.views for client in view.cohort]
        for client in range(7):
            times = drawn.count(client)
            assert not differences(homes.remembered(client) or {}, expected(client, times) if times else {})
    assert not holds_a_state(recorder.server)
    assert not any(holds_a_state((view.phases, view.record, view.server)) for view in recorder.views)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_packet_is_refused_remembers_what_it_did_before(kind: str) -> None:
    @dataclass(frozen=True)
    class RefusedLater(Remembers):
        def end(self, work: Tree, ctx: Context) -> Report:
            weight = float("nan") if ctx.client == 1 and not ctx.clock.first else 1.0
            return super().end(work, ctx)._replace(weight=weight)

    job = small_job(RefusedLater(), 4)
    homes = SimulatedHomes(job)
    with executor(kind, job, homes) as made:
        recorder = run(job, rounds=3, cohort=4, executor=made)
    assert [[failure["client"] for failure in metrics["failed"]] for metrics in recorder.metrics] == [[], [1], [1]]
    assert {failure["cause"] for metrics in recorder.metrics for failure in metrics["failed"]} == {"packet"}
    for client in range(4):
        assert not differences(homes.remembered(client) or {}, expected(client, 1 if client == 1 else 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["scaffold", "local", "fedbn"])
def test_a_run_goes_on_from_homes_that_were_restored(kind: str, method: str, tmp_path: Path) -> None:
    """The second part begins in new homes, after rounds that were lost: only what was committed is there."""
    job = job_of(method, digits_federation(6, 8), training={"epochs": 1})
    with executor(kind, job, SimulatedHomes(job)) as made:
        whole = run(job, rounds=4, cohort=4, executor=made)
        left = states(made, 6)
    first = SimulatedHomes(job, ClientStore(tmp_path, memory_bytes=1))
    with executor(kind, job, first) as made:
        run(job, rounds=2, cohort=4, executor=made)
        server = tree.clone(whole.views[1].server)
        committed = first.commit()
        first.settle()
        run(job, rounds=4, cohort=4, executor=made, server=server, start=2)
        first.commit()  # Of a checkpoint that was never written.
    again = SimulatedHomes(job, ClientStore(tmp_path))
    again.restore(committed)
    with executor(kind, job, again) as made:
        parts = run(job, rounds=4, cohort=4, executor=made, server=server, start=2)
        found = states(made, 6)
    assert left
    assert not differences(parts.server, whole.server)
    assert found.keys() == left.keys()
    assert all(not differences(found[client], left[client]) for client in left)


def test_settling_drops_what_only_an_earlier_checkpoint_needed(tmp_path: Path) -> None:
    job = small_job(Remembers(), 3)
    homes = SimulatedHomes(job, ClientStore(tmp_path))
    run(job, rounds=1, cohort=3, homes=homes)
    first = homes.commit()
    homes.settle()
    run(job, rounds=2, cohort=3, homes=homes, start=1)
    second = homes.commit()
    assert {file.name for file in tmp_path.iterdir()} == {name for name, _ in (*first.values(), *second.values())}
    homes.restore(first)
    assert all(not differences(homes.remembered(client) or {}, expected(client, 1)) for client in range(3))
    run(job, rounds=2, cohort=3, homes=homes, start=1)
    third = homes.commit()
    homes.settle()
    homes.settle()  # The next checkpoint needs them no more than this one.
    assert {file.name for file in tmp_path.iterdir()} == {name for name, _ in third.values()}
    assert all(not differences(homes.remembered(client) or {}, expected(client, 2)) for client in range(3))


def test_homes_without_a_folder_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = small_job(Remembers(), 3)
    homes = SimulatedHomes(job)
    run(job, rounds=1, cohort=3, homes=homes)
    homes.commit()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    homes.close()
    assert not list(tmp_path.iterdir())


MANY = 1000
LIMIT = 20 * STATE_BYTES
HELD = {"sequential": 4, "workers": 2 * 2 * (2 + 8) + 4, "device": 2 * MANY}
"""States that an executor works on besides: one client's; those that run, wait or came early; a whole part of 1024."""


class Counting(SimulatedHomes):
    """Counts the states that stand in this process's memory while clients come home, and when all have."""

    most = 0
    came_home = 0

    def keep(self, phase: Phase, client: int, state: Tree) -> None:
        super().keep(phase, client, state)
        self.came_home += 1
        if self.came_home % 250 == 0:
            self.most = max(self.most, alive())


def alive() -> int:
    gc.collect()
    # Not `isinstance`, which wakes up what torch would load late.
    return len({leaf.data_ptr() for leaf in gc.get_objects() if type(leaf) is Tensor and leaf.numel() == WIDTH})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["workers"])  # The others share its homes, and are looked at with fewer clients.
def test_a_thousand_clients_whose_states_do_not_fit_spill_to_disk_and_come_back(kind: str, tmp_path: Path) -> None:
    job = small_job(Remembers(), MANY)
    homes = Counting(job, ClientStore(tmp_path, memory_bytes=LIMIT))
    with executor(kind, job, homes) as made:
        run(job, rounds=2, cohort=MANY, executor=made)
        assert homes.came_home == 2 * MANY
        assert 0 < homes.most <= LIMIT // STATE_BYTES + HELD[kind]
        assert 0 < alive() <= LIMIT // STATE_BYTES + 2, "between rounds executors hold nothing of clients"
    assert MANY * STATE_BYTES >= 50 * LIMIT
    assert len(list(tmp_path.iterdir())) >= MANY - LIMIT // STATE_BYTES
    for client in (0, MANY - 1, *range(1, MANY, 7)):
        assert not differences(homes.remembered(client) or {}, expected(client, 2))
    committed = homes.commit()
    homes.settle()
    homes.settle()
    assert len(committed) == len(list(tmp_path.iterdir())) == MANY
    again = SimulatedHomes(job, ClientStore(tmp_path, memory_bytes=LIMIT))
    again.restore(committed)
    for client in range(MANY):
        assert not differences(again.remembered(client) or {}, expected(client, 2))


def test_an_executor_asks_for_a_state_only_when_it_gets_to_the_client() -> None:
    job = small_job(Remembers(), MANY)
    asked: list[int] = []

    class Noting(SimulatedHomes):
        def state(self, client: int) -> Tree:
            asked.append(client)
            return super().state(client)

    outcomes = Sequential(job, Noting(job)).run(briefing_of(job, Clock(0, 1, 1)), (Invited(k, {}) for k in range(MANY)))
    next(outcomes)
    assert asked == [0]
    next(outcomes)
    assert asked == [0, 1]
