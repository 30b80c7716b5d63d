"""The ledger adds up what clients release, row by row, says what nothing bounds, and stops before a budget."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fewfed import networks, tree
from fewfed.data.examples import Examples
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.gate import LeftOut
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed, Outcome
from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism
from fewfed.method import Context, Method, Part, Report
from fewfed.methods.dp import DP
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.flea import FLea
from fewfed.methods.registry import choose
from fewfed.methods.single import Single
from fewfed.phase import Clock, Cohort, Phase, Role, shared_rows
from fewfed.privacy.accounting import Sampled, Spent
from fewfed.privacy.gaussian import epsilon_of
from fewfed.privacy.ledger import Gap, Ledger, View, gaps, hides_members
from fewfed.tree import Tree
from support import context, digits, digits_federation, job_of, run

NET = networks.build("mlp", (1, 8, 8), 10, 3)
CLOCK = Clock(0, 4, 2)


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Declares noise that is not there: for the sums of a ledger only."""

    steps: float = 2.0
    rows: float = 4.0
    server: float = 0.0
    group: int = 1
    sharing: Cohort = Cohort.ROUND

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        rows = shared_rows(1.0, features=Role.FEATURES, labels=Role.LABELS)
        return (
            Phase("train", self, clock.epochs),
            Phase("share", Share(self), uploads=rows, cohort=self.sharing),
        )

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        found = [Mechanism("train", frozenset({"model"}), self.steps, "step")] if self.steps else []
        found += [Mechanism("share", frozenset({"features"}), self.rows, "row")]
        found += [Mechanism("train", frozenset({"model"}), self.server, "round")] if self.server else []
        return tuple(found)

    def absorb(self, server: Tree, combined: object) -> Tree:
        return server


