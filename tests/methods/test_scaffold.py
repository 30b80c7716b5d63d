"""SCAFFOLD: its steps in closed form, what clients remember, and the optimum it promises."""

from __future__ import annotations

import pytest
import torch
from quadratics import UNEQUAL, UNEQUAL_FEDAVG, UNEQUAL_OPTIMUM, parabolas, weight

from fewfed import tree
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.loop import run_rounds
from fewfed.method import Method
from fewfed.methods.scaffold import Scaffold
from support import (
    batch_of,
    context,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    run,
    states,
    total,
    trainable,
)


def test_it_reaches_the_optimum_where_fedavg_does_not() -> None:
    settled = run(parabolas("fedavg", **UNEQUAL), rounds=100, cohort=2)
    corrected = run(parabolas("scaffold", **UNEQUAL), rounds=200, cohort=2)
    assert weight(settled.server["model"]) == pytest.approx(UNEQUAL_FEDAVG, abs=1e-9)
    assert weight(corrected.server["model"]) == pytest.approx(UNEQUAL_OPTIMUM, abs=1e-6)


def test_it_reaches_the_optimum_with_one_of_three_clients_absent_each_round() -> None:
    job = parabolas("scaffold", (0.0, 1.0, 4.0), curvatures=(1.0, 5.0, 2.0), lr=0.05, epochs=3)
    assert weight(run(job, rounds=400, cohort=2).server["model"]) == pytest.approx(13 / 8, abs=1e-6)


def test_the_local_gradient_is_corrected_by_both_controls() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    generator = torch.Generator().manual_seed(1)
    model = net.model()
    server, client = (
        tree.map(lambda leaf: torch.randn(leaf.shape, generator=generator), model["params"]) for _ in range(2)
    )
    ctx = context(net, data, {"model": model, "control": server}, state={"control": client})
    found = {}
    for name, method in (("plain", Method()), ("scaffold", Scaffold())):
        work = trainable(model)
        found[name] = gradients(total(method, method.loss(work, ctx, batch_of(data))), work)
    for name, plain in found["plain"].items():
        torch.testing.assert_close(found["scaffold"][name], plain - client[name] + server[name])


def test_controls_are_the_mean_of_a_clients_own_gradients() -> None:
    """From w = 0 and zero controls, K steps on (w − a)²/2 visit a·(1 − (1 − η)^k): their gradients average to c_k+."""
    targets, steps, lr = (0.0, 2.0, 3.0), 4, 0.3
    job = parabolas("scaffold", targets, sizes=(1, 5, 2), lr=lr, epochs=steps)
    done = run(job, rounds=1, cohort=3)
    own = [-a * sum((1 - lr) ** k for k in range(steps)) / steps for a in targets]
    kept = states(done.views[0].executor, 3)
    for client, expected in enumerate(own):
        assert float(kept[client]["control"]["head.weight"]) == pytest.approx(expected)
    assert float(done.server["control"]["head.weight"]) == pytest.approx(sum(own) / 3)
    uniform = sum(a * (1 - (1 - lr) ** steps) for a in targets) / 3
    assert weight(done.server["model"]) == pytest.approx(uniform)


def test_the_servers_control_divides_by_all_clients_not_by_the_cohort() -> None:
    job = parabolas("scaffold", (1.0, 1.0, 1.0, 1.0), lr=0.5, epochs=1)
    assert float(run(job, rounds=1, cohort=2).server["control"]["head.weight"]) == pytest.approx(-2 / 4)


def test_the_servers_step_scales_the_movement_of_parameters() -> None:
    job = parabolas(Scaffold(server_lr=0.5), (1.0, 1.0), lr=0.5, epochs=1)
    assert weight(run(job, rounds=1, cohort=2).server["model"]) == pytest.approx(0.25)


def test_an_absent_client_keeps_its_control() -> None:
    job = parabolas("scaffold", (0.0, 1.0, 2.0), lr=0.1)
    homes, server = SimulatedHomes(job), None
    before: dict[int, torch.Tensor] = {}
    for number in range(6):
        executor = Sequential(job, homes)
        server = run_rounds(job, executor, [], rounds=number + 1, cohort=1, server=server, start=number)
        (present,) = job.plan.cohort(number, 3, 1)
        held = {client: state["control"]["head.weight"] for client, state in states(homes, 3).items()}
        for client, value in before.items():
            assert torch.equal(held[client], value) == (client != present)
        before = held
    assert set(before) == {job.plan.cohort(number, 3, 1)[0] for number in range(6)}


def test_short_batches_count_as_steps() -> None:
    """11 rows in batches of 8 with the `partial` rule are two steps an epoch, and the control divides by them."""
    job = job_of("scaffold", digits_federation(1, 11), training={"batch_rule": "partial", "epochs": 1})
    done = run(job, rounds=1, cohort=1)
    assert done.metrics[0]["steps"] == 2
    state = states(done.views[0].executor, 1)[0]
    start, end = job.net.model()["params"], done.server["model"]["params"]
    for name, control in state["control"].items():
        torch.testing.assert_close(control, (start[name] - end[name]) / (2 * job.training.lr), rtol=1e-4, atol=1e-6)


def test_controls_do_not_touch_batch_norm_statistics() -> None:
    done = run(job_of("scaffold"), rounds=2)
    assert set(done.server["control"]) == set(done.server["model"]["params"])
    assert not set(done.server["control"]) & set(done.server["model"]["buffers"])
