"""Workers that give no answer: stopped, endless, or asked to end in the middle of something. Nobody waits for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from probes import Interrupted, fail
from processes import children, descendants, is_gone, is_stopped

from fewfed import networks
from fewfed.conformance.differences import differences
from fewfed.engine.events import WorkerStuck
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import pool
from fewfed.engine.executors.workers.deadline import FIRST, LEAST, TIMES, Deadline
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.errors import RunError
from fewfed.method import Context
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import is_essential, make
from run_support import forked, wait_until
from support import Recorder, digits_federation, job_of, run

pytestmark = pytest.mark.timeout(120)

CLIENTS = 4
DEADLINE = 1.0
"""Many times what a turn takes here, even on a machine with much else to do."""

Happens = Callable[[Context], None]


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """The first stack of a process loads parts of torch for a second; worker processes inherit them."""
    torch.func.vmap(torch.func.grad(torch.sum))(torch.zeros(2, 3))


def job_for(happens: Happens = lambda ctx: None) -> Job:
    net = networks.build("mlp", (1, 8, 8), 10, 3)
    return job_of(Interrupted(happens=happens), digits_federation(CLIENTS, 8), net=net, training={"epochs": 1})


@contextmanager
def workers(job: Job, processes: int = 2, stack: int = 1, deadline: float = DEADLINE) -> Iterator[Workers]:
    executor = Workers(job, options=Options(processes, stack=stack, layout="plain", deadline=deadline))
    try:
        yield executor
    finally:
        executor.close()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def loop() -> None:
    while True:
        pass


WAYS = {"stopped": stop, "endless": loop}


def stuck(client: int, way: Callable[[], None], marker: Path | None = None) -> Happens:
    """This client's turn never ends in a worker; only the first time, if there is a marker for that."""
    home = os.getpid()

    def happens(ctx: Context) -> None:
        if os.getpid() == home or ctx.client != client:
            return
        if marker is not None:
            if marker.exists():
                return
            marker.write_text(str(os.getpid()))
        way()

    return happens


def ran(job: Job, executor: Any) -> Recorder:
    return run(job, executor=executor, rounds=1, cohort=CLIENTS)


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_that_does_not_end_is_run_again_and_changes_nothing(way: str, tmp_path: Path) -> None:
    with workers(job := job_for(stuck(2, WAYS[way], tmp_path / "stuck"))) as executor:
        found = ran(job, executor)
    assert not differences(found.server, ran(job_for(), Sequential(job_for())).server)
    assert found.metrics[0]["failed"] == []
    (event,) = found.views[0].record.events
    assert isinstance(event, WorkerStuck)
    assert "2" in event.again
    assert "workers.deadline" in str(event)
    assert is_gone(int((tmp_path / "stuck").read_text()))


def test_a_turn_that_never_ends_is_left_out_and_the_others_stand() -> None:
    with workers(job := job_for(stuck(1, loop))) as executor:
        found = ran(job, executor)
    without = job_for(fail(1))
    assert not differences(found.server, ran(without, Sequential(without)).server)
    (failure,) = found.metrics[0]["failed"]
    assert (failure["client"], failure["cause"]) == (1, "worker")
    assert "no answer for" in failure["reason"]
    assert "workers.deadline" in failure["reason"]
    assert len(found.metrics[0]["events"]) == 2


def test_a_bundle_with_a_turn_that_never_ends_is_split_up(tmp_path: Path) -> None:
    with workers(job := job_for(stuck(1, stop, tmp_path / "stuck")), 1, CLIENTS, DEADLINE / CLIENTS) as executor:
        found = ran(job, executor)
    assert found.metrics[0]["failed"] == []
    assert [event["kind"] for event in found.metrics[0]["events"]].count(WorkerStuck.kind) == 1


def test_a_scoring_that_never_ends_is_an_error() -> None:
    job, home = job_for(), os.getpid()
    apply = job.net.apply

    def endless(*arguments: Any, **options: Any) -> Any:
        if os.getpid() != home:
            loop()
        return apply(*arguments, **options)

    job.net.apply = endless  # type: ignore[method-assign]
    with (
        workers(job, deadline=0.3) as executor,
        pytest.raises(RunError, match=r"the model could not be scored: its worker process gave no answer"),
    ):
        executor.evaluate([job.net.model()])


