from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fewfed import losses
from fewfed.plan import Random
from losses.distance_correlation import correlation, unbiased_squared_correlation

DOUBLE = torch.float64


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def gaussian(seed: int, *shape: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in values["distance_correlation"] if "X" in entry]


def test_trap_01_r_and_its_square_are_told_apart(flea_values: dict[str, Any]) -> None:
    for entry in pairs(flea_values):
        x, f = double(entry["X"]), double(entry["F"])
        assert float(losses.distance_correlation(x, f)) == pytest.approx(entry["R"], abs=1e-6)
        assert float(losses.distance_correlation(x, f, power=2)) == pytest.approx(entry["R2"], abs=1e-6)
        assert float(losses.distance_correlation(x, f)) == pytest.approx(correlation(x.tolist(), f.tolist()))
    first = pairs(flea_values)[0]
    assert (first["R"], first["R2"]) == pytest.approx((0.8528997025, 0.7274379026), abs=1e-9)


def test_trap_02_distances_are_not_squared_and_centring_is_double(flea_values: dict[str, Any]) -> None:
    for entry in pairs(flea_values):
        a, b = losses.centred_distances(double(entry["X"])), losses.centred_distances(double(entry["F"]))
        assert float((a * b).mean()) == pytest.approx(entry["dcov_sq"], abs=1e-6)
        for matrix in (a, b):
            assert float(matrix.sum(0).abs().max()) < 1e-10
            assert float(matrix.sum(1).abs().max()) < 1e-10
    third = pairs(flea_values)[2]
    correlation = losses.distance_correlation(double(third["X"]), double(third["F"]))
    assert float(correlation) == pytest.approx(0.7706845185, abs=1e-6)


WAVES = np.sin(np.arange(24.0)).reshape(8, 3), np.cos(np.arange(16.0) ** 2).reshape(8, 2)
BENT = np.sin(np.arange(15.0) ** 2).reshape(5, 3)


@pytest.mark.parametrize(
    ("x", "f", "r", "unbiased"),
    [
        (*WAVES, 0.6879044861342422, 0.1846427412320468),
        (BENT, 2 * BENT[:, :1] + 1, 0.9338413628094799, 0.9753581369511699),
    ],
)
def test_values_are_those_of_the_package_dcor(x: Any, f: Any, r: float, unbiased: float) -> None:
    """Computed by dcor 0.7, which is not needed here: loading it takes longer than most of these tests together."""
    assert float(losses.distance_correlation(double(x), double(f))) == pytest.approx(r, abs=1e-12)
    assert float(losses.unbiased_distance_correlation(double(x), double(f))) == pytest.approx(unbiased, abs=1e-12)
    assert correlation(x.tolist(), f.tolist()) == pytest.approx(r, abs=1e-12)
    assert unbiased_squared_correlation(x.tolist(), f.tolist()) == pytest.approx(unbiased, abs=1e-12)


@given(st.integers(0, 10**6), st.integers(4, 12), st.integers(1, 5), st.integers(1, 5))
def test_random_samples_agree_with_the_definition(seed: int, rows: int, wide: int, narrow: int) -> None:
    x, f = gaussian(seed, rows, wide), gaussian(seed + 1, rows, narrow)
    reference = correlation(x.tolist(), f.tolist())
    assert float(losses.distance_correlation(x, f)) == pytest.approx(reference, abs=1e-6)
    assert float(losses.distance_correlation(x, f, power=2)) == pytest.approx(reference**2, abs=1e-6)
    unbiased = unbiased_squared_correlation(x.tolist(), f.tolist())
    assert float(losses.unbiased_distance_correlation(x, f)) == pytest.approx(unbiased, abs=1e-6)


@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 4))
def test_distances_are_those_of_numpy(seed: int, rows: int, width: int) -> None:
    x = gaussian(seed, rows, width)
    reference = ((x.numpy()[:, None] - x.numpy()[None]) ** 2).sum(-1)
    assert np.allclose(losses.squared_distances(x).numpy(), reference, atol=1e-10)


def test_distances_far_from_the_origin_survive_single_precision() -> None:
    x = gaussian(0, 6, 3)
    shifted = (x + 1000).float()
    exact = torch.cdist(shifted.double(), shifted.double()) ** 2
    assert torch.allclose(losses.squared_distances(shifted).double(), exact, rtol=1e-4, atol=1e-5)


def test_inputs_of_any_shape_are_flattened() -> None:
    x, f = gaussian(0, 6, 2, 3, 4), gaussian(1, 6, 5)
    assert torch.equal(losses.distance_correlation(x, f), losses.distance_correlation(x.reshape(6, 24), f))


