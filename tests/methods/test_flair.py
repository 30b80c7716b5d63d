"""FLAIR: losses and routing of gradients, phases, what is uploaded, and what an upload gives away."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine import storage
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Finished
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.method import Batch, Combined, Context
from fewfed.methods.flair import FLAIR
from fewfed.network import Network
from fewfed.networks.cvae import cvae, decode, gaussian_kl
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from fewfed.tree import Tree
from support import (
    context,
    digits,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    run,
    same,
    states,
    traffic,
    trainable,
)

LATER = Clock(1, 5, 2)


def phase_of(method: FLAIR, name: str, clock: Clock = LATER) -> Phase:
    return next(phase for phase in method.phases(clock) if phase.name == name)


def step(method: FLAIR) -> tuple[Context, Tree, Batch]:
    """A first step of phase `train`."""
    net, data = digits_network(), digits_federation().examples(0)
    job = job_of(method)
    shared = {"cvae": method.server_init(job.setup)["cvae"]}
    ctx = context(
        net, data, shared, phase=phase_of(method, "train"), state={"model": net.model()}, round=1, plan=job.plan
    )
    draw = method.draw(ctx.plan.random(1, "train", 0), ctx, len(data))
    return ctx, trainable(method.begin(ctx)), Batch(data.x, data.y, draw)


@pytest.mark.parametrize(
    ("features", "classes", "hidden", "latent", "count"),
    [
        (512, 10, 256, 64, 451_200),
        (512, 100, 256, 64, 497_280),
        (512, 200, 256, 64, 548_480),
        (84, 10, 64, 16, 24_180),
        (84, 10, 256, 64, 231_636),
    ],
)
def test_the_autoencoder_has_the_parameters_of_the_specification(
    features: int, classes: int, hidden: int, latent: int, count: int
) -> None:
    for norm in ("batch", "layer"):
        assert cvae(features, classes, hidden, latent, norm, 0).parameter_count() == count  # type: ignore[arg-type]


def test_kl_is_that_of_two_gaussians_and_grows_with_distance() -> None:
    mean, log_variance = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(4)]])
    assert float(gaussian_kl(mean, log_variance)) == pytest.approx(1.306853, abs=1e-6)
    ours = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (log_variance / 2).exp()), torch.distributions.Normal(0.0, 1.0)
    ).sum()
    assert float(gaussian_kl(mean, log_variance)) == pytest.approx(float(ours))
    assert float(gaussian_kl(torch.zeros(1, 2), torch.zeros(1, 2))) == 0


def test_the_autoencoders_loss_grows_with_the_kl() -> None:
    """Eq. 7, not Eq. 4: a larger weight on the KL makes the loss larger."""
    net, data = digits_network(), digits_federation().examples(0)
    losses = []
    for weight in (0.1, 1.0):
        method = FLAIR(kl=weight)
        job = job_of(method)
        phase = phase_of(method, "cvae")
        shared = phase.does.broadcast(method.server_init(job.setup))
        ctx = context(net, data, shared, phase=phase, state={"model": net.model()}, plan=job.plan)
        draw = phase.does.draw(ctx.plan.random(1, "cvae", 0), ctx, len(data))
        losses.append(phase.does.loss(phase.does.begin(ctx), ctx, Batch(data.x, data.y, draw)))
    assert float(losses[0]["kl"]) > 0
    assert float(losses[1]["kl"]) == pytest.approx(10 * float(losses[0]["kl"]), rel=1e-5)
    assert float(losses[1]["reconstruct"]) == pytest.approx(float(losses[0]["reconstruct"]))


def test_default_weight_of_the_kl_is_unit_variance_decoding() -> None:
    first, second = (
        run(job_of(FLAIR(kl=weight), digits_federation(3)), rounds=1).metrics[0]["phases"]["init"]["terms"]["kl"]
        for weight in (0.0, 2 / 64)
    )
    assert first == second


@pytest.mark.parametrize(("attract", "repel"), [(1.0, 1.0), (1.0, 2.0), (0.0, 0.1)])
def test_a_push_as_strong_as_the_pull_is_refused_unless_bounded(attract: float, repel: float) -> None:
    method = FLAIR(attract=attract, repel=repel)
    job = job_of(method)
    with pytest.raises(ConfigError, match="repel"):
        method.check(job.setup)
    FLAIR(attract=attract, repel=repel, separation="hinge").check(job.setup)
    FLAIR(attract=0.0, repel=0.0).check(job.setup)


def test_pull_and_push_balance_at_the_minimum_of_their_quadratic() -> None:
    """Features f* = (l_f·a − l_f~·b)/(l_f − l_f~) of generated a and b; for a = 2, b = −1 it is 7/3 with value −1."""
    net = Network("through", {"body": nn.Identity(), "head": nn.Linear(3, 4)})
    method, plan, y = FLAIR(ramp=0), Plan(0, 8), torch.tensor([0, 1, 2, 3, 3])
    coder = cvae(3, 4, 64, 16, "batch", plan.seed)
    data = Examples(torch.zeros(5, 3), y)
    shared = {"cvae": coder.model()}
    ctx = context(net, data, shared, phase=phase_of(method, "train"), task=Classification(4), plan=plan)
    draw = method.draw(plan.random(0, "train", 0), ctx, 5)
    hot = torch.eye(4)
    a, b = (
        decode(coder, coder.model(), torch.cat([code, hot[label]], 1), train=False)
        for code, label in ((draw["own"], y), (draw["other"], (y + draw["step"]) % 4))
    )
    best = ((a - 0.1 * b) / 0.9).requires_grad_(True)
    terms = method.loss(net.model(), ctx, Batch(best, y, draw))
    objective = terms["attract"] + terms["repel"]
    slope = torch.autograd.grad(objective, best)[0]
    torch.testing.assert_close(slope, torch.zeros(5, 3), atol=1e-7, rtol=0)
    # At the minimum the value is −l_f·l_f~/(l_f − l_f~)·(a − b)².
    torch.testing.assert_close(objective, -0.1 / 0.9 * (a - b).square().mean())
    assert pytest.approx(-1.0) == -0.1 / 0.9 * (2 - -1) ** 2
    assert pytest.approx(2.3333, abs=1e-4) == (1 * 2 - 0.1 * -1) / 0.9


def test_terms_are_equation_3_on_features_of_the_global_autoencoder() -> None:
    method = FLAIR(ramp=0)
    ctx, work, batch = step(method)
    terms = method.loss(work, ctx, batch)
    net, coder = ctx.net, cvae(64, 10, 64, 16, "batch", ctx.plan.seed)
    features = net.apply(net.model(), batch.x, stop=3)
    other = (batch.y + batch.drawn["step"]) % 10

    def generated(code: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        conditioned = torch.cat([code, torch.nn.functional.one_hot(label, 10).float()], 1)
        return decode(coder, ctx.shared["cvae"], conditioned, train=False)

    unlike = generated(batch.drawn["other"], other)
    mse = torch.nn.functional.mse_loss
    torch.testing.assert_close(terms["attract"], mse(features, generated(batch.drawn["own"], batch.y)))
    torch.testing.assert_close(terms["repel"], -0.1 * mse(features, unlike))
    head = net.apply(net.model(), unlike, start=3)
    torch.testing.assert_close(terms["synthetic"], torch.nn.functional.cross_entropy(head, other))


def test_feature_terms_reach_the_extractor_and_synthetic_ones_the_head() -> None:
    method = FLAIR()
    ctx, work, batch = step(method)
    terms = method.loss(work, ctx, batch)
    reached = {
        name: {key.split(".")[0] for key, slope in gradients(terms[name], work).items() if slope.any()}
        for name in ("attract", "repel", "synthetic")
    }
    assert reached["attract"] == {"conv1", "conv2", "fc1"}
    assert reached["repel"] == {"conv1", "conv2", "fc1"}
    assert reached["synthetic"] == {"head"}
    assert not any(leaf.requires_grad for _, leaf in tree.leaves(ctx.shared["cvae"]))


def test_generating_does_not_change_the_autoencoder() -> None:
    method = FLAIR()
    ctx, work, batch = step(method)
    before = tree.clone(ctx.shared["cvae"])
    method.loss(work, ctx, batch)
    assert same(ctx.shared["cvae"], before)


def test_the_other_class_is_never_the_own_one_and_every_other_is_as_likely() -> None:
    ctx, _, _ = step(FLAIR())
    own = torch.arange(10).repeat(10_000)
    steps = FLAIR().draw(ctx.plan.random(0, "train", 1), ctx, len(own))["step"]
    other = (own + steps) % 10
    assert not bool((other == own).any())
    shares = torch.bincount(other[own == 3], minlength=10) / 10_000
    everyone = torch.bincount((other - own) % 10, minlength=10) / len(own)
    assert float(shares[3]) == 0
    assert everyone[1:].tolist() == pytest.approx([1 / 9] * 9, abs=0.005)


def test_a_hinge_stops_pushing_beyond_its_margin() -> None:
    ctx, work, batch = step(FLAIR())
    far = FLAIR(separation="hinge", margin=1e-9).loss(work, ctx, batch)["repel"]
    near = FLAIR(separation="hinge", margin=1e3).loss(work, ctx, batch)["repel"]
    assert float(far.detach()) == 0
    assert not any(slope.any() for slope in gradients(far, work).values())
    assert any(slope.any() for slope in gradients(near, work).values())


def test_weights_rise_over_the_first_rounds() -> None:
    ctx, work, batch = step(FLAIR(ramp=4))
    values = [
        float(FLAIR(ramp=4).loss(work, context_at(ctx, round), batch)["attract"].detach()) for round in (0, 1, 3, 9)
    ]
    assert [value / values[-1] for value in values] == pytest.approx([0.25, 0.5, 1.0, 1.0], rel=1e-5)


def context_at(ctx: Context, round: int) -> Context:
    return context(ctx.net, ctx.data, ctx.shared, phase=ctx.phase, state=ctx.state, round=round, plan=ctx.plan)


def test_only_the_autoencoder_is_uploaded() -> None:
    ran = run(job_of("flair", digits_federation(4)), rounds=2, cohort=3)
    names = {name for name, _ in tree.leaves(digits_network().model()["params"])}
    for view in ran.views:
        for result in view.phases:
            sent = {path.split("/")[-1] for path, _ in tree.leaves(result.combined.values)}
            assert not sent & names
            assert set(result.combined.values) <= {"cvae"}
    assert set(ran.server) == {"cvae"}


def test_what_is_written_of_an_upload_names_no_parameter_of_the_classifier(tmp_path: Path) -> None:
    job = job_of("flair", digits_federation(4))
    server = job.method.server_init(job.setup)
    state = job.method.client_init(job.setup)
    clock = Clock(0, 2, 2)
    for phase in job.method.phases(clock):
        done = run_turn(job, phase, clock, phase.does.broadcast(server), Member(0, {}, state))
        assert isinstance(done, Finished)
        state = done.state or state
        storage.save(tmp_path / "upload.safetensors", done.packet.arrays)
        content = (tmp_path / "upload.safetensors").read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        names = [name for name in header if name != "__metadata__"]
        assert all(name.startswith("cvae/") for name in names)
        assert not any(name.endswith(key) for name in names for key in job.net.model()["params"])


def test_a_round_moves_one_autoencoder_each_way() -> None:
    ran = run(job_of("flair", digits_federation(4)), rounds=2, cohort=3)
    size = tree.nbytes(ran.server["cvae"])
    # The phase that trains it needs the one the phase before received: held, so it does not travel again.
    assert ran.metrics[1]["bytes"] == traffic(3 * size, 3 * size, every_time=6 * size)
    assert ran.metrics[0]["bytes"] == traffic(7 * size, 7 * size, every_time=10 * size)


def test_classifiers_stay_apart_and_wait_for_their_clients() -> None:
    ran = run(job_of("flair", digits_federation(4)), rounds=1, cohort=2)
    kept = states(ran.views[0].executor, 4)
    assert sorted(kept) == sorted(ran.views[0].cohort)
    assert all(set(state) == {"model"} for state in kept.values())
    first, second = kept.values()
    assert not same(first["model"], second["model"])
    method = FLAIR()
    initial = method.client_init(job_of(method).setup)
    assert same(method.predictor(ran.server, initial), digits_network().model())


@pytest.mark.parametrize(("outer", "part"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_the_outer_step_goes_part_of_the_way_to_the_mean(outer: float, part: float) -> None:
    method = FLAIR(outer=outer)
    old, mean = ({"cvae": {"params": {"w": torch.tensor([value])}, "buffers": {}}} for value in (1.0, 3.0))
    after = phase_of(method, "cvae").does.absorb(old, Combined(mean, (0, 1), (1.0, 1.0)))
    assert float(after["cvae"]["params"]["w"]) == 1.0 + 2.0 * part
    first = phase_of(method, "init", Clock(0, 5, 2)).does.absorb(old, Combined(mean, (0, 1), (1.0, 1.0)))
    assert float(first["cvae"]["params"]["w"]) == 3.0


def two_classes() -> Job:
    """One client that has the digits 0 and 3 only."""
    train, test = digits()
    rows = train.rows(torch.isin(train.y, torch.tensor([0, 3])).nonzero().flatten()[:20])
    return job_of("flair", GeneratedFederation(1, lambda client: rows, test, classes=10))


def test_an_upload_tells_which_classes_a_client_has() -> None:
    """A property of the method, kept as it is: columns of absent classes come back as they were sent."""
    job = two_classes()
    method = job.method
    server, state = method.server_init(job.setup), method.client_init(job.setup)
    phase = phase_of(FLAIR(), "cvae")
    outcome = run_turn(job, phase, LATER, phase.does.broadcast(server), Member(0, {}, state))
    assert isinstance(outcome, Finished)
    for layer, first in (("encode1.linear.weight", 64), ("decode1.linear.weight", 16)):
        sent, back = server["cvae"]["params"][layer], outcome.packet.arrays["cvae"]["params"][layer]
        unchanged = [c for c in range(10) if torch.equal(sent[:, first + c], back[:, first + c])]
        assert unchanged == [1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_client_of_one_row_takes_part(norm: str) -> None:
    ran = run(job_of(FLAIR(norm=norm), digits_federation(3, [1, 6, 6])), rounds=2)  # type: ignore[arg-type]
    assert ran.metrics[-1]["failed"] == []
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(ran.server))


def test_the_autoencoder_learns_its_features() -> None:
    first, all_along = (
        run(job_of(FLAIR(init_epochs=epochs), digits_federation(1, 30)), rounds=1, cohort=1).metrics[0]["phases"][
            "init"
        ]
        for epochs in (1, 60)
    )
    assert all_along["terms"]["reconstruct"] < first["terms"]["reconstruct"] / 3


def test_labels_must_be_classes() -> None:
    method = FLAIR()
    job = job_of(method)
    with pytest.raises(ConfigError, match="classification"):
        method.check(dataclasses.replace(job.setup, task=Regression()))


def test_examples_of_the_client_are_not_changed() -> None:
    ctx, work, batch = step(FLAIR())
    before = Examples(batch.x.clone(), batch.y.clone())
    FLAIR().loss(work, ctx, batch)
    assert torch.equal(before.x, batch.x)
    assert torch.equal(before.y, batch.y)
