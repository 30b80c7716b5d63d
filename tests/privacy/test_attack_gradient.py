"""Gradient: what can be read off exactly is, what can be matched is recognised, and nothing else is claimed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from recorded_run import Exchanged, Kept, recorded, silent
from torch import nn

from fewfed import tree
from fewfed.network import Network
from fewfed.networks import build
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.gradient import Gradient, in_order
from fewfed.privacy.attacks.gradient_matching import angle, read_off, variation
from fewfed.privacy.attacks.one_step import one_steps
from support import digits_federation, job_of

MATCHED = "matched to the gradient"


def stepped(network: str, rows: int, effort: float = 0.25, **more: object) -> Case:
    """Clients that took one step on all their rows."""
    training = {"epochs": 1, "batch": 64, "optimizer": "sgd", "lr": 0.1, **more}
    job = job_of("fedavg", digits_federation(4, rows), net=build(network, (1, 8, 8), 10, 3), training=training)
    return recorded(job, rounds=1, effort=effort)


def test_one_row_before_a_linear_layer_is_read_off_exactly() -> None:
    case = stepped("mlp", 1)
    for step in one_steps(case, case.exchanges()[0]):
        rebuilt = read_off(step, (1, 8, 8))
        assert rebuilt is not None
        assert torch.allclose(rebuilt, case.job.federation.examples(step.client).x.double(), atol=1e-4)


def test_several_rows_and_convolutions_are_not_read_off() -> None:
    for network, rows in (("mlp", 2), ("digits-cnn", 1)):
        case = stepped(network, rows)
        assert read_off(one_steps(case, case.exchanges()[0])[0], (1, 8, 8)) is None


@pytest.mark.parametrize(("network", "rows", "least"), [("digits-cnn", 1, 20.0), ("mlp", 8, 15.0)])
def test_rows_are_recognised_from_the_gradient_of_a_batch(network: str, rows: int, least: float) -> None:
    """20 dB for one picture and an untrained convolutional network: what published examples reach."""
    found = {each.variant: each for each in Gradient().findings(stepped(network, rows), silent)}
    quality, alike = found[MATCHED].measures
    assert quality.value > least
    assert quality.chance is not None
    for measure in (quality, alike):  # One row has no interval that could be above chance: it is so itself.
        assert (measure.value if rows == 1 else measure.low) > (measure.chance or 1.0)
    assert quality.rows == rows
    assert math.isinf(quality.low) is (rows == 1)


def test_a_gradient_of_noise_gives_no_row() -> None:
    case = stepped("mlp", 1)
    (before,) = case.exchanges()
    random = torch.Generator().manual_seed(0)
    noise = lambda leaf: leaf + 0.01 * torch.randn(leaf.shape, generator=random)  # noqa: E731
    packets = {
        client: dataclasses.replace(packet, arrays={"model": tree.map(noise, before.broadcast["model"])})
        for client, packet in before.packets.items()
    }
    noisy = dataclasses.replace(case, record=Kept({1: [Exchanged(1, "train", before.broadcast, packets, {})]}))
    for each in Gradient().findings(noisy, silent):
        quality = each.measures[0]
        assert quality.value <= (quality.chance or 0.0)


def test_signs_alone_are_labelled_so() -> None:
    found = Gradient().findings(stepped("mlp", 1, 0.05, optimizer="adam", lr=0.001), silent)
    assert [each.variant for each in found] == ["matched to the signs of the gradient"]


def test_where_it_does_not_apply_it_says_why() -> None:
    assert "up to 2 steps" in Gradient().why_not(stepped("mlp", 12, batch=6))
    assert "batches of up to 12 rows" in Gradient().why_not(stepped("mlp", 12))
    assert "no client sent a model" in Gradient().why_not(recorded(job_of("local", digits_federation(2, 4)), rounds=1))
    bare = Network("bare", {"flat": nn.Flatten(), "head": nn.Linear(64, 10, bias=False)})
    training = {"epochs": 1, "batch": 64, "optimizer": "sgd"}
    case = recorded(job_of("fedavg", digits_federation(2, 4), net=bare, training=training), rounds=1)
    assert "no bias" in Gradient().why_not(case)


def test_reconstructions_are_brought_in_the_order_that_fits_best() -> None:
    truth = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.equal(in_order(truth[order] + 0.0, truth), truth)


def test_the_angle_does_not_depend_on_lengths() -> None:
    one = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    assert float(angle(one, [7 * each for each in one])) == pytest.approx(0.0, abs=1e-6)
    assert float(angle(one, [-each for each in one])) == pytest.approx(2.0)
    assert float(angle([torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 5.0])])) == pytest.approx(1.0)


def test_variation_is_the_mean_step_between_neighbours() -> None:
    ramp = torch.arange(4.0).expand(1, 1, 3, 4)
    assert float(variation(ramp)) == 1.0
    assert float(variation(torch.randn(3, 7))) == 0.0
