"""What clients are lent stays as it is: a method that changes it is named, the same way in every executor."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import children

from fewfed import networks, tree
from fewfed.conformance.differences import differences
from fewfed.engine.executor import Executor, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.engine.lending import Glance
from fewfed.engine.outcomes import Failed, Partial
from fewfed.errors import RunError
from fewfed.method import Batch, Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree
from support import briefing_of, digits_federation, digits_network, job_of, run

pytestmark = pytest.mark.timeout(120)

CLIENTS = 4
EXECUTORS: dict[str, Callable[[Job], Any]] = {
    "sequential": Sequential,
    "workers": lambda job: Workers(job, options=Options(2, stack=1, layout="plain")),
    "stacks in workers": lambda job: Workers(job, options=Options(1, stack=CLIENTS, layout="plain")),
    "eager": lambda job: Device(job, options=DeviceOptions(device="cpu", mode="eager")),
    "graphs": lambda job: Device(job, options=DeviceOptions(device="cpu", mode="graphs")),
    "stacked": lambda job: Device(job, options=DeviceOptions(device="cpu", mode="stacked")),
}


@pytest.fixture(autouse=True)
def quiet_faults() -> Iterator[None]:
    """Pytest has every fault written to the terminal; those of worker processes are wanted here."""
    enabled = faulthandler.is_enabled()
    faulthandler.disable()
    yield
    if enabled:
        faulthandler.enable(file=sys.__stderr__)


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """The first stack of a process loads parts of torch for a second; worker processes inherit them."""
    torch.func.vmap(torch.func.grad(torch.sum))(torch.zeros(2, 3))


def params(ctx: Context) -> Tree:
    found: Tree = ctx.shared["model"]["params"]
    return found


def weight(ctx: Context) -> torch.Tensor:
    found: torch.Tensor = next(iter(params(ctx).values()))
    return found


Change = Callable[[Context], object]

CHANGES: dict[str, Change] = {
    "in place": lambda ctx: weight(ctx).add_(1),
    "a part of it": lambda ctx: weight(ctx)[0].zero_(),
    "past torch's counters": lambda ctx: weight(ctx).data.mul_(2),
    "as an array of NumPy's": lambda ctx: weight(ctx).numpy().fill(0.5),
    "its shape": lambda ctx: weight(ctx).unsqueeze_(0),
    "an entry of the tree": lambda ctx: params(ctx).update({name: 2 * leaf for name, leaf in params(ctx).items()}),
    "one entry more": lambda ctx: ctx.shared.update(mine=torch.zeros(2)),
    "one entry less": lambda ctx: ctx.shared["model"].pop("buffers"),
    "asks for gradients": lambda ctx: weight(ctx).requires_grad_(),
}
FUNCTIONS = ("data", "begin", "draw", "loss", "gradient", "end")


def spoiler(function: str, change: Change, clients: tuple[int, ...] = tuple(range(CLIENTS))) -> FedAvg:
    """FedAvg one of whose functions changes what it was given, for some clients."""

    def called(self: FedAvg, *arguments: Any) -> Any:
        ctx = next(each for each in arguments if isinstance(each, Context))
        found = getattr(FedAvg, function)(self, *arguments)
        if ctx.client in clients:
            change(ctx)
        return found

    made: type[FedAvg] = dataclass(frozen=True)(type("Spoiler", (FedAvg,), {"name": "spoiler", function: called}))
    return made()


def job_for(method: FedAvg, *, batchnorm: bool = False) -> Job:
    net = digits_network() if batchnorm else networks.build("mlp", (1, 8, 8), 10, 3)
    return job_of(method, digits_federation(CLIENTS, 8), net=net, training={"epochs": 1})


def reasons(name: str, job: Job, members: range = range(CLIENTS)) -> dict[int, str]:
    """Why each client of a phase was left out; the server's tree is unharmed, whatever they did."""
    executor: Executor = EXECUTORS[name](job)
    briefing = briefing_of(job, Clock(0, 1, 1))
    before = tree.clone(briefing.shared)
    found: dict[int, str] = {}
    try:
        for outcome in executor.run(briefing, [Invited(client, {}) for client in members]):
            if isinstance(outcome, Failed):
                found[outcome.client] = f"{outcome.cause}: {outcome.reason}"
            elif isinstance(outcome, Partial):
                found |= {packet.sender: "" for packet in outcome.packets}
            else:
                found[outcome.packet.sender] = ""
    finally:
        executor.close()
    assert not differences(briefing.shared, before)
    return dict(sorted(found.items()))


