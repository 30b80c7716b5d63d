"""FedHarmo: amplitudes against numpy's transform, and the perturbed gradient against two hand-made passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fewfed import tree
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkersOptions
from fewfed.methods.fedharmo import FedHarmo, with_amplitude
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import (
    batch_of,
    context,
    digits_federation,
    digits_network,
    gradients,
    in_double,
    job_of,
    run,
    same,
    trainable,
)


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


def test_every_clients_amplitudes_count_alike_however_many_rows_it_has() -> None:
    federation = digits_federation(3, [2, 9, 30])
    ran = run(job_of(FedHarmo(momentum=0.0), federation), rounds=1, cohort=3)
    own = [np.abs(np.fft.fft2(federation.examples(client).x.double().numpy())).mean(0) for client in range(3)]
    np.testing.assert_allclose(ran.server["amplitude"].numpy(), np.mean(own, 0), rtol=1e-5, atol=1e-5)


def with_numpys_amplitude(x: np.ndarray, amplitude: np.ndarray) -> np.ndarray:
    """As the authors' layer: the middle of the shifted spectrum has the shared amplitude, phases stay."""
    spectrum = np.fft.fft2(x)
    size, phase = np.fft.fftshift(np.abs(spectrum), axes=(-2, -1)), np.angle(spectrum)
    middle = size.shape[-2] // 2, size.shape[-1] // 2
    size[..., middle[0], middle[1]] = np.fft.fftshift(amplitude, axes=(-2, -1))[..., middle[0], middle[1]]
    return np.real(np.fft.ifft2(np.fft.ifftshift(size, axes=(-2, -1)) * np.exp(1j * phase)))


@pytest.mark.parametrize("kind", ["sequential", "workers", "device"])
def test_the_model_is_scored_on_inputs_with_the_shared_amplitudes(kind: str) -> None:
    job = in_double(job_of("fedharmo", digits_federation(4)))
    made: dict[str, Callable[[], Executor]] = {
        "sequential": lambda: Sequential(job),
        "workers": lambda: Workers(job, options=WorkersOptions(2, 1, "plain")),
        "device": lambda: Device(job, options=DeviceOptions("stacked", stack=2, device="cpu")),
    }
    executor = made[kind]()
    try:
        ran = run(job, rounds=2, cohort=3, executor=executor, observers=[Evaluate()])
    finally:
        executor.close()
    test, model = job.federation.test, ran.server["model"]
    seen = torch.tensor(with_numpys_amplitude(test.x.numpy(), ran.server["amplitude"].numpy()))
    losses = [
        float(torch.nn.functional.cross_entropy(job.net.apply(model, x, train=False), test.y)) for x in (seen, test.x)
    ]
    assert ran.metrics[-1]["loss"] == pytest.approx(losses[0], rel=1e-9)
    assert abs(losses[0] - losses[1]) > 1e-5, "or nothing was tested"


def test_a_wrapper_presents_what_it_wraps_presents() -> None:
    ran = run(job_of("ccvr(fedharmo)", digits_federation(4, 20)), rounds=1, cohort=3)
    method = choose("ccvr(fedharmo)").method
    model, amplitude = method.predictor(ran.server, {}), ran.server["inner"]["amplitude"]
    x = digits_federation().test.x[:3]
    torch.testing.assert_close(method.presented(model, x), with_amplitude(x, amplitude, 0.0))
    net, features = digits_network(), ran.views[-1].phases[-2].combined.values["features"]
    inputs = torch.cat([digits_federation(4, 20).examples(client).x for client in range(4)])
    everybody = net.apply(
        ran.server["inner"]["model"], with_amplitude(inputs, amplitude, 0.0), stop=net.penultimate, train=False
    )
    assert float((features.unsqueeze(1) - everybody).abs().amax(2).min(1).values.max()) < 1e-5


def test_with_both_parts_off_it_is_fedavg_bit_for_bit() -> None:
    plain, quiet = (run(job_of(m), rounds=2).server for m in ("fedavg", FedHarmo(alpha=0.0, normalise=False)))
    assert same(plain, quiet)


def test_the_released_preset_averages_models_as_its_source_does() -> None:
    """`client_weights` there is 1 / clients for everybody, whatever they hold: two clients of 10 and 30 rows."""
    federation = digits_federation(2, [10, 30])
    ended = run(job_of("fedharmo:released", federation), rounds=1, cohort=2)
    assert ended.views[0].phases[-1].combined.weights == (1.0, 1.0)
    assert choose("fedharmo:released").training["reset"] == "never", "optimizers are made once, before the first round"
