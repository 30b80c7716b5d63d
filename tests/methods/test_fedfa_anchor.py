"""FedFA by anchors: its terms in closed form, anchors that follow features, and the server's mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fewfed.data.examples import Examples
from fewfed.method import Setup
from fewfed.methods.fedfa_anchor import FedFAAnchor
from fewfed.network import Network
from fewfed.phase import Phase
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from support import batch_of, context, digits_federation, digits_network, gradients, job_of, run, same, trainable


def through(classes: int, width: int = 2) -> Network:
    """Features are the inputs; the head starts at zero, so its loss is log(classes)."""
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return Network("through", {"body": nn.Identity(), "head": head})


def test_terms_weigh_every_class_of_the_batch_alike() -> None:
    net = through(3)
    data = Examples(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
    shared = {"model": net.model(), "anchors": torch.zeros(3, 2)}
    ctx = context(net, data, shared, task=Classification(3), steps=2)
    method = FedFAAnchor(weight=0.1)
    terms = method.loss(method.begin(ctx), ctx, batch_of(data))
    assert float(terms["anchor"]) == pytest.approx(0.1 * ((1 + 9) / 2 + 25) / 3)
    assert float(terms["task"]) == pytest.approx(math.log(3))
    assert float(terms["calibrate"]) == pytest.approx(math.log(3))


def test_anchors_move_after_each_epoch_for_the_classes_that_are_there() -> None:
    net = through(3)
    data = Examples(torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 8.0]]), torch.tensor([0, 0, 1]))
    start = torch.ones(3, 2)
    method = FedFAAnchor(keep=0.5)
    shared, phase = {"model": net.model(), "anchors": start}, Phase("train", method, 2)
    ctx = context(net, data, shared, task=Classification(3), phase=phase, steps=6)
    work = method.begin(ctx)
    for row in (0, 1, 2):
        assert torch.equal(work["anchors"], start)
        method.loss(work, ctx, batch_of(data.rows(torch.tensor([row]))))
    torch.testing.assert_close(work["anchors"], torch.tensor([[2.0, 0.5], [0.5, 4.5], [1.0, 1.0]]))
    for _ in range(3):
        method.loss(work, ctx, batch_of(data.rows(torch.tensor([2]))))
    torch.testing.assert_close(work["anchors"], torch.tensor([[2.0, 0.5], [0.25, 6.25], [1.0, 1.0]]))


def test_the_loss_keeps_the_received_anchors_while_those_to_upload_move() -> None:
    """As the release: two epochs of two batches, with the anchors of both terms as they were received."""
    net = through(2)
    data = Examples(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]))
    received = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    method = FedFAAnchor(weight=0.1, keep=0.5)
    shared, phase = {"model": net.model(), "anchors": received}, Phase("train", method, 2)
    ctx = context(net, data, shared, task=Classification(2), phase=phase, steps=4)
    work = method.begin(ctx)
    work["params"]["head.weight"].copy_(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
    pull, calibrate = 0.1 * torch.tensor([1.0, 9.0]) / 2, (math.log1p(math.exp(-3)) + math.log(2)) / 2
    for step in range(4):
        terms = method.loss(work, ctx, batch_of(data.rows(torch.tensor([step % 2]))))
        assert float(terms["anchor"]) == pytest.approx(float(pull[step % 2]))
        assert float(terms["calibrate"]) == pytest.approx(calibrate)
    assert torch.equal(shared["anchors"], torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    uploaded = method.end(work, ctx).upload["anchors"]
    torch.testing.assert_close(uploaded, torch.tensor([[1.75, 0.0], [0.0, 3.25]]))


def test_calibration_reaches_the_head_alone() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    ctx = context(net, data, {"model": net.model(), "anchors": torch.eye(10, 64)}, steps=2)
    method = FedFAAnchor()
    work = {**method.begin(ctx), **trainable(net.model())}
    slopes = gradients(method.loss(work, ctx, batch_of(data))["calibrate"], work)
    assert {name.split(".")[0] for name, slope in slopes.items() if slope.any()} == {"head"}


@pytest.mark.parametrize(("classes", "width"), [(3, 5), (6, 4)])
def test_first_anchors_are_distinct_unit_vectors(classes: int, width: int) -> None:
    setup = Setup(through(classes, width), Classification(classes), Plan(0, 8), 2, (width,))
    anchors = FedFAAnchor().server_init(setup)["anchors"]
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(classes))
    assert len({tuple(row) for row in anchors.tolist()}) == classes


def test_without_its_terms_the_model_is_fedavgs_bit_for_bit() -> None:
    plain, quiet = (run(job_of(m), rounds=2).server for m in ("fedavg", FedFAAnchor(weight=0.0, calibrate=0.0)))
    assert same(plain["model"], quiet["model"])