def said(function: str, place: str, what: str = "what was broadcast") -> str:
    return (
        f"client: method 'spoiler', {function} of phase 'train': it changed {what} ('{place}'): expected it to be left "
        "as it is; clone it first"
    )


FIRST = "model/params/" + next(iter(networks.build("mlp", (1, 8, 8), 10, 3).model()["params"]))
PLACES = {"one entry more": "mine", "one entry less": "model/buffers"}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_every_kind_of_change_is_an_error_that_names_method_and_function(change: str, executor: str) -> None:
    job = job_for(spoiler("end", CHANGES[change]))
    assert set(reasons(executor, job).values()) == {said("end", PLACES.get(change, FIRST))}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_function_is_named_in_every_executor(function: str, executor: str) -> None:
    job = job_for(spoiler(function, CHANGES["in place"]))
    assert set(reasons(executor, job).values()) == {said(function, FIRST)}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_that_changes_the_broadcast_is_left_out_and_the_others_are_none_the_wiser(executor: str) -> None:
    bad, good = job_for(spoiler("begin", CHANGES["in place"], (1,))), job_for(spoiler("begin", lambda ctx: None))
    assert reasons(executor, bad) == {0: "", 1: said("begin", FIRST), 2: "", 3: ""}
    spoilt, reference = (EXECUTORS[executor](bad), EXECUTORS[executor](good))
    try:
        without = run(good, executor=reference, rounds=1, cohort=CLIENTS)
        found = run(bad, executor=spoilt, rounds=2, cohort=CLIENTS)
    finally:
        spoilt.close()
        reference.close()
    assert [[failure["client"] for failure in metrics["failed"]] for metrics in found.metrics] == [[1], [1]]
    assert without.metrics[0]["failed"] == []


def test_equal_commands_give_equal_models() -> None:
    """Whoever comes to which worker: one client that spoils the broadcast changes nothing for the others."""
    method = spoiler("loss", CHANGES["past torch's counters"], (1,))
    servers = []
    for processes in (1, 2, 3):
        executor = Workers(job_for(method), options=Options(processes, stack=1, layout="plain"))
        try:
            servers.append(run(job_for(method), executor=executor, rounds=2, cohort=CLIENTS).server)
        finally:
            executor.close()
    assert not differences(servers[0], servers[1])
    assert not differences(servers[0], servers[2])


@dataclass(frozen=True)
class Uncloned(FedAvg):
    """Trains the very tensors it received."""

    name = "uncloned"
    parts: tuple[str, ...] = ("params", "buffers")

    def begin(self, ctx: Context) -> Tree:
        model: Tree = ctx.shared["model"]
        return {name: part if name in self.parts else tree.clone(part) for name, part in model.items()}