def test_trap_03_shifted_scaled_rotations_keep_r_at_one() -> None:
    x = gaussian(0, 20, 6)
    rotation, _ = torch.linalg.qr(gaussian(1, 6, 6))
    f = gaussian(2, 20, 3)
    assert float(losses.distance_correlation(x, 2.5 * x @ rotation + 3)) == pytest.approx(1, abs=1e-6)
    scaled = losses.distance_correlation(x, 100 * f)
    assert float(scaled) == pytest.approx(float(losses.distance_correlation(x, f)), abs=1e-6)
    assert float(losses.distance_correlation(x, x @ gaussian(3, 6, 6))) < 0.995


@pytest.mark.parametrize(
    "measure",
    [
        losses.distance_correlation,
        lambda x, f: losses.distance_correlation(x, f, power=2),
        losses.released_distance_correlation,
        lambda x, f: losses.trace_correlation(x, f, "trace"),
        lambda x, f: losses.trace_correlation(x, f, "rv"),
    ],
)
@pytest.mark.parametrize("case", ["two equal rows", "constant", "all equal inputs", "one row", "two rows"])
def test_trap_04_equal_rows_have_finite_gradients(measure: Callable[[Tensor, Tensor], Tensor], case: str) -> None:
    x, f = gaussian(0, 5, 4, dtype=torch.float32), gaussian(1, 5, 3, dtype=torch.float32)
    if case == "two equal rows":
        x[1], f[1] = x[0], f[0]
    elif case == "constant":
        f = torch.ones(5, 3)
    elif case == "all equal inputs":
        x = torch.ones(5, 4)
    else:
        x, f = (x[:1], f[:1]) if case == "one row" else (x[:2], f[:2])
    f.requires_grad_(True)
    value = measure(x, f)
    (gradient,) = torch.autograd.grad(value, f)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_constant_features_correlate_with_nothing() -> None:
    x = gaussian(0, 6, 4)
    assert float(losses.distance_correlation(x, torch.ones(6, 3, dtype=DOUBLE))) == 0.0
    assert float(losses.trace_correlation(x, torch.ones(6, 3, dtype=DOUBLE), "rv")) == 0.0


@pytest.mark.parametrize("power", [1, 2])
def test_the_gradient_of_r_agrees_with_finite_differences(power: int) -> None:
    x, f = gaussian(0, 6, 4), gaussian(1, 6, 3).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda f: losses.distance_correlation(x, f, power), (f,), atol=1e-5)


def test_gradients_of_r_and_its_square_are_related_by_two_r() -> None:
    x, f = gaussian(0, 6, 4), gaussian(1, 6, 3).requires_grad_(True)
    r = losses.distance_correlation(x, f)
    (plain,) = torch.autograd.grad(r, f)
    (squared,) = torch.autograd.grad(losses.distance_correlation(x, f, 2), f)
    assert torch.allclose(plain, squared / (2 * r.detach()))


def test_trap_05_the_loss_is_biased_and_the_report_is_not(flea_values: dict[str, Any]) -> None:
    for entry in pairs(flea_values):
        unbiased = losses.unbiased_distance_correlation(double(entry["X"]), double(entry["F"]))
        assert float(unbiased) == pytest.approx(entry["u_R2"], abs=1e-6)
    x, f = gaussian(0, 32, 3072, dtype=torch.float32), gaussian(1, 32, 4096, dtype=torch.float32)
    assert float(losses.distance_correlation(x, f)) > 0.99
    assert abs(float(losses.unbiased_distance_correlation(x, f))) < 0.15


def test_the_released_form_has_its_own_values(flea_values: dict[str, Any]) -> None:
    for entry in pairs(flea_values):
        if "official_eps_float32_R" in entry:
            x, f = double(entry["X"]).float(), double(entry["F"]).float()
            value = losses.released_distance_correlation(x, f)
            assert float(value) == pytest.approx(entry["official_eps_float32_R"], abs=1e-6)
    single, constant = flea_values["distance_correlation"][3:]
    x = double(pairs(flea_values)[0]["X"]).float()
    assert float(losses.released_distance_correlation(x[:1], x[:1])) == pytest.approx(single["R"], abs=1e-6)
    flat = torch.ones(5, 3, requires_grad=True)
    value = losses.released_distance_correlation(x, flat)
    (gradient,) = torch.autograd.grad(value, flat)
    assert float(value.detach()) == pytest.approx(constant["R"], abs=1e-6)
    assert float(gradient.abs().max()) == constant["max_abs_grad"]


