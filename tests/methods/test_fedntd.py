"""FedNTD: the specification's values, and that the true class's logit plays no part in the distillation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.losses.features import not_true_divergence
from fewfed.methods.fedntd import FedNTD
from fewfed.tasks.classification import Classification
from support import batch_of, context, digits, digits_network, gradients, linear_network, trainable


@pytest.mark.parametrize(("tau", "key"), [(1.0, "ntd_tau1"), (3.0, "ntd_tau3")])
def test_the_loss_terms_are_the_specifications_values(flea_values: dict[str, Any], tau: float, key: str) -> None:
    case = flea_values["fedntd"]
    local, received = (torch.tensor(case[name], dtype=torch.float64) for name in ("logits_local", "logits_global"))
    net = linear_network(torch.eye(3).tolist())
    data = Examples(local, torch.tensor(case["targets"]))
    # The one linear teacher that answers these inputs with the logits of the specification.
    teacher = {"params": {"head.weight": (torch.linalg.pinv(local) @ received).T}, "buffers": {}}
    ctx = context(net, data, {"model": teacher}, task=Classification(3))
    terms = FedNTD(beta=1.0, tau=tau).loss(net.model(), ctx, batch_of(data))
    assert terms["distil"].item() == pytest.approx(case[key], abs=1e-6)
    assert terms["task"].item() == pytest.approx(case["ce"], abs=1e-6)


def test_the_true_classs_logit_does_not_matter() -> None:
    draw = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([0, 1, 2, 3, 0, 2])
    moved = student.clone()
    moved[torch.arange(6), y] += 50
    for tau in (1.0, 3.0):
        before, after = (float(not_true_divergence(teacher, s, y, tau)) for s in (student, moved))
        assert after == pytest.approx(before, abs=1e-12)
    assert float(not_true_divergence(teacher, teacher, y, 1.0)) == pytest.approx(0, abs=1e-12)


def test_two_classes_leave_nothing_to_distil() -> None:
    teacher, student = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.0, 9.0]])
    assert float(not_true_divergence(teacher, student, torch.tensor([1]), 1.0)) == 0


def test_the_teacher_is_left_alone_and_does_not_see_who_else_is_in_the_batch() -> None:
    net, (train, _) = digits_network(), digits()
    data = train.rows(torch.arange(12))
    model = net.model()
    before = tree.clone(model)
    ctx = context(net, data, {"model": model})
    work = trainable(digits_network(seed=5).model())
    terms = FedNTD().loss(work, ctx, batch_of(data))
    assert gradients(terms["distil"], work)["conv1.conv.weight"].abs().max() > 0
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tree.leaves(before), tree.leaves(model), strict=True))
