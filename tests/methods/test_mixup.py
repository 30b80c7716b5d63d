"""MixUp: the mixed loss against its definition, its limits, and what it refuses to wrap."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from wrapper_steps import first_turn, training

from fewfed.errors import ConfigError
from fewfed.methods.mixup import MixUp
from fewfed.methods.registry import choose
from support import batch_of, digits_federation, digits_network, job_of, run, same, trainable


def test_the_loss_is_mixup_as_defined() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    method, order, lam = MixUp(), torch.arange(len(data)).roll(1), 0.3
    ctx = first_turn(method, net, data)
    draw = {"inner": {}, "own": {"order": order, "lam": torch.tensor(lam)}}
    ours = training(method).loss(trainable(net.model()), ctx, batch_of(data, draw))["task"]
    output = net.apply(net.model(), lam * data.x + (1 - lam) * data.x[order])
    expected = lam * cross_entropy(output, data.y) + (1 - lam) * cross_entropy(output, data.y[order])
    torch.testing.assert_close(ours, expected)


def test_lam_follows_its_distribution_and_the_order_is_a_permutation() -> None:
    method = MixUp(alpha=0.5)
    ctx = first_turn(method, digits_network(), digits_federation().examples(0))
    random = ctx.plan.random(0, "train", 0)
    own = [training(method).draw(random, ctx, 4)["own"] for _ in range(3000)]
    lam = torch.stack([each["lam"] for each in own])
    assert lam.dim() == 1
    assert float(lam.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(lam.var()) == pytest.approx(1 / (4 * (2 * 0.5 + 1)), rel=0.05)
    assert all(sorted(each["order"].tolist()) == [0, 1, 2, 3] for each in own[:20])


def test_no_mixing_is_what_it_wraps_bit_for_bit() -> None:
    plain, quiet = (run(job_of(method), rounds=2).server for method in ("fedavg", MixUp(alpha=0.0)))
    assert same({"inner": plain, "own": {}}, quiet)


def test_the_inner_method_keeps_its_own_terms() -> None:
    terms = run(job_of("mixup(fedprox)"), rounds=1).metrics[0]["phases"]["train"]["terms"]
    assert set(terms) == {"task", "proximal"}


@pytest.mark.parametrize("wrapper", ["mixup", "manifold-mixup", "moex"])
def test_methods_that_read_labels_themselves_are_refused(wrapper: str) -> None:
    job = job_of(f"{wrapper}(flea)")
    with pytest.raises(ConfigError, match="flea"):
        job.method.check(job.setup)


def test_a_wrapper_around_a_wrapper_is_checked_too() -> None:
    method = choose("mixup(mixstyle(flea))").method
    with pytest.raises(ConfigError, match="class labels"):
        method.check(job_of(method).setup)
