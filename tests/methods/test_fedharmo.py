"""FedHarmo: amplitudes against numpy's transform, and the perturbed gradient against two hand-made passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewfed import tree
from fewfed.methods.fedharmo import FedHarmo, with_amplitude
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import batch_of, context, digits_federation, digits_network, gradients, job_of, run, same, trainable


def test_window_zero_replaces_the_mean_brightness_alone() -> None:
    x = torch.rand(3, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    amplitude = torch.full((2, 6, 4), 12.0)
    after = with_amplitude(x, amplitude, 0.0)
    torch.testing.assert_close(after, x - x.mean((2, 3), keepdim=True) + 12.0 / 24)


@pytest.mark.parametrize("window", [0.2, 0.4])
def test_low_amplitudes_are_the_given_ones_and_everything_else_stays(window: float) -> None:
    rng = np.random.default_rng(0)
    x, other = rng.random((3, 1, 8, 6)), rng.random((1, 8, 6))
    amplitude = np.abs(np.fft.fft2(other))
    after = np.fft.fft2(with_amplitude(torch.tensor(x), torch.tensor(amplitude), window).numpy())
    before, reach = np.fft.fft2(x), int(window * 6)
    rows, columns = (np.minimum(np.arange(n), n - np.arange(n)) <= reach for n in (8, 6))
    low = np.broadcast_to(rows[:, None] & columns[None], before.shape)
    np.testing.assert_allclose(np.abs(after)[low], np.broadcast_to(amplitude, before.shape)[low], rtol=1e-8)
    np.testing.assert_allclose(np.angle(after / before), 0, atol=1e-6)
    np.testing.assert_allclose(after[~low], before[~low], atol=1e-10)


def test_an_input_with_the_shared_amplitude_is_left_as_it_was() -> None:
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(with_amplitude(x, torch.fft.fft2(x)[0].abs(), 0.5), x)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_a_client_uploads_the_running_average_of_its_amplitudes(momentum: float) -> None:
    method, data = FedHarmo(momentum=momentum), digits_federation().examples(0)
    setup = method.phases(Clock(0, 3, 1))[0]
    ours = setup.does.end({}, context(digits_network(), data, {}, phase=setup)).upload["amplitude"].numpy()
    each = np.abs(np.fft.fft2(data.x.double().numpy()))
    average = each[0]
    for row in each[1:]:
        average = (1 - momentum) * average + momentum * row
    np.testing.assert_allclose(ours, average if momentum else each.mean(0), rtol=1e-4, atol=1e-4)


def test_the_gradient_is_taken_at_the_perturbed_weights() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    method, ctx, batch = FedHarmo(alpha=0.2, normalise=False), context(net, data), batch_of(data)
    points: list[Tree] = []

    def differentiate(point: Tree) -> tuple[Tree, Tree]:
        points.append(tree.clone(point))
        terms = method.loss(point, ctx, batch)
        return gradients(terms["task"], point), terms

    work = trainable(net.model())
    direction, _ = method.gradient(differentiate, work, ctx, batch)
    assert float(tree.sq_distance(points[0]["params"], points[1]["params"]).sqrt()) == pytest.approx(0.2, rel=1e-4)
    there = trainable(points[1])
    expected = gradients(ctx.task.loss(net.apply(there, data.x), data.y), there)
    for name, value in expected.items():
        torch.testing.assert_close(direction[name], value, rtol=1e-4, atol=1e-6)


def test_amplitudes_are_averaged_once_over_all_clients() -> None:
    ran = run(job_of("fedharmo", digits_federation(4)), rounds=2, cohort=2)
    assert [[result.phase.name for result in view.phases] for view in ran.views] == [["setup", "train"], ["train"]]
    assert ran.views[0].phases[0].combined.clients == (0, 1, 2, 3)
    sent = [upload for view in ran.views for result in view.phases for upload in result.phase.uploads.values()]
    assert not any(upload.combine.seen_raw for upload in sent)


def test_with_both_parts_off_it_is_fedavg_bit_for_bit() -> None:
    plain, quiet = (run(job_of(m), rounds=2).server for m in ("fedavg", FedHarmo(alpha=0.0, normalise=False)))
    assert same(plain, quiet)
