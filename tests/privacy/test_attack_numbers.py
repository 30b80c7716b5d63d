"""The arithmetic of attacks, against closed forms, brute force and independent rewrites."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.network import Network
from fewfed.privacy import pictures
from fewfed.privacy.attacks import decoders, entropy, intervals, marker, ridge, similarity
from fewfed.privacy.attacks.context import classifier
from fewfed.privacy.attacks.matching import Directions, Likeness, best_way
from fewfed.privacy.attacks.optimised import Prior
from fewfed.privacy.attacks.substitute import kernel_distance
from fewfed.privacy.fitting import Rebuilding, answers, descend, fit
from fewfed.tasks.classification import Classification


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Fitting


def test_a_fitted_linear_layer_is_the_least_squares_solution() -> None:
    x = random(200, 5)
    y = x @ random(5, 3, seed=1) + 0.5 + 0.1 * random(200, 3, seed=2)
    net = Network("line", {"whole": nn.Linear(5, 3)})
    model = fit(net, Examples(x, y), Rebuilding(), epochs=120, batch=50, lr=0.02, seed=3)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(200, 1)], 1), y).solution
    assert torch.allclose(model["params"]["whole.weight"].T, best[:5], atol=0.02)
    assert torch.allclose(model["params"]["whole.bias"], best[5], atol=0.02)


def test_of_several_models_the_best_on_held_out_rows_is_returned() -> None:
    x, held = random(30, 40), random(200, 40, seed=1)
    truth = torch.zeros(40, 1)
    truth[0] = 1.0
    net = Network("line", {"whole": nn.Linear(40, 1)})
    rows = Examples(x, x @ truth + 2 * random(30, 1, seed=2))
    other = Examples(held, held @ truth)
    last = fit(net, rows, Rebuilding(), epochs=400, batch=30, lr=0.05)
    best = fit(net, rows, Rebuilding(), epochs=400, batch=30, lr=0.05, held=other)

    def error(model: dict[str, object]) -> float:
        return float((answers(net, model, held) - other.y).square().mean())

    assert error(best) < 0.8 * error(last)
    assert error(best) <= error(net.model())


def test_a_fit_is_the_same_each_time_and_leaves_the_network_as_it_was() -> None:
    net = decoders.network("d", lambda: nn.Linear(4, 2), seed=5)
    before = net.model()
    rows = Examples(random(20, 4), random(20, 2, seed=1))
    once, twice = (fit(net, rows, Rebuilding(), epochs=3, batch=8, lr=0.01, seed=1) for _ in range(2))
    assert torch.equal(once["params"]["whole.weight"], twice["params"]["whole.weight"])
    assert torch.equal(net.model()["params"]["whole.weight"], before["params"]["whole.weight"])
    assert not torch.equal(once["params"]["whole.weight"], before["params"]["whole.weight"])


def test_classifiers_are_fitted_too() -> None:
    x = random(100, 3)
    rows = Examples(x, (x[:, 0] > 0).long())
    net = Network("c", {"whole": nn.Linear(3, 2)})
    model = fit(net, rows, Classification(2), epochs=60, batch=20, lr=0.05)
    assert float((answers(net, model, x).argmax(1) == rows.y).double().mean()) > 0.95


def test_descent_ends_at_the_minimum() -> None:
    wanted = random(3, 4)
    found = descend(lambda point: (point - wanted).square().sum(), torch.zeros(3, 4), steps=300, lr=0.1)
    assert torch.allclose(found, wanted, atol=1e-3)


# Ridge


@pytest.mark.parametrize(("rows", "columns"), [(50, 7), (20, 60)])
def test_ridge_is_the_solution_of_its_normal_equations(rows: int, columns: int) -> None:
    z, x = random(rows, columns).double() * 3 + 1, random(rows, 4, seed=1).double()
    found = ridge.fitted(z, x, 0.3)
    a = ((z - z.mean(0)) / z.std(0, correction=0)).numpy()
    smaller = a @ a.T if rows <= columns else a.T @ a
    penalty = 0.3 * np.linalg.eigvalsh(smaller).mean()
    weights = np.linalg.solve(a.T @ a + penalty * np.eye(columns), a.T @ (x - x.mean(0)).numpy())
    assert np.allclose(found.weights.numpy(), weights, atol=1e-8)
    assert torch.allclose(found(z).mean(0), x.mean(0))


def test_columns_that_never_change_say_nothing() -> None:
    z = torch.cat([random(30, 3), torch.full((30, 2), 7.0)], 1)
    found = ridge.fitted(z, random(30, 2, seed=1), 0.1)
    moved = z.clone()
    moved[:, 3:] += 100
    assert torch.equal(found(z), found(moved))
    assert bool(torch.isfinite(found(z)).all())


def test_the_penalty_is_small_where_nothing_disturbs_and_large_where_all_is_noise() -> None:
    z, other = random(60, 20), random(60, 20, seed=1)
    weights = random(20, 3, seed=2)
    clean = ridge.chosen(z, z @ weights, other, other @ weights)
    noisy = ridge.chosen(z, random(60, 3, seed=3), other, random(60, 3, seed=4))
    assert clean.penalty == min(ridge.PENALTIES)
    assert noisy.penalty >= 10


def test_what_is_cross_fitted_has_not_seen_its_own_row() -> None:
    z, x = random(12, 3), random(12, 2, seed=1)
    before = ridge.cross_fitted(z, x, 0.1, seed=0)
    for row in range(12):
        changed = x.clone()
        changed[row] += 100
        assert torch.allclose(ridge.cross_fitted(z, changed, 0.1, seed=0)[row], before[row], atol=1e-4)


def test_the_view_that_knows_is_chosen() -> None:
    target = random(80, 1)
    views = [random(80, 5, seed=1), torch.cat([target, random(80, 2, seed=2)], 1), random(80, 5, seed=3)]
    assert ridge.best_view(views, target, seed=0)[0] == 1


# Similarity


def _ssim_by_loops(x: np.ndarray, y: np.ndarray, peak: float, window: int) -> float:
    found = []
    for channel in range(len(x)):
        for top in range(x.shape[1] - window + 1):
            for left in range(x.shape[2] - window + 1):
                a, b = (
                    each[channel, top : top + window, left : left + window].flatten().astype(np.float64)
                    for each in (x, y)
                )
                c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
                both = np.cov(a, b)
                above = (2 * a.mean() * b.mean() + c1) * (2 * both[0, 1] + c2)
                found.append(above / ((a.mean() ** 2 + b.mean() ** 2 + c1) * (both[0, 0] + both[1, 1] + c2)))
    return float(np.mean(found))


@pytest.mark.parametrize(("shape", "window"), [((3, 12, 9), 7), ((1, 8, 5), 5)])
def test_ssim_is_that_of_every_window_by_itself(shape: tuple[int, int, int], window: int) -> None:
    x, y = random(2, *shape), random(2, *shape, seed=1)
    found = similarity.ssim(x, y, 2.5)
    for row in range(2):
        assert float(found[row]) == pytest.approx(_ssim_by_loops(x[row].numpy(), y[row].numpy(), 2.5, window))
    assert torch.allclose(similarity.ssim(x, x, 2.5), torch.ones(2).double())


def test_psnr_follows_from_the_error() -> None:
    found = similarity.psnr(torch.tensor([0.01, 1.0, 0.0]), 2.0)
    assert found.tolist() == pytest.approx([10 * math.log10(400), 10 * math.log10(4), 100.0])


def test_re_identification_is_the_nearest_row_and_twins_count() -> None:
    candidates = random(30, 6)
    candidates[4] = candidates[9]
    origins = torch.tensor([[9, -1], [2, 3], [5, 6]])
    rebuilt = torch.stack([candidates[4], candidates[3] + 0.01, candidates[20]])
    assert similarity.re_identified(rebuilt, candidates, origins).tolist() == [True, True, False]
    guesses = random(40, 6, seed=1)
    sources = torch.randint(30, (40, 2), generator=torch.Generator().manual_seed(2))
    nearest = [int((candidates - guess).square().sum(1).argmin()) for guess in guesses]
    expected = [near in row or (near == 4 and 9 in row) for near, row in zip(nearest, sources.tolist(), strict=True)]
    assert similarity.re_identified(guesses, candidates, sources).tolist() == expected
    assert similarity.chance_of(torch.tensor([[1, 1], [2, 3], [4, -1]]), 10) == pytest.approx(4 / 3 / 10)


def test_likelihood_undoes_what_draws_reconstructions_to_the_mean() -> None:
    rows = random(300, 12) * torch.linspace(0.2, 3, 12) + 5
    own, candidates = rows[:150], rows[150:]
    origins = torch.arange(150)[:, None]

    def drawn(x: Tensor, seed: int) -> Tensor:
        noise = random(*x.shape, seed=seed) * torch.linspace(0.2, 3, 12) * 0.1
        return 5 + torch.linspace(1, 0.05, 12) * (x - 5 + noise)

    likeness = Likeness.of(drawn(own, 7), origins, Directions.of(own).first(12))
    rebuilt = drawn(candidates, 8)
    by_distance = similarity.re_identified(rebuilt, candidates, origins).double().mean()
    assert by_distance < 0.3
    assert likeness.re_identified(rebuilt, candidates, origins).double().mean() > 0.9
    assert best_way(drawn(own, 7), origins, own)(rebuilt, candidates, origins).double().mean() > 0.9
    assert best_way(own, origins, own) is similarity.re_identified, "where nothing is lost distance is enough"


# The bound


def test_the_bound_of_normal_errors_is_the_geometric_mean_of_their_variances() -> None:
    deviations = torch.tensor([0.1, 0.5, 1.0, 2.0]).double()
    mixing = torch.linalg.qr(random(4, 4).double())[0]
    errors = (random(4000, 4, seed=1).double() * deviations) @ mixing
    found = entropy.bound(errors)
    assert found is not None
    exact = float(deviations.square().log().mean().exp())
    assert found.value == pytest.approx(exact, rel=0.05)
    assert found.low < exact < found.high
    assert found.value < float(errors.square().mean())


def test_columns_that_are_known_exactly_lower_the_bound_in_proportion() -> None:
    errors = random(2000, 3).double()
    whole = entropy.bound(errors)
    with_known = entropy.bound(torch.cat([errors, torch.zeros(2000, 3)], 1))
    assert whole is not None
    assert with_known is not None
    assert with_known.value == pytest.approx(whole.value / 2)
    assert entropy.bound(errors[:5]) is None
    assert entropy.bound(torch.zeros(100, 3)) is None


def test_the_bound_of_few_errors_in_many_columns_is_not_above_what_they_are() -> None:
    errors = random(40, 500).double() * torch.linspace(0.01, 1, 500)
    found = entropy.bound(errors)
    assert found is not None
    assert found.value <= 1.1 * float(errors.square().mean())


def test_the_interval_of_a_ratio_covers_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(150):
        below = random(80, seed=seed).square() + 0.5
        above = below * (0.3 + 0.1 * random(80, seed=1000 + seed))
        low, high = intervals.of_ratio(above, below, times=400)
        covered += low <= 0.3 <= high
    assert 0.88 <= covered / 150 <= 0.99


# Networks, priors, pictures


@pytest.mark.parametrize("sent", [(16, 8, 8), (32, 4, 4), (5, 3, 2), (20,), (7, 1, 1)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 11, 6), (1, 128, 3), (9,)])
def test_networks_fit_any_pair_of_shapes(sent: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = random(2, math.prod(sent))
    assert decoders.minimal(sent, shape)(x).shape == (2, math.prod(shape))
    both = torch.cat([x, random(2, math.prod(shape))], 1)
    assert torch.equal(decoders.refining(sent, shape)(both), torch.zeros(2, math.prod(shape)))
    made = decoders.encoder(shape, sent, True)(random(2, math.prod(shape)))
    assert made.shape == (2, math.prod(sent))
    assert bool((made >= 0).all())
    assert classifier(sent)(x).shape == (2, 2)


def test_the_published_decoder_and_classifier_have_the_published_parameters() -> None:
    decoder = decoders.minimal((16, 32, 32), (3, 32, 32))
    assert sum(each.numel() for each in decoder.parameters()) == 19139
    for shape, count in (((16, 32, 32), 14154), ((3, 32, 32), 13738)):
        assert sum(each.numel() for each in classifier(shape).parameters()) == count
    x, other = random(1, 16384), random(1, 16384, seed=1)
    zero = decoder(torch.zeros(1, 16384))
    assert torch.allclose(decoder(x + other) - zero, decoder(x) + decoder(other) - 2 * zero, atol=1e-4), "it is linear"


def test_coordinates_of_the_prior_lead_back_to_the_inputs() -> None:
    rows = random(30, 12) @ random(12, 12, seed=1)
    prior = Prior.of(rows)
    assert torch.allclose(prior.inputs(prior.coordinates(rows)), rows, atol=1e-3)
    drawn = prior.inputs(random(20000, len(prior.axes) + 12, seed=2))
    assert torch.allclose(drawn.square().mean(), rows.square().sum() / 29 / 12, rtol=0.05)


def test_the_kernel_distance_is_none_for_the_same_and_grows_with_a_shift() -> None:
    a, b = random(100, 5), random(100, 5, seed=1)
    assert float(kernel_distance(a, a)) == pytest.approx(0, abs=1e-5)
    assert float(kernel_distance(a, b)) < float(kernel_distance(a, b + 1)) < float(kernel_distance(a, b + 3))


def test_the_mark_is_the_published_square_and_smaller_on_smaller_pictures() -> None:
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    changed = (marker.marked(x) != x).nonzero()
    assert set(changed[:, 1].tolist()) == {0}
    assert (changed[:, 2].min(), changed[:, 2].max(), changed[:, 3].min(), changed[:, 3].max()) == (2, 6, 2, 6)
    assert float(marker.marked(x)[:, 0, 2:7, 2:7].min()) == float(x[:, 0].max())
    small = torch.rand(2, 1, 8, 8)
    assert 2 <= int((marker.marked(small) != small)[0].sum()) <= 4
    assert marker.why_unmarked((30,))
    assert not marker.why_unmarked((1, 128, 3))


def test_a_picture_is_a_png_whose_pixels_are_the_values() -> None:
    rows = torch.rand(2, 3, 3, 40, 50, generator=torch.Generator().manual_seed(0))
    content = pictures.grid(rows, 0.0, 1.0)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, place = {}, 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (width, height, depth, colour) == (3 * 52 + 2, 2 * 42 + 2, 8, 2)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)[:, 1:]
    page = lines.reshape(height, width, 3)
    expected = (255 * rows[1, 2]).round().permute(1, 2, 0).numpy()
    assert np.array_equal(page[44:84, 106:156], expected)
    assert (page[0] == 255).all()
