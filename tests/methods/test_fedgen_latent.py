"""FedGen for latent features: the generator's teachers, the clients' terms and their decay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.method import Batch, Context, Differentiate
from fewfed.methods.fedgen_latent import FedGenLatent, Generate
from fewfed.networks.generator import LATENT_NOISE, conditioned, latent_generator
from fewfed.phase import Clock, Combine
from fewfed.plan import Random
from support import (
    batch_of,
    context,
    digits,
    digits_federation,
    digits_network,
    gradients,
    in_double,
    job_of,
    run,
    trainable,
)

NET = digits_network()
GENERATOR = latent_generator((64,), 10, 0)


def head_of(seed: int) -> tree.Tree:
    model = digits_network(seed).model()
    return {"params": {n: v for n, v in model["params"].items() if n.startswith("head.")}, "buffers": {}}


def test_teachers_count_by_their_part_of_the_class() -> None:
    method = FedGenLatent(diversity=0.0)
    heads = [head_of(1), head_of(2)]
    counts = torch.zeros(2, 10, dtype=torch.long)
    counts[:, 3], counts[:, 5] = torch.tensor([1, 3]), torch.tensor([4, 0])
    y = torch.tensor([3, 5, 5, 3])
    phase = method.phases(Clock(0, 3, 1))[1]
    generate = phase.does
    ctx = context(NET, Examples(digits()[0].x[:0], y[:0]), {"heads": tree.stack(heads), "counts": counts}, phase=phase)
    draw = generate.draw(Random(0), ctx, 4)
    work = trainable(generate.begin(ctx))
    terms = generate.loss(work, ctx, batch_of(Examples(y, y), draw))
    with torch.no_grad():
        latent = GENERATOR.apply(GENERATOR.model(), conditioned(draw["noise"], y, 10))
        log_p = [torch.log_softmax(NET.apply(head, latent, start=NET.penultimate), 1).numpy() for head in heads]
    rows, labels = np.arange(4), y.numpy()
    shares = np.array([[0.25, 1, 1, 0.25], [0.75, 0, 0, 0.75]])
    expected = sum(-(share * logs[rows, labels]).mean() for share, logs in zip(shares, log_p, strict=True))
    assert terms["teach"].item() == pytest.approx(expected, abs=1e-5)
    assert gradients(terms["teach"], work)["out.linear.weight"].abs().max() > 0
    assert set(generate.data(ctx).y.tolist()) == {3, 5}
    assert len(generate.data(ctx)) == method.steps * method.batch


def test_a_clients_terms_are_the_equations_and_fade_with_the_rounds() -> None:
    method = FedGenLatent(alpha=10, beta=4, decay=0.5)
    data = digits()[0].rows(torch.arange(6))
    shared = {"model": NET.model(), "generator": GENERATOR.model(), "seen": torch.eye(10, dtype=torch.long)[2]}
    by_round = []
    for number in (0, 2):
        ctx = context(NET, data, shared, round=number)
        draw = method.draw(Random(0), ctx, 6)
        work = trainable(NET.model())
        by_round.append(method.loss(work, ctx, batch_of(data, draw)))
    assert draw["other_y"].tolist() == [2] * 6
    with torch.no_grad():
        output = torch.log_softmax(NET.apply(NET.model(), data.x), 1).double().numpy()
        imagined = [
            torch.log_softmax(
                NET.apply(
                    NET.model(), GENERATOR.apply(shared["generator"], conditioned(noise, y, 10), train=False), start=3
                ),
                1,
            )
            .double()
            .numpy()
            for noise, y in ((draw["noise"], data.y), (draw["other_noise"], draw["other_y"]))
        ]
    divergence = (np.exp(imagined[0]) * (imagined[0] - output)).sum(1).mean()
    assert by_round[0]["generated"].item() == pytest.approx(-10 * imagined[1][:, 2].mean(), abs=1e-4)
    assert by_round[0]["divergence"].item() == pytest.approx(4 * divergence, abs=1e-4)
    for name in ("generated", "divergence"):
        assert by_round[1][name].item() == pytest.approx(by_round[0][name].item() / 4, rel=1e-5)


def test_generated_features_train_the_head_and_not_the_body() -> None:
    method = FedGenLatent()
    data = digits()[0].rows(torch.arange(6))
    shared = {"model": NET.model(), "generator": GENERATOR.model(), "seen": torch.ones(10, dtype=torch.long)}
    ctx = context(NET, data, shared)
    work = trainable(NET.model())
    gradient = gradients(method.loss(work, ctx, batch_of(data, method.draw(Random(1), ctx, 6)))["generated"], work)
    assert {name for name, g in gradient.items() if g.abs().max() > 0} == {"head.weight", "head.bias"}


def test_what_the_server_sees_is_declared() -> None:
    ended = run(job_of("fedgen-latent", digits_federation(5, 12)), rounds=2, cohort=3)
    train, generate = ended.views[0].phases
    assert {name: sent.combine for name, sent in train.phase.uploads.items() if sent.combine.seen_raw} == {
        "head": Combine.KEEP,
        "counts": Combine.KEEP,
    }
    assert generate.record.steps == 50
    assert set(train.shared) == {"model"}
    assert set(ended.views[1].phases[0].shared) == {"model", "generator", "seen"}
    cohorts = [view.cohort for view in ended.views]
    seen = sum(job_counts(client) for cohort in cohorts for client in cohort)
    assert torch.equal(ended.server["seen"], seen)


def test_the_generators_adam_goes_on_over_rounds_at_a_falling_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against torch's own Adam, one for the whole run, given the same gradients: its rate falls by 0.98 a round."""
    slopes: list[tree.Tree] = []
    plain = Generate.gradient

    def noted(self: Generate, differentiate: Differentiate, work: tree.Tree, ctx: Context, batch: Batch) -> Any:
        def keeping(point: tree.Tree) -> tuple[tree.Tree, tree.Tree]:
            slope, terms = differentiate(point)
            slopes.append(tree.clone(slope))
            return slope, terms

        return plain(self, keeping, work, ctx, batch)

    monkeypatch.setattr(Generate, "gradient", noted)
    method = FedGenLatent(steps=4, batch=16)
    job = in_double(job_of(method, digits_federation(4, 12), training={"epochs": 1}))
    ended = run(job, rounds=3, cohort=3)
    assert len(slopes) == 12
    params = latent_generator((64,), 10, job.plan.seed, torch.float64).model()["params"]
    leaves = [value.clone().requires_grad_() for value in params.values()]
    adam = torch.optim.Adam(leaves, lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)
    falling = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.98)
    for number, slope in enumerate(slopes, 1):
        for leaf, name in zip(leaves, params, strict=True):
            leaf.grad = slope[name]
        adam.step()
        if number % 4 == 0:
            falling.step()
    found = ended.server["generator"]["params"]
    for leaf, name in zip(leaves, params, strict=True):
        torch.testing.assert_close(found[name], leaf.detach(), rtol=1e-9, atol=1e-10)


def job_counts(client: int) -> torch.Tensor:
    return digits_federation(5, 12).counts(client)


def test_the_generators_noise_has_the_authors_width() -> None:
    hidden = GENERATOR.model()["params"]["hidden.linear.weight"]
    assert hidden.shape == (512, LATENT_NOISE + 10) == (512, 74)
