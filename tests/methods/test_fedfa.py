"""FedFA: gate, statistics, gamma through the server, what travels, and what it wraps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from wrapper_steps import CLOCK, first_turn, training

from fewfed import networks, tree
from fewfed.data.examples import Examples
from fewfed.engine.combine import Combiner
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import Packet, packet_of
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedfa import KEY, UPLOAD, FedFA
from fewfed.methods.fedsam import FedSAM
from fewfed.methods.parts.statistics import feature_augmentation, moving_average
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.tree import Tree
from support import context, digits_federation, digits_network, gradients, job_of, run, states, trainable


def ready(method: FedFA, *, client: int = 0) -> tuple[Context, Tree, Batch]:
    """A first step of one client with its draws."""
    net, data = digits_network(), digits_federation().examples(client)
    ctx = first_turn(method, net, data, client)
    draw = training(method).draw(ctx.plan.random(0, "train", client), ctx, len(data))
    return ctx, trainable_work(training(method).begin(ctx)), Batch(data.x, data.y, draw)


def trainable_work(work: Tree) -> Tree:
    return {**work, **trainable({name: work[name] for name in ("params", "buffers")})}


def equal(a: Tree, b: Tree) -> bool:
    return all(n == m and torch.equal(x, y) for (n, x), (m, y) in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_no_probability_is_fedavg_bit_for_bit_and_touches_no_statistics() -> None:
    federation = digits_federation(6, [12, 5, 9, 12, 7, 10])
    plain = run(job_of("fedavg", federation), rounds=3).server
    quiet = run(job_of(FedFA(p=0.0), federation), rounds=3).server
    assert equal(plain["model"], quiet["inner"]["model"])
    for stage in quiet["own"]["average"].values():
        assert not stage["mean"].any()
        assert bool((stage["deviation"] == 1).all())


def test_statistics_after_one_open_gate_are_those_of_the_plain_features() -> None:
    ctx, work, batch = ready(FedFA(p=1.0))
    features: dict[str, torch.Tensor] = {}

    def first_stage(stage: str, x: torch.Tensor) -> torch.Tensor:
        return features.setdefault(stage, x.detach())

    ctx.net.apply(ctx.net.model(), batch.x, tap=first_stage, train=True)
    training(FedFA(p=1.0)).loss(work, ctx, batch)
    x = features["conv1"].double().numpy()
    ours = work[KEY]["conv1"]
    np.testing.assert_allclose(ours["mean"].numpy(), 0.01 * x.mean((0, 2, 3)), rtol=1e-4, atol=1e-8)
    expected = 0.99 + 0.01 * np.sqrt(x.var((2, 3)) + 1e-6).mean(0)
    np.testing.assert_allclose(ours["deviation"].numpy(), expected, rtol=1e-5)
    assert float(ours["updates"]) == 1


def test_each_stage_has_a_gate_of_its_own() -> None:
    method = FedFA(p=1.0)
    ctx, work, batch = ready(method)
    batch.drawn["own"]["conv1"]["on"] = torch.tensor(False)
    before = tree.clone(work[KEY])
    training(method).loss(work, ctx, batch)
    assert equal(work[KEY]["conv1"], before["conv1"])
    assert float(work[KEY]["conv2"]["updates"]) == 1


def test_gates_open_as_often_as_they_should() -> None:
    method = FedFA(p=0.3)
    ctx, _, _ = ready(method)
    random = ctx.plan.random(0, "train", 0)
    drawn = [training(method).draw(random, ctx, 2)["own"]["conv1"]["on"] for _ in range(4000)]
    opened = torch.stack(drawn).float().mean()
    assert float(opened) == pytest.approx(0.3, abs=0.03)


def test_a_pass_in_eval_mode_is_not_augmented() -> None:
    method = FedFA(p=1.0)
    ctx, work, batch = ready(method)
    seen: list[bool] = []

    @dataclasses.dataclass(frozen=True)
    class Probe(FedAvg):
        def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, torch.Tensor]:
            plain = digits_network().apply(work, batch.x, train=False)
            seen.append(torch.equal(ctx.net.apply(work, batch.x, train=False), plain))
            return super().loss(work, ctx, batch)

    before = tree.clone(work[KEY])
    quiet = {"inner": {}, "own": {s: {**d, "on": torch.tensor(False)} for s, d in batch.drawn["own"].items()}}
    training(dataclasses.replace(method, inner=Probe())).loss(work, ctx, batch._replace(drawn=quiet))
    assert seen == [True]
    assert equal(work[KEY], before)


def test_the_server_finds_gamma_from_sums_as_it_would_from_every_clients_values() -> None:
    method = FedFA(p=1.0)
    job = job_of(method, training={"batch": 6})
    phase = method.phases(CLOCK)[0]
    server = method.server_init(job.setup)
    shared, state = phase.does.broadcast(server), method.client_init(job.setup)
    combiner = Combiner(phase, len(job.federation))
    seen: list[np.ndarray] = []
    for client in range(4):
        outcome = run_turn(job, phase, CLOCK, shared, Member(client, {}, state))
        assert isinstance(outcome, Finished)
        combiner.add(outcome.packet)
        seen.append(outcome.packet.arrays[UPLOAD]["conv2"]["mean"].numpy())
    after = phase.does.absorb(server, combiner.finish())
    variance = np.stack(seen).var(0)
    ratio = variance / (1 + variance)
    expected = len(ratio) * ratio / ratio.sum()
    np.testing.assert_allclose(after["own"]["gamma"]["conv2"]["mean"].numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(after["own"]["average"]["conv2"]["mean"].numpy(), np.stack(seen).mean(0), rtol=1e-5)
    raw = training(dataclasses.replace(method, gamma="raw")).absorb(server, combiner.finish())
    np.testing.assert_allclose(raw["own"]["gamma"]["conv2"]["mean"].numpy(), variance, rtol=1e-5)


@pytest.mark.parametrize(("carry", "confounded"), [("average", False), ("reset", True), ("debiased", False)])
def test_clients_that_differ_only_in_steps_look_different_only_under_reset(carry: str, confounded: bool) -> None:
    """Identical true statistics, one and eight updates a round: after many rounds only a reset sees a difference."""
    method = FedFA(carry=carry, gamma="raw")  # type: ignore[arg-type]
    net, data = digits_network(), digits_federation().examples(0)
    setup = Setup(net, Classification(10), Plan(0, 8), 2, (1, 8, 8))
    phase = method.phases(CLOCK)[0]
    server, state = method.server_init(setup), method.client_init(setup)
    for _ in range(400):
        combiner = Combiner(phase, clients=2)
        for client, updates in enumerate((1, 8)):
            ctx = context(net, data, phase.does.broadcast(server), phase=phase, client=client, state=state)
            work = phase.does.begin(ctx)
            for own in work[KEY].values():
                for _ in range(updates):
                    own["mean"].copy_(moving_average(own["mean"], torch.ones(()), 0.99, torch.tensor(True)))
                own["updates"].add_(updates)
            combiner.add(packet_of(phase.does.end(work, ctx), 0, phase.name, client))
        server = phase.does.absorb(server, combiner.finish())
        if carry != "average":
            break
    variance = float(server["own"]["gamma"]["conv1"]["mean"].max())
    assert variance == pytest.approx(1.1308e-3, rel=1e-3) if confounded else variance < 1e-9


def test_debiased_statistics_are_the_true_ones_and_leave_out_who_saw_nothing() -> None:
    method = FedFA(carry="debiased", momentum=0.9)
    ctx, work, _ = ready(method)
    own = work[KEY]["conv1"]
    own["mean"].copy_(2.0 * (1 - 0.9**3) * torch.ones_like(own["mean"]))
    own["deviation"].copy_((0.9**3 + 5.0 * (1 - 0.9**3)) * torch.ones_like(own["mean"]))
    own["updates"].add_(3)
    upload = training(method).end(work, ctx).upload[UPLOAD]
    torch.testing.assert_close(upload["conv1"]["mean"].float(), torch.full((16,), 2.0))
    torch.testing.assert_close(upload["conv1"]["deviation"].float(), torch.full((16,), 4.0))
    assert float(upload["conv1"]["count"]) == 1
    assert float(upload["conv2"]["count"]) == 0
    assert not upload["conv2"]["deviation_squared"].any()


def test_a_clients_own_statistics_wait_for_its_next_participation() -> None:
    job = job_of(FedFA(carry="client", p=1.0), digits_federation(4))
    ran = run(job, rounds=3, cohort=2)
    kept = states(ran.views[-1].executor, 4)
    assert set(kept) == {client for each in ran.views for client in each.cohort}
    for state in kept.values():
        assert float(state["own"]["conv1"]["mean"].abs().sum()) > 0
    assert ran.metrics[-1]["failed"] == []


def test_own_statistics_do_not_disturb_what_the_inner_method_remembers() -> None:
    inner = choose("fedrobust").method
    kept = run(job_of(FedFA(carry="client", inner=inner), digits_federation(4)), rounds=3, cohort=3)
    assert kept.metrics[-1]["failed"] == []
    state = states(kept.views[-1].executor, 4)[kept.views[-1].cohort[0]]
    assert set(state["inner"]) == {"stretch", "shift"}
    assert set(state["own"]) == {"conv1", "conv2"}


@pytest.mark.parametrize("variant", ["r", "c", "c2x", "released"])
def test_variants_without_shared_statistics_exchange_what_fedavg_does(variant: str) -> None:
    plain, quiet = (run(job_of(name), rounds=1).metrics[0]["bytes"] for name in ("fedavg", f"fedfa:{variant}"))
    assert plain == quiet


def test_the_server_is_shown_sums_only() -> None:
    for clock in (Clock(0, 3, 2), Clock(1, 3, 2)):
        uploads = [upload for phase in FedFA().phases(clock) for upload in phase.uploads.values()]
        assert not any(upload.combine.seen_raw for upload in uploads)


@pytest.mark.parametrize(
    ("name", "shape", "channels"),
    [
        ("alexnet", (3, 64, 64), 1152),
        ("unet", (3, 32, 32), 992),
        ("resnet18", (3, 32, 32), 1024),
        ("lenet5", (1, 28, 28), 22),
    ],
)
def test_statistics_are_as_many_as_the_paper_counts(name: str, shape: tuple[int, ...], channels: int) -> None:
    net = networks.build(name, shape, 10, seed=0)
    server = FedFA().server_init(Setup(net, Classification(10), Plan(0, 8), 2, shape))
    assert sum(leaf.numel() for _, leaf in tree.leaves(server["own"])) == 4 * channels


def test_skips_of_a_u_net_are_not_augmented() -> None:
    net = networks.build("unet", (1, 16, 16), 2, seed=0)
    x = torch.rand(2, 1, 16, 16)
    plain = net.apply(net.model(), x, stop=2, train=True)
    silent = net.tapped(lambda stage, value: torch.zeros_like(value) if stage.startswith("enc") else value)
    muted = silent.apply(net.model(), x, stop=1, train=True)
    assert not muted[0].any()
    assert torch.equal(muted[1], plain[1])


def test_a_second_pass_of_the_same_step_counts_once_and_sees_the_same_noise() -> None:
    """FedSAM differentiates twice; with no ascent both passes must give the same gradient."""
    method = FedFA(p=1.0, inner=FedSAM(rho=1e-12))
    ctx, work, batch = ready(method)
    directions: list[dict[str, torch.Tensor]] = []

    def differentiate(point: Tree) -> tuple[Tree, Tree]:
        terms = training(method).loss(point, ctx, batch)
        directions.append(gradients(terms["task"], point))
        return directions[-1], terms

    training(method).gradient(differentiate, work, ctx, batch)
    assert len(directions) == 2
    for name, value in directions[0].items():
        torch.testing.assert_close(directions[1][name], value)
    assert [float(own["updates"]) for own in work[KEY].values()] == [1.0, 1.0]


def test_clients_weigh_what_the_training_says() -> None:
    ctx, work, _ = ready(FedFA())
    assert training(FedFA()).end(work, ctx).weight == ctx.size > 1
    assert training(FedFA()).end(work, dataclasses.replace(ctx, weighting="uniform")).weight == 1.0


@pytest.mark.parametrize("inner", ["fedfa", "mixstyle(fedfa)", "sem(fedfa:c)"])
def test_its_statistics_have_one_name_so_it_is_wrapped_once(inner: str) -> None:
    job = job_of(f"fedfa({inner})")
    with pytest.raises(ConfigError, match="FedFA's noise and statistics already"):
        job.check()


def test_vector_features_never_touch_the_deviation() -> None:
    net = networks.build("mlp", (1, 8, 8), 10, seed=0)
    served = run(job_of(FedFA(p=1.0), net=net), rounds=2).server
    assert set(served["own"]["average"]) == {"hidden1", "hidden2"}
    for average in served["own"]["average"].values():
        assert bool((average["deviation"] == 1).all())
        assert bool(average["mean"].any())


def test_a_client_of_one_row_takes_part() -> None:
    ran = run(job_of(FedFA(p=1.0), digits_federation(3, [1, 6, 6])), rounds=2)
    assert ran.metrics[-1]["failed"] == []
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(ran.server))


def test_phases_that_do_not_train_the_network_leave_gamma_as_it_was() -> None:
    """FLAIR's autoencoder phase passes the classifier in eval mode only."""
    method = FedFA(p=1.0, inner=choose("flair").method)
    job = job_of(method, digits_federation(4))
    phases = {phase.name: phase for phase in method.phases(CLOCK)}
    server = run(job, rounds=1, cohort=4).server
    nothing = {
        stage: {
            name: torch.zeros(16, dtype=torch.float64)
            for name in ("mean", "mean_squared", "deviation", "deviation_squared")
        }
        | {"count": torch.tensor(4.0), "updates": torch.tensor(0.0)}
        for stage in server["own"]["gamma"]
    }
    combiner = Combiner(phases["cvae"], clients=4)
    combiner.add(Packet(0, "cvae", 0, 1.0, {"cvae": server["inner"]["cvae"], UPLOAD: nothing}))
    after = phases["cvae"].does.absorb(server, combiner.finish())
    assert equal(after["own"], server["own"])
    assert not torch.equal(server["own"]["gamma"]["conv1"]["mean"], torch.ones(16))