def test_trap_06_the_two_readings_of_the_trace_form(flea_values: dict[str, Any]) -> None:
    names = {
        ("trace", False): "literal",
        ("rv", False): "RV reading",
        ("trace", True): "literal, columns centred",
        ("rv", True): "RV, columns centred",
    }
    for entry in flea_values["trace_form_iclr"]:
        x, f = double(entry["X"]), double(entry["F"])
        for (form, centre), name in names.items():
            expected = next(value for key, value in entry.items() if key == name or key.startswith(f"{name} ("))
            assert float(losses.trace_correlation(x, f, form, centre)) == pytest.approx(expected, abs=1e-6)
    square = double(flea_values["trace_form_iclr"][1]["X"])
    assert float(losses.trace_correlation(square, square, "trace", centre=False)) == pytest.approx(
        0.7175510204, abs=1e-9
    )
    assert float(losses.trace_correlation(square, square, "rv", centre=False)) == pytest.approx(1)


def test_trap_06_gram_matrices_give_the_explicit_traces() -> None:
    x, f = gaussian(0, 7, 4), gaussian(1, 7, 9)
    top = torch.trace(x.T @ f @ f.T @ x)
    literal = top / (torch.trace(x.T @ x) * torch.trace(f.T @ f))
    rv = top / (torch.trace(x.T @ x @ x.T @ x) * torch.trace(f.T @ f @ f.T @ f)).sqrt()
    assert float(losses.trace_correlation(x, f, "trace", centre=False)) == pytest.approx(float(literal))
    assert float(losses.trace_correlation(x, f, "rv", centre=False)) == pytest.approx(float(rv))


def test_dependence_chooses_the_form_and_leaves_tiny_batches_out() -> None:
    x, f = gaussian(0, 6, 4), gaussian(1, 6, 3)
    assert torch.equal(losses.dependence(x, f), losses.distance_correlation(x, f))
    assert torch.equal(losses.dependence(x, f, power=2), losses.distance_correlation(x, f, 2))
    assert torch.equal(losses.dependence(x, f, "trace"), losses.trace_correlation(x, f, "trace"))
    assert torch.equal(losses.dependence(x, f, "rv"), losses.trace_correlation(x, f, "rv"))
    assert float(losses.dependence(x[:3], f[:3])) == 0.0
    assert float(losses.dependence(x[:4], f[:4])) > 0.0


def test_trap_07_direction_and_reduction_of_the_divergence(flea_values: dict[str, Any]) -> None:
    values = flea_values["kl"]
    local, teacher = double(values["logits_local"]), double(values["logits_global"])
    coded = float(losses.kl_divergence(teacher, local))
    printed = float(losses.kl_divergence(local, teacher))
    assert coded == pytest.approx(values["KL(global||local) as coded, batch mean"], abs=1e-6)
    assert printed == pytest.approx(values["KL(local||global) as printed in Eq.4, batch mean"], abs=1e-6)
    assert float(losses.kl_divergence(local, local)) == 0.0
    mean = float(kl_div(local.log_softmax(1), teacher.softmax(1), reduction="none").mean())
    assert coded == pytest.approx(3 * mean)


@given(st.integers(0, 10**6), st.floats(0.5, 5))
def test_tempered_divergence_is_torch_times_the_squared_temperature(seed: int, temperature: float) -> None:
    p, q = gaussian(seed, 5, 4), gaussian(seed + 1, 5, 4)
    reference = kl_div(
        (q / temperature).log_softmax(1), (p / temperature).log_softmax(1), reduction="batchmean", log_target=True
    )
    value = float(losses.kl_divergence(p, q, temperature))
    assert value == pytest.approx(float(reference) * temperature**2, abs=1e-9)
    assert value >= -1e-12


def test_trap_08_the_weight_belongs_to_the_first(flea_values: dict[str, Any]) -> None:
    values = flea_values["mixup"]
    own, theirs = (losses.one_hot(torch.tensor(values[name]), 3) for name in ("y_local", "y_buffer"))
    weight = torch.tensor(values["lambda"])
    mixed = losses.mix(weight, own, theirs)
    assert torch.allclose(mixed, torch.tensor(values["y_mixed"]), atol=1e-7)
    assert torch.equal(losses.mix(torch.ones(2), own, theirs), own)
    assert torch.equal(losses.mix(torch.zeros(2), own, theirs), theirs)
    value = losses.soft_cross_entropy(double(values["logits"]), double(values["y_mixed"]))
    assert float(value) == pytest.approx(values["soft_ce"], abs=1e-6)


def test_trap_09_one_weight_a_row_reaches_every_axis() -> None:
    first, second = gaussian(0, 4, 2, 3, 3), gaussian(1, 4, 2, 3, 3)
    weight = double([0.0, 1.0, 0.25, 0.5])
    mixed = losses.mix(weight, first, second)
    for row in range(4):
        expected = weight[row] * first[row] + (1 - weight[row]) * second[row]
        assert torch.allclose(mixed[row], expected)


