"""FedFA's equations against hand-made numbers and numpy, and the stages they apply to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fewfed import networks
from fewfed.errors import ConfigError
from fewfed.methods.parts.statistics import (
    channel_moments,
    feature_augmentation,
    moving_average,
    noise_scale,
    normalised_gamma,
    partners,
    shared_variance,
    spatial_stages,
    stage_outputs,
    vector_width,
)
from fewfed.network import Network

SQUARES = torch.tensor([[[0.0, 2.0], [2.0, 4.0]], [[4.0, 4.0], [8.0, 8.0]]]).unsqueeze(1)
"""Two rows of one 2x2 channel: means 2 and 6."""


def gamma_of(values: Tensor) -> Tensor:
    """Gamma from one row of statistics a client, through the sums that are uploaded."""
    values = values.double()
    return normalised_gamma(shared_variance(torch.tensor(float(len(values))), values.sum(0), values.square().sum(0)))


def ones(count: int) -> Tensor:
    return torch.ones(count)


def test_gamma_is_per_channel_and_not_one_number_for_all() -> None:
    clients = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 2 * math.sqrt(3)]])
    torch.testing.assert_close(gamma_of(clients).float(), torch.tensor([0.0, 1.2, 1.8]))


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_gamma_of_clients_that_agree_is_one(clients: int) -> None:
    row = torch.randn(5, generator=torch.Generator().manual_seed(clients)).repeat(clients, 1)
    assert torch.equal(gamma_of(row), torch.ones(5).double())


def test_gamma_of_small_variances_is_scale_free() -> None:
    gamma = normalised_gamma(torch.tensor([1e-8, 2e-8, 3e-8], dtype=torch.float64))
    torch.testing.assert_close(gamma, torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64), rtol=1e-6, atol=0)


def test_gamma_of_large_variances_is_one() -> None:
    torch.testing.assert_close(normalised_gamma(torch.tensor([1e7, 3e8])), torch.ones(2), rtol=1e-6, atol=0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_gamma_sums_to_the_number_of_channels_and_is_never_negative(variances: list[float]) -> None:
    gamma = normalised_gamma(torch.tensor(variances, dtype=torch.float64))
    assert float(gamma.sum()) == pytest.approx(len(variances), rel=1e-6)
    assert bool((gamma >= 0).all())


@given(st.integers(2, 6), st.integers(0, 1000))
def test_variance_from_sums_is_numpys(clients: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.1, 0.01, (clients, 4))
    ours = shared_variance(torch.tensor(float(clients)), torch.tensor(values.sum(0)), torch.tensor((values**2).sum(0)))
    np.testing.assert_allclose(ours.numpy(), values.var(0), rtol=1e-8)


def test_moments_are_population_moments_unless_told_otherwise() -> None:
    mean, deviation = channel_moments(SQUARES)
    torch.testing.assert_close(mean.flatten(), torch.tensor([2.0, 6.0]))
    torch.testing.assert_close(deviation.flatten(), torch.tensor([1.41421, 2.0]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        channel_moments(SQUARES, unbiased=True)[1].flatten(), torch.tensor([1.63299, 2.30940]), rtol=1e-5, atol=1e-5
    )
    nothing = torch.zeros(1)
    assert float(noise_scale(mean, nothing).square()) == pytest.approx(4.0, abs=1e-5)
    assert float(noise_scale(mean, nothing, unbiased=True).square()) == pytest.approx(8.0, abs=1e-5)
    assert float(noise_scale(deviation, nothing).square()) == pytest.approx(0.0857864, abs=1e-5)


@pytest.mark.parametrize("shape", [(3, 5, 4, 2), (3, 5, 7), (3, 5)])
def test_moments_of_any_shape_are_numpys(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = x.numpy().reshape(*shape[:2], -1)
    mean, deviation = channel_moments(x)
    np.testing.assert_allclose(mean.numpy(), rows.mean(2))
    np.testing.assert_allclose(deviation.numpy(), np.sqrt(rows.var(2) + 1e-6))


def test_tokens_have_their_channels_last() -> None:
    x = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    tokens, mean, deviation = feature_augmentation(x, noise, ones(5), ones(5), channel=-1)
    maps, map_mean, map_deviation = feature_augmentation(x.transpose(1, 2), noise, ones(5), ones(5))
    torch.testing.assert_close(tokens, maps.transpose(1, 2))
    torch.testing.assert_close(mean, map_mean)
    torch.testing.assert_close(deviation, map_deviation)


@pytest.mark.parametrize("unbiased", [False, True])
def test_augmentation_is_equations_8_and_9(unbiased: bool) -> None:
    rng = np.random.default_rng(4)
    x, noise, gammas = rng.normal(1, 2, (6, 3, 4, 5)), rng.normal(size=(2, 6, 3)), rng.uniform(0, 2, (2, 3))
    freedom = int(unbiased)
    mu, sigma = x.mean((2, 3)), np.sqrt(x.var((2, 3), ddof=freedom) + 1e-6)
    wide_mu = np.sqrt((gammas[0] + 1) * (mu.var(0, ddof=freedom) + 1e-6))
    wide_sigma = np.sqrt((gammas[1] + 1) * (sigma.var(0, ddof=freedom) + 1e-6))
    new_mu, new_sigma = mu + noise[0] * wide_mu, sigma + noise[1] * wide_sigma

    def whole(values: np.ndarray) -> np.ndarray:
        return values[:, :, None, None]

    expected = whole(new_sigma) * (x - whole(mu)) / whole(sigma) + whole(new_mu)
    ours, _, _ = feature_augmentation(
        torch.tensor(x), torch.tensor(noise), torch.tensor(gammas[0]), torch.tensor(gammas[1]), unbiased=unbiased
    )
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize(("fixed", "expected"), [(0.0, math.sqrt(8)), (0.5, 0.5)])
def test_noise_is_scaled_by_a_deviation_not_a_variance(fixed: float, expected: float) -> None:
    """Batch variance 4 and gamma 1 give variance 8; FedFA-R's 0.5 is a standard deviation."""
    draws = torch.randn(2, 2, 100_000, generator=torch.Generator().manual_seed(0))
    x = SQUARES.expand(2, 100_000, 2, 2)
    after, mean, _ = feature_augmentation(x, draws, ones(100_000), ones(100_000), fixed=fixed)
    assert float((after.mean((2, 3)) - mean).std()) == pytest.approx(expected, rel=0.01)