def test_time_in_which_the_main_process_itself_was_away_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z, or a machine that slept: an hour passes between any two looks at the clock."""
    hours = iter(range(10**9))
    with workers(job := job_for(), deadline=0.0) as executor:
        monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: 3600.0 * next(hours)))
        found = ran(job, executor)
    assert found.metrics[0]["events"] == []
    assert found.metrics[0]["failed"] == []


# How long a turn may take.


def message(client: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "run", "client": client, "phase": "train", "round": 0, "rounds": 1, "epochs": 1, **more}


SIZES = (4, 8, 40, 400)


def deadline(seconds: float = 0.0) -> Deadline:
    job = job_for()
    job.federation.size = lambda client: SIZES[client]  # type: ignore[method-assign]
    return Deadline(job, seconds)


def test_before_any_turn_has_finished_there_is_time_for_every_row() -> None:
    assert deadline().limit(message(2)) == FIRST + 40
    assert deadline().limit(message(2, epochs=5)) == FIRST + 200
    assert deadline().limit({**message(), "kind": "bundle", "clients": [0, 1, 3]}) == FIRST + 412
    assert deadline().limit(message(PSEUDO_CLIENT)) >= FIRST + 1000 * CLIENTS
    for kind in ("evaluate", "answer"):
        assert deadline().limit({"kind": kind, "first": 500, "last": 700}) == FIRST + 200


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e5)), min_size=1), st.integers(0, 3))
def test_a_turn_may_take_a_multiple_of_the_slowest_and_a_large_client_more(
    turns: list[tuple[int, float]], client: int
) -> None:
    limits = deadline()
    for who, seconds in turns:
        limits.finished(message(who), seconds)
    slowest = max(seconds for _, seconds in turns)
    limit = limits.limit(message(client))
    assert limit >= max(LEAST, TIMES * slowest)
    assert limit <= max(LEAST, TIMES * slowest * max(SIZES) / min(SIZES))
    first = next(who for who, seconds in turns if seconds == slowest)
    assert limits.limit(message(first)) == max(LEAST, TIMES * slowest)
    assert limits.least <= limit


def test_phases_and_scorings_are_timed_apart() -> None:
    limits = deadline()
    limits.finished({"kind": "evaluate", "first": 0, "last": 500}, 100.0)
    assert limits.limit(message()) == FIRST + 4
    assert limits.limit({"kind": "evaluate", "first": 500, "last": 700}) == TIMES * 100


def test_a_deadline_that_is_set_holds_for_every_turn() -> None:
    limits = deadline(3.0)
    limits.finished(message(), 1000.0)
    assert limits.limit(message(3)) == limits.least == 3.0
    assert limits.limit({**message(), "kind": "bundle", "clients": [0, 1]}) == 6.0
    assert deadline(-1).limit(message()) == deadline(-1).least == float("inf")


def test_a_client_whose_size_nobody_can_tell_has_a_deadline_too() -> None:
    limits = deadline()

    def unreadable(_: int) -> int:
        raise OSError("the disk is gone")

    limits._job.federation.size = unreadable  # type: ignore[method-assign]
    assert FIRST < limits.limit(message()) < float("inf")


def test_the_deadline_is_an_option_that_changes_no_result() -> None:
    (field,) = [field for field in Options.__dataclass_fields__.values() if field.name == "deadline"]
    assert not is_essential(field)
    assert make(Options, {"deadline": "2.5"}, "workers").exact().deadline == 2.5


# The end of the executor, and of the main process.


@pytest.mark.parametrize("way", WAYS)
def test_closing_does_not_wait_for_a_worker_that_is_stuck(way: str, tmp_path: Path) -> None:
    before, marker = children(), tmp_path / "stuck"
    job = job_for(stuck(0, WAYS[way], marker))
    executor = Workers(job, options=Options(2, stack=1, layout="plain"))

    def interrupted() -> None:
        wait_until(marker.exists)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupted).start()
    with pytest.raises(KeyboardInterrupt):
        ran(job, executor)
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 2.0
    assert children() == before


def test_a_second_interrupt_leaves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, marker = children(), tmp_path / "stuck"
    executor = Workers(job_for(stuck(0, stop, marker)), options=Options(2, stack=1, layout="plain"))
    items = (pool.Item(0, {**message(), "channels_last": False}, {}) for _ in range(1))
    executor._pool.share({"model": executor._job.net.model()})
    threading.Thread(target=lambda: (wait_until(marker.exists), os.kill(os.getpid(), signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        list(executor._pool.work(items))

    def impatient(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewfed.processes.time.sleep", impatient)
    with pytest.raises(KeyboardInterrupt):
        executor.close()
    assert children() == before


@pytest.mark.parametrize("way", WAYS)
def test_workers_die_with_the_main_process(way: str, tmp_path: Path) -> None:
    """Killed in such a way that it can do nothing more, while a worker is stuck."""
    marker = tmp_path / "stuck"

    def work() -> None:
        job = job_for(stuck(0, WAYS[way], marker))
        ran(job, Workers(job, options=Options(2, stack=1, layout="plain")))

    pid = forked(work)
    wait_until(marker.exists)
    own = descendants(pid)
    wait_until(lambda: way != "stopped" or is_stopped(int(marker.read_text())))
    assert len(own) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: all(map(is_gone, own)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_main_process_does_at_a_signal_its_workers_do_not(number: signal.Signals) -> None:
    """They neither run its handler nor ignore the signal: they end, and are replaced."""
    asked: list[int] = []
    handler = signal.signal(number, lambda *_: asked.append(os.getpid()))
    try:
        before = children()
        with workers(job := job_for(), deadline=0.0) as executor:
            first = min(children() - before)
            os.kill(first, number)
            wait_until(lambda: is_gone(first))
            found = ran(job, executor)
        assert [event["cause"] for event in found.metrics[0]["events"]] == [f"signal {int(number)}"]
        assert asked == []
    finally:
        signal.signal(number, handler)


# Errors inside a worker.


def test_an_error_outside_of_a_turn_is_told_and_costs_no_process() -> None:
    job, before = job_for(), children()
    model = job.net.model()
    model["params"].pop(next(iter(model["params"])))
    with workers(job) as executor:
        own = children() - before
        for _ in range(2):
            with pytest.raises(RunError, match=r"the model could not be scored: KeyError"):
                executor.evaluate([model])
        assert children() - before == own
        assert executor.events() == []


def test_a_reply_for_which_there_is_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lives on; its client is left out, with the reason."""
    home = os.getpid()
    take = os.posix_fallocate

    def full(fd: int, first: int, size: int) -> None:
        if os.getpid() != home:
            raise OSError(28, "No space left on device")
        take(fd, first, size)

    monkeypatch.setattr("os.posix_fallocate", full)
    with workers(job := job_for()) as executor, pytest.raises(RunError, match="there is no room for 1 MiB") as caught:
        ran(job, executor)
    assert "all 4 members failed" in str(caught.value)
    assert "TMPDIR" in str(caught.value)