def test_trap_16_mixing_unrelated_rows_shrinks_the_variance(flea_values: dict[str, Any]) -> None:
    values = flea_values["mix_variance_ratio"]
    rows = 40000
    first, second = gaussian(0, rows, 1, dtype=torch.float32), gaussian(1, rows, 1, dtype=torch.float32)
    mixed = losses.mix(Random(0, "lam").beta(values["beta_a"], rows), first, second)
    assert float(mixed.var()) == pytest.approx(values["E[l^2+(1-l)^2]"], rel=0.03)


def test_soft_cross_entropy_is_torch_for_hard_and_soft_targets() -> None:
    logits, y = gaussian(0, 6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    soft = gaussian(1, 6, 4).softmax(1)
    assert float(losses.soft_cross_entropy(logits, losses.one_hot(y, 4))) == pytest.approx(
        float(cross_entropy(logits, y))
    )
    assert float(losses.soft_cross_entropy(logits, soft)) == pytest.approx(float(cross_entropy(logits, soft)))
    hard = losses.soft_cross_entropy(double([[1000.0, 0.0]]), double([[1.0, 0.0]]))
    assert float(hard) == pytest.approx(0, abs=1e-12)


def test_one_hot_is_torchs() -> None:
    y = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(losses.one_hot(y, 4), torch.nn.functional.one_hot(y, 4).float())


CLIENTS, ROWS = 3, 6
VMAPPED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "soft cross-entropy": lambda x, f: losses.soft_cross_entropy(x, f.softmax(-1)),
    "divergence": lambda x, f: losses.kl_divergence(x, f, 2.0),
    "mix": lambda x, f: losses.mix(x[:, 0], x, f),
    "distances": lambda x, f: losses.squared_distances(x),
    "r": losses.distance_correlation,
    "r squared": lambda x, f: losses.distance_correlation(x, f, 2),
    "released": losses.released_distance_correlation,
    "unbiased": losses.unbiased_distance_correlation,
    "trace": lambda x, f: losses.trace_correlation(x, f, "trace"),
    "rv": lambda x, f: losses.trace_correlation(x, f, "rv"),
    "dependence": losses.dependence,
}


@pytest.mark.parametrize("name", sorted(VMAPPED))
def test_terms_and_their_gradients_run_for_many_clients_at_once(name: str) -> None:
    function = VMAPPED[name]
    x, f = gaussian(0, CLIENTS, ROWS, 4), gaussian(1, CLIENTS, ROWS, 4)
    # One client with constant and one with two equal rows: guarded branches must not leak into their neighbours.
    f[1] = 1.0
    f[2, 1] = f[2, 0]
    batched = torch.func.vmap(function)(x, f)
    alone = torch.stack([function(x[k], f[k]) for k in range(CLIENTS)])
    assert torch.allclose(batched, alone, rtol=1e-9, atol=1e-12, equal_nan=True)

    def total(x: Tensor, f: Tensor) -> Tensor:
        return function(x, f).sum()

    slopes = torch.func.vmap(torch.func.grad(total, argnums=1))(x, f)
    each = torch.stack([torch.func.grad(total, argnums=1)(x[k], f[k]) for k in range(CLIENTS)])
    assert torch.allclose(slopes, each, rtol=1e-7, atol=1e-9, equal_nan=True)
    # The bias-corrected statistic is for reports and undefined for constant features; nothing else may be.
    assert name == "unbiased" or torch.isfinite(slopes).all()


def test_labels_run_for_many_clients_at_once() -> None:
    y = torch.tensor([[0, 1, 2], [2, 2, 0]])
    batched = torch.func.vmap(lambda labels: losses.one_hot(labels, 3))(y)
    assert torch.equal(batched, torch.stack([losses.one_hot(labels, 3) for labels in y]))


def test_correlation_of_independent_low_rank_features_falls_with_the_batch() -> None:
    """The biased statistic is no measure across batch sizes: about 0.51 at 32 rows and 0.41 at 64 for rank one."""

    def mean_r(rows: int) -> float:
        values = [
            float(
                losses.distance_correlation(
                    gaussian(seed, rows, 20) @ gaussian(9, 20, 300), gaussian(seed + 50, rows, 1) @ gaussian(8, 1, 200)
                )
            )
            for seed in range(10)
        ]
        return math.fsum(values) / len(values)

    assert mean_r(32) == pytest.approx(0.51, abs=0.06)
    assert mean_r(64) == pytest.approx(0.41, abs=0.06)
