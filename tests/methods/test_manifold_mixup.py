"""Manifold MixUp: where it mixes, and that every other place stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from wrapper_steps import first_turn, training

from fewfed.errors import ConfigError
from fewfed.methods.manifold_mixup import INPUT, ManifoldMixUp
from support import batch_of, digits_federation, digits_network, job_of, run, same, trainable


@pytest.mark.parametrize(("place", "cut"), [(INPUT, 0), ("conv1", 1), ("conv2", 2)])
def test_features_are_mixed_at_the_drawn_place_alone(place: str, cut: int) -> None:
    net, data = digits_network(), digits_federation().examples(0)
    order, lam = torch.arange(len(data)).roll(2), torch.tensor(0.35)
    at = {each: lam if each == place else torch.tensor(1.0) for each in (INPUT, "conv1", "conv2")}
    draw = {"inner": {}, "own": {"order": order, "lam": lam, "at": at}}
    method = ManifoldMixUp()
    ctx = first_turn(method, net, data)
    ours = training(method).loss(trainable(net.model()), ctx, batch_of(data, draw))["task"]
    model = net.model()
    features = net.apply(model, data.x, stop=cut) if cut else data.x
    output = net.apply(model, lam * features + (1 - lam) * features[order], start=cut)
    expected = lam * cross_entropy(output, data.y) + (1 - lam) * cross_entropy(output, data.y[order])
    torch.testing.assert_close(ours, expected)


def test_places_are_drawn_equally_often_and_one_at_a_time() -> None:
    method = ManifoldMixUp()
    ctx = first_turn(method, digits_network(), digits_federation().examples(0))
    random = ctx.plan.random(0, "train", 0)
    drawn = [training(method).draw(random, ctx, 3)["own"]["at"] for _ in range(3000)]
    mixed = torch.stack([torch.stack([lam != 1 for lam in at.values()]) for at in drawn]).float()
    assert bool((mixed.sum(1) == 1).all())
    assert mixed.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)


def test_no_mixing_is_what_it_wraps_bit_for_bit() -> None:
    plain, quiet = (run(job_of(method), rounds=2).server for method in ("fedavg", ManifoldMixUp(alpha=0.0)))
    assert same({"inner": plain, "own": {}}, quiet)


def test_an_unknown_stage_is_refused() -> None:
    method = ManifoldMixUp(stages=("pool9",))
    with pytest.raises(ConfigError, match="pool9"):
        method.check(job_of(method).setup)