@pytest.mark.parametrize("stack", [1, CLIENTS])
@pytest.mark.parametrize("kind", ["numpy", "complex", "uint16", "weight"])
def test_odd_uploads_are_refused_in_the_same_words_everywhere(kind: str, stack: int) -> None:
    def end(self: FedAvg, work: Any, ctx: Context) -> Any:
        report = FedAvg.end(self, work, ctx)
        name, leaf = next(iter(work["params"].items()))
        odd = {
            "numpy": lambda: leaf.detach().numpy(),
            "complex": lambda: leaf.to(torch.complex64),
            "uint16": lambda: leaf.to(torch.uint8).to(torch.uint16),
        }
        if kind == "weight":
            return report._replace(weight=torch.tensor(3.0))
        params = {**work["params"], name: odd[kind]()}
        return report._replace(upload={"model": {"params": params, "buffers": work["buffers"]}})

    method = type("Odd", (Interrupted,), {"end": end})()
    job = job_of(method, digits_federation(CLIENTS, 8), net=job_for().net, training={"epochs": 1})
    with pytest.raises(RunError) as alone:
        ran(job, Sequential(job))
    with workers(job, 1, stack, 0.0) as executor, pytest.raises(RunError) as together:
        ran(job, executor)
    assert str(together.value) == str(alone.value)
    assert executor.events() == []