@pytest.mark.parametrize("parts", [("params",), ("buffers",), ("params", "buffers")], ids="-".join)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_start_that_is_the_broadcast_itself_is_refused(parts: tuple[str, ...], executor: str) -> None:
    """Also the running statistics of BatchNorm, whose changes torch does not count."""
    (reason,) = set(reasons(executor, job_for(Uncloned(parts), batchnorm=True)).values())
    assert reason.startswith("client: method 'uncloned', begin of phase 'train': it returned what was broadcast (")
    assert reason.endswith("as its own, and training changed it: expected a copy; clone it first")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_parts_of_the_broadcast_that_are_only_read_need_no_copy(executor: str) -> None:
    @dataclass(frozen=True)
    class Teacher(FedAvg):
        def begin(self, ctx: Context) -> Tree:
            return {**tree.clone(ctx.shared["model"]), "teacher": ctx.shared["model"]}

    assert set(reasons(executor, job_for(Teacher())).values()) == {""}


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Counts its participations, in place."""

    name = "spoiler"
    function: str = "end"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, keeps_state=True),)

    def client_init(self, setup: object) -> Tree:
        return {"seen": torch.zeros(1)}

    def begin(self, ctx: Context) -> Tree:
        return self._counted("begin", ctx, super().begin(ctx))

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, torch.Tensor]:
        return self._counted("loss", ctx, super().loss(work, ctx, batch))

    def end(self, work: Tree, ctx: Context) -> Report:
        return self._counted("end", ctx, super().end(work, ctx)._replace(state=ctx.state))

    def _counted(self, function: str, ctx: Context, found: Any) -> Any:
        if function == self.function:
            ctx.state["seen"].add_(1)
        return found


@pytest.mark.parametrize("function", ["begin", "loss", "end"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_a_client_remembers_is_not_changed_in_place_either(executor: str, function: str) -> None:
    job = job_for(Remembering(function))
    made = EXECUTORS[executor](job)
    try:
        with pytest.raises(RunError, match=rf"{function} of phase 'train': it changed what the client remembers"):
            run(job, executor=made, rounds=2, cohort=CLIENTS)
        assert made.homes.state(0)["seen"].item() == 0
    finally:
        made.close()


def test_a_change_that_is_seen_only_afterwards_ends_the_run() -> None:
    """In one process, a later client's change past torch's counters is found at the end of the phase."""
    job = job_for(spoiler("begin", CHANGES["past torch's counters"], (2,)))
    with pytest.raises(RunError, match=r"method 'spoiler', phase 'train': one of its functions changed what was broad"):
        reasons("sequential", job)


def test_the_blank_client_cannot_change_anything() -> None:
    """It works in the main process, on what the server itself holds, before anybody has received it."""
    job = job_for(spoiler("begin", CHANGES["in place"]))
    server = job.method.server_init(job.setup)
    before = tree.clone(server)
    phase = job.method.phases(Clock(0, 1, 1))[0]
    briefing_of(job, Clock(0, 1, 1), phase.does.broadcast(server))
    assert not differences(server, before)


def test_workers_cannot_write_to_what_they_receive() -> None:
    """As the kernel has it: no shared mapping of a worker that it did not make itself can be written to."""
    before = children()
    executor = Workers(job_for(FedAvg()), options=Options(2, stack=1, layout="plain"))
    try:
        run(job_for(FedAvg()), executor=executor, rounds=1, cohort=CLIENTS)
        for worker in children() - before:
            lines = Path(f"/proc/{worker}/maps").read_text().splitlines()
            mapped = [line.split()[1] for line in lines if "(deleted)" in line and "/dev/shm" in line]
            # The broadcast and the slots of its items are read-only; the slots of its replies are its own.
            assert mapped.count("r--s") >= 2, lines
            assert mapped.count("r--s") + mapped.count("rw-s") == len(mapped)
    finally:
        executor.close()


def test_a_glance_notices_every_kind_of_counted_change_and_nothing_else() -> None:
    def made() -> Tree:
        return {"a": torch.zeros(3), "b": {"c": torch.ones(2, 2), "d": {}}}

    changes: list[Callable[[Tree], object]] = [
        lambda lent: lent["a"].add_(1),
        lambda lent: lent["b"]["c"].T.zero_(),
        lambda lent: lent["b"]["c"].t_(),
        lambda lent: lent.pop("a"),
        lambda lent: lent["b"]["d"].update(e=torch.zeros(1)),
        lambda lent: lent.update(a=torch.zeros(3)),
        lambda lent: lent["b"].update(c=None),
    ]
    for change in changes:
        lent = made()
        glance = Glance(lent)
        lent["a"].sum(), lent["b"]["c"] + 1, tree.clone(lent), lent["a"].detach().requires_grad_()
        assert glance.unchanged()
        change(lent)
        assert not glance.unchanged()
