"""FedDecorr: the specification's value, the Gram identity, and the rows that have nothing to correlate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.losses.features import feature_correlation
from fewfed.methods.feddecorr import FedDecorr
from fewfed.tasks.classification import Classification
from support import batch_of, context, gradients, linear_network, trainable


def explicit(z: torch.Tensor) -> float:
    """Mean squared off-diagonal entry of ZᵀZ over B, from the d×d matrix that the method never makes."""
    values = z.double().numpy()
    scaled = (values - values.mean(0)) / np.sqrt(values.var(0, ddof=1) + 1e-8)
    product = scaled.T @ scaled
    d = len(product)
    return float((np.square(product).sum() - np.square(np.diag(product)).sum()) / (d * (d - 1)) / len(values))


def test_the_loss_term_is_the_specifications_value(flea_values: dict[str, Any]) -> None:
    case = flea_values["feddecorr"]
    data = Examples(torch.tensor(case["features"], dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
    net = linear_network(torch.eye(3).tolist())
    for form, key in (
        ("released", "official_code_value"),
        ("printed", "paper_formula_(1/d^2)||corr||_F^2 with unbiased corr"),
    ):
        method = FedDecorr(weight=0.1, form=form)  # type: ignore[arg-type]
        terms = method.loss(net.model(), context(net, data, task=Classification(3)), batch_of(data))
        assert terms["decorrelate"].item() == pytest.approx(0.1 * case[key], abs=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (8, 200), (64, 10), (2, 5)])
def test_the_product_of_rows_gives_what_the_matrix_of_columns_gives(rows: int, columns: int) -> None:
    z = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(feature_correlation(z)) == pytest.approx(explicit(z), rel=1e-9)


def test_copies_of_one_column_are_fully_correlated() -> None:
    column = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    z = torch.stack([column, 2 * column + 1, -column], 1)
    assert float(feature_correlation(z)) == pytest.approx(3**2 / 4, rel=1e-6)
    assert float(feature_correlation(z, "printed")) == pytest.approx(1.0, rel=1e-6)


def test_one_row_and_constant_columns_add_nothing_and_keep_gradients_finite() -> None:
    assert float(feature_correlation(torch.ones(1, 5))) == 0
    net = linear_network(torch.eye(3).tolist())
    data = Examples(torch.ones(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
    work = trainable(net.model())
    terms = FedDecorr().loss(work, context(net, data, task=Classification(3)), batch_of(data))
    assert terms["decorrelate"].item() == 0
    assert all(torch.isfinite(g).all() for g in gradients(terms["task"] + terms["decorrelate"], work).values())
