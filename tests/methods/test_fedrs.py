"""FedRS: the specification's value, by the client's label set and not the batch's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.methods.fedrs import FedRS
from fewfed.tasks.classification import Classification
from support import batch_of, context, linear_network


def loss(values: dict[str, Any], counts: list[int], alpha: float) -> float:
    case = values["fedrs"]
    net = linear_network(torch.eye(3).tolist())
    data = Examples(torch.tensor(case["logits"], dtype=torch.float64), torch.tensor(case["targets"]))
    ctx = dataclasses.replace(context(net, data, task=Classification(3)), counts=torch.tensor(counts))
    return float(FedRS(alpha=alpha).loss(net.model(), ctx, batch_of(data))["task"])


def test_the_loss_is_the_specifications_value(flea_values: dict[str, Any]) -> None:
    assert loss(flea_values, [5, 0, 3], 0.5) == pytest.approx(flea_values["fedrs"]["ce"], abs=1e-6)


def test_a_class_the_client_has_counts_even_if_the_batch_lacks_it(flea_values: dict[str, Any]) -> None:
    case = flea_values["fedrs"]
    plain = torch.nn.functional.cross_entropy(
        torch.tensor(case["logits"], dtype=torch.float64), torch.tensor(case["targets"])
    )
    assert loss(flea_values, [5, 1, 3], 0.5) == pytest.approx(float(plain), abs=1e-12)
    assert loss(flea_values, [5, 0, 3], 1.0) == pytest.approx(float(plain), abs=1e-12)