def test_no_noise_changes_neither_features_nor_gradients() -> None:
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outer = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    after, _, _ = feature_augmentation(x, torch.zeros(2, 4, 3), ones(3), ones(3))
    assert torch.equal(after, x)
    assert torch.equal(torch.autograd.grad((after * outer).sum(), x)[0], outer)


def test_gradients_pass_through_the_statistics_unless_detached() -> None:
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    noise = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outer = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def run(point: Tensor, detach: bool) -> Tensor:
        return (feature_augmentation(point, noise, ones(3), ones(3), detach=detach)[0] * outer).sum()

    assert torch.autograd.gradcheck(lambda point: run(point, detach=False), (x,))
    through, around = (torch.autograd.grad(run(x, detach=flag), x)[0] for flag in (False, True))
    assert not torch.allclose(through, around)


@pytest.mark.parametrize(
    "x",
    [torch.rand(1, 3, 4, 4), torch.rand(5, 3, 1, 1), torch.rand(5, 3), torch.zeros(5, 3, 4, 4), torch.ones(5, 3)],
    ids=["one row", "one position", "vector", "dead channels", "constant vector"],
)
@pytest.mark.parametrize("unbiased", [False, True])
def test_degenerate_features_stay_finite_in_value_and_gradient(x: Tensor, unbiased: bool) -> None:
    x = x.clone().requires_grad_(True)
    noise = torch.randn(2, len(x), 3, generator=torch.Generator().manual_seed(0))
    after, mean, deviation = feature_augmentation(x, noise, ones(3), ones(3), unbiased=unbiased)
    gradient = torch.autograd.grad(after.square().sum() + mean.sum() + deviation.sum(), x)[0]
    assert bool(torch.isfinite(after).all())
    assert bool(torch.isfinite(gradient).all())


def test_one_row_is_left_alone() -> None:
    x = torch.rand(1, 3, 4, 4)
    assert torch.equal(feature_augmentation(x, torch.ones(2, 1, 3), ones(3), ones(3))[0], x)


def test_vectors_get_noise_on_their_values_alone() -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1))
    after, _, _ = feature_augmentation(x, noise, ones(3), ones(3))
    torch.testing.assert_close(after, x + noise[0] * (2 * (x.var(0, correction=0) + 1e-6)).sqrt())


