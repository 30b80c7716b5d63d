"""MixStyle: statistics against numpy, no gradient through them, labels untouched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.methods.mixstyle import MixStyle
from fewfed.network import Network
from fewfed.tree import Tree
from support import batch_of, context, job_of, run, same


def mixed_features(x: Tensor, own: Tree) -> Tensor:
    """What the stage behind an augmented identity stage receives."""
    net = Network("through", {"body": nn.Identity(), "head": nn.Identity()})
    data = Examples(x, torch.zeros(len(x), dtype=torch.long))
    ctx, _ = MixStyle().augmented({"body": own}, context(net, data), batch_of(data))
    result: Tensor = ctx.net.apply({"params": {}, "buffers": {}}, x)
    return result


def draws_for(rows: int, on: bool = True) -> Tree:
    lam = torch.linspace(0.1, 0.9, rows, dtype=torch.float64)
    return {"on": torch.tensor(on), "order": torch.arange(rows).roll(1), "lam": lam}


def test_rows_take_part_of_their_partners_statistics() -> None:
    x = torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = draws_for(5)
    ours = mixed_features(x, own).numpy()
    values, order, lam = x.numpy(), own["order"].numpy(), own["lam"].numpy()[:, None]
    mu, sigma = values.mean((2, 3)), np.sqrt(values.var((2, 3), ddof=1) + 1e-6)
    new_mu, new_sigma = lam * mu + (1 - lam) * mu[order], lam * sigma + (1 - lam) * sigma[order]
    expected = (values - mu[..., None, None]) / sigma[..., None, None] * new_sigma[..., None, None]
    np.testing.assert_allclose(ours, expected + new_mu[..., None, None], rtol=1e-10)


def test_statistics_carry_no_gradient() -> None:
    """With constant statistics the map is linear in x with slope new deviation over own deviation."""
    x = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    own = draws_for(4)
    gradient = torch.autograd.grad(mixed_features(x, own).sum(), x)[0]
    deviation = (x.detach().var((2, 3)) + 1e-6).sqrt()
    lam = own["lam"].unsqueeze(1)
    slope = (lam * deviation + (1 - lam) * deviation[own["order"]]) / deviation
    torch.testing.assert_close(gradient, slope[..., None, None].expand_as(x))


def test_a_closed_gate_changes_nothing() -> None:
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    assert torch.equal(mixed_features(x, draws_for(4, on=False)), x)


def test_a_pass_over_fewer_rows_than_drawn_is_mixed_among_itself() -> None:
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    assert mixed_features(x, draws_for(5)).shape == x.shape


def test_never_mixing_is_what_it_wraps_bit_for_bit() -> None:
    plain, quiet = (run(job_of(method), rounds=2).server for method in ("fedavg", MixStyle(p=0.0)))
    assert same({"inner": plain, "own": {}}, quiet)


def test_a_network_without_positions_is_refused() -> None:
    job = job_of("mixstyle", net=networks.build("mlp", (1, 8, 8), 10, 0))
    with pytest.raises(ConfigError, match="mlp"):
        job.method.check(job.setup)