def test_an_unknown_stage_is_refused_with_a_suggestion() -> None:
    job = job_of(FedFA(stages=("conv",)))
    with pytest.raises(ConfigError, match="did you mean 'conv"):
        job.method.check(job.setup)


def test_only_the_named_stages_are_augmented() -> None:
    served = run(job_of(FedFA(stages=("conv2",))), rounds=1).server
    assert set(served["own"]["average"]) == {"conv2"}


def test_the_step_uses_the_equations_with_the_broadcast_gamma() -> None:
    method = FedFA(p=1.0, stages=("conv1",))
    ctx, work, batch = ready(method)
    gamma = torch.linspace(0, 2, 16)
    ctx.shared[KEY]["gamma"]["conv1"] = {"mean": gamma, "deviation": gamma.flip(0)}
    ours = training(method).loss(work, ctx, batch)["task"]
    model, noise = trainable(ctx.net.model()), batch.drawn["own"]["conv1"]["noise"]
    features = ctx.net.apply(model, batch.x, stop=1)
    noisy, _, _ = feature_augmentation(features, noise, gamma, gamma.flip(0))
    theirs = ctx.task.loss(ctx.net.apply(model, noisy, start=1), batch.y)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "spec", ["fedfa", "fedfa:direct", "fedfa(flea)", "fedfa(mixstyle)", "sem(fedfa)", "fedfa(scaffold)"]
)
def test_worker_processes_compute_the_same_bits(spec: str) -> None:
    job = job_of(spec, digits_federation(5, 9))
    alone = run(job, rounds=2, cohort=3)
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        together = run(job, rounds=2, cohort=3, executor=workers)
    finally:
        workers.close()
    assert equal(alone.server, together.server)


def test_examples_are_not_changed_by_augmentation() -> None:
    ctx, work, batch = ready(FedFA(p=1.0))
    before = Examples(batch.x.clone(), batch.y.clone())
    training(FedFA(p=1.0)).loss(work, ctx, batch)
    assert torch.equal(before.x, batch.x)