def test_a_clamped_deviation_never_turns_features_over() -> None:
    noise = torch.stack([torch.zeros(2, 1), torch.full((2, 1), -1e4)])
    after, mean, _ = feature_augmentation(SQUARES, noise, ones(1), ones(1), clamp=True)
    torch.testing.assert_close(after, mean.reshape(2, 1, 1, 1).expand_as(SQUARES), atol=1e-4, rtol=0)


def test_half_precision_features_keep_their_type_and_a_sound_deviation() -> None:
    x = torch.zeros(4, 3, 2, 2, dtype=torch.float16)
    after, _, deviation = feature_augmentation(x, torch.ones(2, 4, 3), ones(3), ones(3))
    assert after.dtype == torch.float16
    torch.testing.assert_close(deviation, torch.full((4, 3), 1e-3))


def test_augmentation_of_stacked_clients_is_that_of_each() -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(3, 4, 5, 2, 2, generator=generator), torch.randn(3, 2, 4, 5, generator=generator)
    gamma = torch.rand(3, 5, generator=generator)
    stacked = torch.vmap(lambda *each: feature_augmentation(*each)[0])(x, noise, gamma, gamma)
    for k in range(3):
        torch.testing.assert_close(stacked[k], feature_augmentation(x[k], noise[k], gamma[k], gamma[k])[0])


def test_momentum_counts_the_batch_where_the_gate_is_open() -> None:
    mean, deviation = (value.mean(0) for value in channel_moments(SQUARES))
    on, off = torch.tensor(True), torch.tensor(False)
    assert float(moving_average(torch.zeros(1), mean, 0.99, on)) == pytest.approx(0.04)
    assert float(moving_average(torch.ones(1), deviation, 0.99, on)) == pytest.approx(1.00707, abs=1e-5)
    assert torch.equal(moving_average(torch.full((1,), 0.3), mean, 0.99, off), torch.full((1,), 0.3))


def test_starting_from_zero_turns_statistics_into_step_counters() -> None:
    """Two clients with the same true mean 1, one and eight updates: the variance between them is not 0."""
    values = []
    for updates in (1, 8):
        value = torch.zeros(1, dtype=torch.float64)
        for _ in range(updates):
            value = moving_average(value, torch.ones(1), 0.99, torch.tensor(True))
        values.append(value)
    assert [float(value) for value in values] == pytest.approx([0.01, 0.0772553], rel=1e-6)
    stacked = torch.stack(values)
    variance = shared_variance(torch.tensor(2.0), stacked.sum(0), stacked.square().sum(0))
    assert float(variance) == pytest.approx(1.1308e-3, rel=1e-4)


def test_partners_fit_passes_of_other_sizes() -> None:
    order = torch.tensor([2, 0, 1])
    assert partners(order, 3) is order
    assert partners(order, 2).tolist() == [0, 0]
    assert sorted(set(partners(order, 6).tolist())) == [0, 1, 2]


PLACES = {
    "alexnet": ((3, 64, 64), ("conv1", "conv2", "conv3", "conv4", "conv5"), (64, 192, 384, 256, 256)),
    "lenet5": ((1, 28, 28), ("conv1", "conv2"), (6, 16)),
    "resnet18": ((3, 32, 32), ("stem", "layer1", "layer2", "layer3", "layer4"), (64, 64, 128, 256, 512)),
    "unet": ((3, 32, 32), ("enc1", "enc2", "enc3", "enc4", "bottleneck"), (32, 64, 128, 256, 512)),
    "digits-cnn": ((1, 8, 8), ("conv1", "conv2"), (16, 32)),
    "mlp": ((9,), (), ()),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_those_of_the_paper(name: str) -> None:
    shape, stages, channels = PLACES[name]
    net = networks.build(name, shape, 10, seed=0)
    assert spatial_stages(net, shape) == stages
    assert tuple(stage_outputs(net, shape)[stage].shape[0] for stage in stages) == channels


def test_a_last_stage_with_positions_is_not_a_place() -> None:
    net = Network("dense prediction", {"body": nn.Conv2d(1, 4, 1), "head": nn.Conv2d(4, 2, 1)})
    assert spatial_stages(net, (1, 5, 5)) == ("body",)


def test_the_feature_vector_is_what_the_classifier_takes() -> None:
    assert vector_width(networks.build("digits-cnn", (1, 8, 8), 10, 0), (1, 8, 8), "flair") == 64
    with pytest.raises(ConfigError, match="flair"):
        vector_width(networks.build("unet", (1, 16, 16), 2, 0), (1, 16, 16), "flair")