class Share(Part[Noisy]):
    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"features": ctx.data.x[:4].flatten(1), "labels": ctx.data.y[:4]}, {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        alone = torch.tensor([[0, -1], [1, -1], [1, -1], [2, -1]])
        return alone if self.method.group == 1 else torch.tensor([[0, 1], [1, 2], [3, -1], [3, -1]])

    def absorb(self, server: Tree, combined: object) -> Tree:
        return server


def ledger_of(method: Method, *, cohort: int = 3, clients: int = 3, rounds: int = 4, **rest: float) -> Ledger:
    return Ledger(method, clients, cohort, rounds, CLOCK.epochs, **rest)


def turn(method: Method, phase: int, round: int = 0, client: int = 0, rows: int = 11) -> Context:
    data = digits()[0].rows(torch.arange(rows))
    clock = dataclasses.replace(CLOCK, round=round)
    return context(NET, data, phase=method.phases(clock)[phase], round=round, rounds=4, client=client)


def noted(ledger: Ledger, ctx: Context, notes: Tree | None = None) -> Tree:
    report = Report({}, {}, 1.0)
    handed, after = ledger.released(report, ctx, notes or {})
    assert handed is report
    return after


@pytest.mark.parametrize("client", range(3))
def test_every_use_of_a_row_in_a_step_counts_and_twice_in_a_batch_counts_four_times(client: int) -> None:
    """Eleven rows in batches of eight: the second batch of an epoch is filled up with rows of the next."""
    method = Noisy()
    ctx = turn(method, 0, client=client)
    batches = ctx.plan.batches(0, "train", client, 11, 2)
    expected = [sum(batch.tolist().count(row) ** 2 for batch in batches) / 2.0**2 for row in range(11)]
    assert noted(ledger_of(method), ctx)["server"].tolist() == expected
    assert min(expected) >= 2 / 4


def test_every_row_that_is_sent_counts_for_the_rows_behind_it() -> None:
    alone, grouped = Noisy(), Noisy(group=2)
    unit = 1 / 4.0**2
    found = noted(ledger_of(alone), turn(alone, 1))["server"]
    assert found.tolist() == [unit, 2 * unit, unit, *[0.0] * 8]
    # One of two rows behind an average can turn it around; one alone can only vanish.
    found = noted(ledger_of(grouped), turn(grouped, 1))["server"]
    assert found.tolist() == [4 * unit, 8 * unit, 4 * unit, 2 * unit, *[0.0] * 7]


def test_weights_and_features_are_one_account_row_by_row() -> None:
    method, notes = Noisy(), Tree()
    ledger, total = ledger_of(method), torch.zeros(11, dtype=torch.float64)
    for round in range(4):
        for phase in (0, 1):
            ctx = turn(method, phase, round)
            notes = noted(ledger, ctx, notes)
            total += noted(ledger, ctx)["server"]
    assert torch.allclose(notes["server"], total)
    assert ledger.spent(notes, "server", 4).epsilon(1e-5) == pytest.approx(epsilon_of(float(total.max()), 1e-5))


def test_noise_of_the_server_protects_from_other_sites_only_and_hides_who_took_part() -> None:
    method = Noisy(steps=0.0, server=1.0, sharing=Cohort.ALL)
    ledger = ledger_of(method, cohort=10, clients=101, rounds=100)
    assert gaps(method, CLOCK, "server") == (Gap("train", "model", "model"),)
    assert gaps(method, CLOCK, "sites") == ()
    assert ledger.view == "sites"
    notes = noted(ledger, turn(method, 0))
    assert ledger.spent(notes, "server", 1).epsilon(1e-5) == math.inf
    shared: Tree = {"sites": torch.full((11,), 10 / 4.0**2)}
    assert ledger.spent(shared, "sites", 100) == Spent(10 / 4.0**2, (Sampled(0.1, 1.0, 100, fixed=True),))
    assert ledger.spent(shared, "sites", 100).epsilon(1e-5) == pytest.approx(8.76, abs=0.005)


@dataclass(frozen=True)
class Twice(FedAvg):
    """Two phases a round with noise of the server, both with the clients that were drawn."""

    first: float = 1.0
    second: float = 2.0

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return Phase("first", self, clock.epochs), Phase("second", self, clock.epochs)

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        noise = {"first": self.first, "second": self.second}
        return tuple(Mechanism(name, frozenset({"model"}), each, "round") for name, each in noise.items())


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_phases_of_one_round_have_the_same_clients(epsilon: float) -> None:
    """Brute force over both outputs of a round: a client is drawn for both or for neither. Two draws would hide more
    than there is hidden."""
    rate, x = 0.1, torch.linspace(-12.0, 14.0, 1301, dtype=torch.float64)
    width = float(x[1] - x[0])

    def outputs(row: float) -> Tensor:
        both = [torch.exp(-(((x - row) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi)) for noise in (1.0, 2.0)]
        return both[0][:, None] * both[1][None, :] * width**2

    empty, there = outputs(0.0), (1 - rate) * outputs(0.0) + rate * outputs(1.0)
    delta = max(float((a - math.exp(epsilon) * b).clamp(min=0).sum()) for a, b in ((there, empty), (empty, there)))
    ledger = ledger_of(Twice(), cohort=10, clients=101, rounds=1)
    assert ledger.spent({}, "sites", 1).epsilon(delta) == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_a_site_knows_whether_it_was_drawn_itself(epsilon: float) -> None:
    """Brute force over the output of a round of two in five, and over whether the site that looks is one of them."""
    x = torch.linspace(-12.0, 14.0, 26_001, dtype=torch.float64)

    def output(row: float) -> Tensor:
        return torch.exp(-((x - row) ** 2) / 2) / math.sqrt(2 * math.pi) * float(x[1] - x[0])

    def delta(rate: float) -> float:
        there = (1 - rate) * output(0.0) + rate * output(1.0)
        return float((there - math.exp(epsilon) * output(0.0)).clamp(min=0).sum())

    drawn_too, not_drawn = delta(1 / 4), delta(2 / 4)
    ledger = ledger_of(Noisy(steps=0.0, server=1.0, sharing=Cohort.ALL), cohort=2, clients=5, rounds=1)
    told = ledger.spent({}, "sites", 1)
    assert told.epsilon(2 / 5 * drawn_too + 3 / 5 * not_drawn) >= epsilon
    assert told.epsilon(not_drawn) == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.parametrize(("cohort", "clients", "secret"), [(1, 2, True), (4, 5, True), (2, 50, False)])
def test_where_others_know_who_was_drawn_every_turn_of_a_client_counts_in_full(
    cohort: int, clients: int, secret: bool
) -> None:
    """Of two sites the one that was not drawn knows that the other was."""
    method = Noisy(steps=0.0, server=2.0, sharing=Cohort.ALL)
    ledger = Ledger(method, clients, cohort, 4, CLOCK.epochs, drawn_in_secret=secret)
    notes = noted(ledger, turn(method, 0, 3), noted(ledger, turn(method, 0, 1)))
    assert notes["sites"].tolist() == [2 / 2.0**2] * 11
    assert ledger.spent(notes, "sites", 4).epsilon(1e-5) == pytest.approx(epsilon_of(2 / 2.0**2, 1e-5))


def test_a_method_with_two_phases_a_round_is_sampled_once_in_it() -> None:
    method = choose("central-dp(fedfed)", {"sigma": 2.0}).method
    noisy = [{each.phase for each in method.mechanisms(Clock(round, 10, 2))} for round in (4, 5)]
    assert noisy == [{"distil", "train"}, {"train"}]
    spent = ledger_of(method, cohort=10, clients=101, rounds=10).spent({}, "sites", 10)
    found = sorted((each.count, each.noise) for each in spent.sampled)
    assert found == [(5, pytest.approx(math.sqrt(0.5))), (5, pytest.approx(1.0))]


def test_rows_and_labels_of_those_who_were_drawn_show_who_they_are() -> None:
    """Then nothing is gained by drawing: every turn of a client counts in full, and only its own turns count."""
    method = Noisy(steps=0.0, server=1.0)
    ledger = ledger_of(method, cohort=10, clients=100, rounds=100)
    notes: Tree = {}
    for round in (3, 50, 99):
        for phase in (0, 1):
            notes = noted(ledger, turn(method, phase, round), notes)
    expected = 3 * (1 / 1.0**2 + torch.tensor([1.0, 2.0, 1.0, *[0.0] * 8]) / 4.0**2)
    assert notes["sites"].tolist() == expected.tolist()
    found = ledger.spent(notes, "sites", 100)
    assert found.epsilon(1e-5) == pytest.approx(epsilon_of(float(expected.max()), 1e-5))
    assert ledger.spent({}, "sites", 100).epsilon(1e-5) == 0.0


@pytest.mark.parametrize(
    ("spec", "hides"),
    [
        ("central-dp(fedavg)", True),
        ("central-dp(scaffold)", True),
        ("dp(central-dp(fedavg))", True),
        ("central-dp(noised(flea))", False),  # Labels of the shared rows are sent on as they are.
        ("central-dp(fedproto)", False),  # So are counts of classes.
        ("dp(fedavg)", False),
    ],
)
def test_who_was_drawn_is_hidden_only_where_all_they_send_has_noise_of_the_server(spec: str, hides: bool) -> None:
    assert hides_members(choose(spec).method, CLOCK) is hides


def test_a_server_that_asks_everybody_hides_nobody() -> None:
    ledger = ledger_of(Noisy(steps=0.0, server=1.0), cohort=3, clients=3)
    assert ledger.spent({}, "sites", 4).epsilon(1e-5) == pytest.approx(epsilon_of(4.0, 1e-5))


def test_what_a_server_hides_from_sites_they_are_not_billed_for_twice() -> None:
    method = Noisy(server=1.0)
    notes = noted(ledger_of(method), turn(method, 0))
    assert float(notes["server"].max()) > 0
    assert float(notes["sites"].max()) == 0


@pytest.mark.parametrize("view", ["server", "sites"])
def test_what_has_no_noise_is_named_and_labels_are_not_hidden(view: View) -> None:
    assert [str(gap) for gap in gaps(FLea(), CLOCK, view)] == [
        "phase 'train' sends 'model' (model) without noise",
        "phase 'share' sends 'features' (features) without noise",
    ]
    assert [gap.upload for gap in gaps(DP(FLea()), CLOCK, view)] == ["features"]
    assert gaps(DP(FedAvg()), CLOCK, view) == ()
    assert gaps(DP(Single()), CLOCK, view) == (Gap("train", "model", "model"),)  # All rows are in one place.
    assert gaps(DP(FedAvg(), sigma=0.0), CLOCK, view) == (Gap("train", "model", "model"),)


def test_rows_that_are_shared_once_in_the_middle_of_a_run_are_known_before_it_begins() -> None:
    """FedFed shares parts of inputs after its rounds of distillation: neither the first round nor the last."""
    method = choose("central-dp(fedfed)").method
    sharing = [round for round in range(10) if "share" in [each.name for each in method.phases(Clock(round, 10, 2))]]
    assert sharing == [4]
    ledger = ledger_of(method, rounds=10, budget=8.0)
    assert [gap.upload for gap in ledger.gaps["sites"]] == ["parts"]
    assert ledger.view is None
    assert ledger_of(choose("central-dp(noised(fedfed))").method, rounds=10).view == "sites"


def test_a_wrapper_around_noise_may_look_at_rows_again_so_no_bound_is_claimed() -> None:
    assert gaps(choose("ccvr(dp(fedavg))").method, CLOCK, "server")
    assert [gap.phase for gap in gaps(choose("dp(ccvr(fedavg))").method, Clock(3, 4, 2), "server")] == ["collect"]


def uses(ctx: Context) -> Tensor:
    """How often each row of a client is in the batches of a turn, squared batch by batch."""
    rows = len(ctx.data)
    batches = ctx.plan.batches(ctx.clock.round, ctx.phase.name, ctx.client, rows, ctx.phase.epochs)
    return torch.tensor([sum(batch.tolist().count(row) ** 2 for batch in batches) for row in range(rows)]).double()


@pytest.mark.parametrize(
    ("spec", "seen"), [("dp(flair)", True), ("central-dp(dp(flair))", False), ("dp(local)", False)]
)
def test_steps_that_a_client_remembers_count_for_sites_that_see_what_comes_of_them(spec: str, seen: bool) -> None:
    """FLAIR's classifiers stay at clients, and their features are what the autoencoders learn that are sent."""
    depth = spec.split("(").index("dp")
    norm = {"inner." * (depth + 1) + "norm": "layer"} if "flair" in spec else {}
    method = choose(spec, {"inner." * depth + "sigma": 2.0, **norm}).method
    names = [phase.name for phase in method.phases(CLOCK)]
    ctx = turn(method, names.index("train"))
    assert not ctx.phase.uploads
    found = noted(ledger_of(method), ctx)
    assert torch.allclose(found["server"], uses(ctx) / 2.0**2)
    assert torch.allclose(found["sites"], uses(ctx) / 2.0**2 if seen else torch.zeros(11).double())


def test_losses_of_training_are_sent_without_noise_where_nothing_else_is() -> None:
    """The packet says so: a client that keeps its model reports how well it fits its rows."""
    job = job_of("local", digits_federation(3, 11), net=NET)
    said = {gap.upload: str(gap) for gap in gaps(job.method, CLOCK, "server")}
    assert said == {"losses": "phase 'train' reports its mean losses without noise"}
    assert gaps(job.method, CLOCK, "sites") == ()
    ledger = ledger_of(job.method, budget=1.0)
    assert ledger.view == "sites"
    done = run(dataclasses.replace(job, gates=(ledger,)), rounds=1, cohort=3)
    assert done.metrics[0]["phases"]["train"]["terms"]["task"] > 0
    notes = noted(ledger, turn(job.method, 0))
    assert ledger.spent(notes, "server", 1).epsilon(1e-5) == math.inf
    assert ledger.spent(notes, "sites", 1).epsilon(1e-5) == 0.0
    private = choose("dp(local)").method
    assert gaps(private, CLOCK, "server") == ()  # They are not reported then.


def test_what_a_method_reports_beside_its_uploads_has_no_noise() -> None:
    method, report = Noisy(), Report({}, {}, 1.0, {"accuracy": 0.5})
    for budget in (None, 3.0):
        ledger = ledger_of(method, budget=budget)
        _, notes = ledger.released(report, turn(method, 0), {})
        assert ledger.spent(notes, "server", 1).epsilon(1e-5) < math.inf  # Made of noisy steps alone.
    _, notes = ledger_of(method).released(report, turn(method, 1), {})
    assert notes["server"].tolist() == [math.inf] * 11
    assert torch.isfinite(notes["sites"]).all()
    with pytest.raises(LeftOut, match="would report 'accuracy' without noise"):
        ledger_of(method, budget=3.0).released(report, turn(method, 1), {})


@dataclass(frozen=True)
class OwnModel(Noisy):
    """Rows that are sent are features of a model that the client trained itself, at once or before."""

    at_once: bool = True
    steps: float = 0.0

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        train, share = super().phases(clock)
        if self.at_once:
            return (dataclasses.replace(share, epochs=2),)
        return dataclasses.replace(train, keeps_state=True, uploads={}), share


@pytest.mark.parametrize("at_once", [True, False])
def test_every_row_is_behind_rows_that_a_model_of_the_clients_own_made(at_once: bool) -> None:
    """One row moves the model, and so each of the four rows that are sent, from one end of the ball to the other."""
    method = OwnModel(at_once=at_once)
    found = noted(ledger_of(method), turn(method, len(method.phases(CLOCK)) - 1))
    for view in ("server", "sites"):
        assert found[view].tolist() == ([math.inf] * 11 if at_once and view == "server" else [4 * 4 / 4.0**2] * 11)
    private = OwnModel(at_once=False, steps=2.0)
    found = noted(ledger_of(private), turn(private, 1))
    assert found["server"].tolist() == [1 / 4.0**2, 2 / 4.0**2, 1 / 4.0**2, *[0.0] * 8]


def test_a_sites_own_budget_cannot_be_had_for_a_large_delta() -> None:
    """Whoever chooses delta could let a site send what nobody would call private: a row sent twice with noise of half
    its length has epsilon 0 at delta 0.9."""
    method = Noisy(rows=0.5)
    release = float(noted(ledger_of(method), turn(method, 1))["server"].max())
    assert epsilon_of(release, 0.9) == 0.0
    assert epsilon_of(release, 1e-5) > 15
    with pytest.raises(ConfigError, match=r"delta = 0\.5, and a site has a privacy budget of its own"):
        Ledger(method, 3, 3, 4, 2, delta=0.5, own_budgets={1: 4.0})
    Ledger(method, 3, 3, 4, 2, delta=0.5, budget=4.0)
    Ledger(method, 3, 3, 4, 2, delta=1e-3, own_budgets={1: 4.0})


class Looking(FedAvg):
    """Remembers from the second round on what is counted of rows, which dp cannot know beforehand."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        (train,) = super().phases(clock)
        look = Phase("look", Look(self), uploads={}, keeps_state=True)
        return (train,) if clock.first else (look, train)


class Look(Part[Looking]):
    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {"mean": ctx.data.x.mean(0)}, ctx.weight)


def test_steps_that_may_use_what_was_remembered_without_noise_are_not_bounded() -> None:
    ledger = ledger_of(DP(Looking()))
    for view in ("server", "sites"):
        (said,) = map(str, ledger.gaps[view])
        assert said == "phase 'look' lets clients remember what has no noise, and steps may use it"
    assert ledger.view is None
    assert ledger_of(DP(choose("moon").method)).view == "server"  # Remembers the model of noisy steps.


class Spy(Sequential):
    """Notes whose packets leave, and whose do not."""

    def __init__(self, job: Job, homes: SimulatedHomes | None = None) -> None:
        super().__init__(job, homes)
        self.sent: list[tuple[int, str, int]] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        for outcome in super().run(briefing, members):
            if not isinstance(outcome, Failed):
                self.sent.append((briefing.clock.round, briefing.phase.name, outcome.packet.sender))
            yield outcome


def job_with(budget: float | None, sigma: float = 2.0, rows: int | tuple[int, ...] = (11, 8, 20, 5)) -> Job:
    job = job_of(DP(FedAvg(), sigma=sigma), digits_federation(4, rows), net=NET, training={"epochs": 1})
    ledger = Ledger(job.method, 4, 2, 12, 1, budget=budget)
    return dataclasses.replace(job, gates=(ledger,))


@pytest.mark.parametrize("budget", [2.5, 3.0, 4.5, 6.0])
def test_no_packet_leaves_that_would_pass_the_budget(budget: float) -> None:
    """Recounted from the packets that left, batch by batch."""
    job = job_with(budget)
    spy = Spy(job)
    done = run(job, rounds=12, cohort=2, executor=spy)
    uses = {client: torch.zeros(job.federation.size(client)) for client in range(4)}
    for round, phase, client in spy.sent:
        for batch in job.plan.batches(round, phase, client, len(uses[client]), 1):
            uses[client] += torch.bincount(batch, minlength=len(uses[client])).square()
    spent = {client: epsilon_of(float(used.max()) / 4, 1e-5) for client, used in uses.items()}
    assert max(spent.values()) <= budget
    left_out = [failure for metrics in done.metrics for failure in metrics["failed"]]
    assert {failure["cause"] for failure in left_out} == {"budget"}
    assert len(left_out) + len(spy.sent) == 24
    for client, book in ((client, spy.homes.book(client)) for client in range(4)):
        found = book["ledger"]["server"].max() if book else 0.0
        assert epsilon_of(float(found), 1e-5) == pytest.approx(spent[client])


EXECUTORS = {
    "workers": lambda job: Workers(job, options=WorkerOptions(processes=2, stack=1, layout="plain")),
    "workers, stacked": lambda job: Workers(job, options=WorkerOptions(processes=2, stack=4)),
    "device, graphs": lambda job: Device(job, options=Options(device="cpu", mode="graphs")),
    "device, stacked": lambda job: Device(job, options=Options(device="cpu", mode="stacked")),
    "device, eager": lambda job: Device(job, options=Options(device="cpu", mode="eager")),
}


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_keeps_the_same_books(name: str) -> None:
    job = job_with(5.0)
    plain = Sequential(job)
    expected = run(job, rounds=8, cohort=3, executor=plain)
    executor: Executor
    with closing(EXECUTORS[name](job)) as executor:
        found = run(job, rounds=8, cohort=3, executor=executor)
        for client in range(4):
            ours, theirs = executor.homes.book(client), plain.homes.book(client)
            assert torch.equal(ours["ledger"]["server"], theirs["ledger"]["server"])
    assert [metrics["failed"] for metrics in found.metrics] == [metrics["failed"] for metrics in expected.metrics]
    assert any(metrics["failed"] for metrics in found.metrics)


def test_a_packet_that_the_server_refuses_has_left_all_the_same() -> None:
    @dataclass(frozen=True)
    class Lying(FedAvg):
        def end(self, work: Tree, ctx: Context) -> Report:
            report = super().end(work, ctx)
            spoilt = tree.map(lambda leaf: leaf / ctx.client, report.upload)  # Infinite for client 0.
            return report._replace(upload=spoilt)

        def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
            return (Mechanism("train", frozenset({"model"}), 2.0, "step"),)

    job = job_of(Lying(), digits_federation(3, 8), net=NET)
    job = dataclasses.replace(job, gates=(Ledger(job.method, 3, 3, 1, 2),))
    executor = Sequential(job)
    done = run(job, rounds=1, cohort=3, executor=executor)
    assert [failure["cause"] for failure in done.metrics[0]["failed"]] == ["packet"]
    assert float(executor.homes.book(0)["ledger"]["server"].max()) >= 2 / 4


@pytest.mark.parametrize(
    ("spec", "noise", "open_to_server"),
    [
        ("noised(flea)", 4.0, ["model"]),
        ("dp(noised(flea))", 4.0, []),
        ("dp(grouped(noised(flea)))", 4.0, []),
        ("dp(noised(grouped(flea)))", 4.0, []),
        ("quantised(dp(noised(flea)))", 4.0, []),
        ("decorrelated(dp(noised(flea)))", 4.0, ["model", "features"]),
        ("dp(noised(flea))", 0.0, ["features"]),
    ],
)
def test_noise_on_shared_rows_is_declared(spec: str, noise: float, open_to_server: list[str]) -> None:
    depth = spec.split("(").index("noised")
    method = choose(spec, {"inner." * depth + "sigma": noise}).method
    assert [gap.upload for gap in gaps(method, CLOCK, "server")] == open_to_server
    declared = [one for one in method.mechanisms(CLOCK) if one.each == "row"]
    assert all((one.phase, one.uploads, one.noise) == ("share", {"features"}, 4.0) for one in declared)
    assert bool(declared) == ("features" not in open_to_server)


@pytest.mark.parametrize(
    ("spec", "tight"),
    [
        ("noised(feddata)", True),
        ("noised(grouped(feddata))", True),
        ("noised(fedmix)", True),
        ("blurred(noised(feddata))", True),
        ("grouped(noised(feddata))", False),  # Each of three rows has noise of its own: billed as if only one had.
    ],
)
def test_no_row_moves_what_is_sent_by_more_than_it_is_billed(spec: str, tight: bool) -> None:
    """A row as long as can be against the same one empty, among others that point the other way: how far the packet
    moves, in deviations of the noise that is on it."""
    values = {"clip": 2.0, "sigma": 0.7, "k": 3, "group": 3, "noise": 0.0, "share": 1.0}
    layers = spec.rstrip(")").split("(")
    fields = {"noised": ("clip", "sigma"), "grouped": ("k",), "fedmix": ("group",), "feddata": ("share",)}
    given = {
        "inner." * depth + name: values[name]
        for depth, layer in enumerate(layers)
        for name in fields.get(layer, ("noise",))
    }

    def shared(row: float, *, noisy: bool) -> tuple[Tensor, Tensor]:
        x = -torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        x[5] = row
        held = Examples(x, torch.arange(12) // 6)
        method = choose(spec, {name: value if noisy or "sigma" not in name else 0.0 for name, value in given.items()})
        phase = next(each for each in method.method.phases(Clock(0, 1, 1)) if each.row_uploads)
        ctx = context(NET, held, phase=phase, state={})
        ctx = dataclasses.replace(
            ctx, state=functools.reduce(lambda inner, _: {"inner": inner, "own": {}}, layers[1:], {})
        )
        sent = phase.does.end(phase.does.begin(ctx), ctx).upload[phase.row_upload].double()
        bill = (
            noted(Ledger(method.method, 2, 2, 1, 1), ctx).get("server", torch.zeros(12)) if noisy else torch.zeros(12)
        )
        return sent.flatten(1), bill

    (there, _), (empty, _) = shared(1e3, noisy=False), shared(0.0, noisy=False)
    noise, bill = shared(0.0, noisy=True)
    deviation = (noise - empty).std()
    moved = float((there - empty).square().sum() / deviation**2)
    assert moved <= float(bill[5]) * 1.15  # So well is a deviation known from some hundred numbers.
    assert not tight or moved >= float(bill[5]) * 0.8
