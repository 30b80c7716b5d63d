"""FedBR: where pseudo-samples come from, and that the projector and the network pull in opposite directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.method import Context
from fewfed.methods.fedbr import STAGE, FedBR
from fewfed.methods.registry import choose
from fewfed.networks.projector import projector, projector_weights
from fewfed.phase import Clock, Cohort, Phase
from fewfed.plan import Random
from fewfed.tree import Tree
from support import batch_of, context, digits, digits_federation, digits_network, gradients, job_of, run, trainable

NET = digits_network()


def turn(method: FedBR, size: int = 6) -> tuple[Context, Tree, Examples, Tree]:
    """A client's context with pseudo-samples, its work tree, its rows and one step's draws."""
    train, _ = digits()
    data = train.rows(torch.arange(size))
    shared = {"model": digits_network(seed=9).model(), "pseudo": train.x[100:110]}
    ctx = context(NET, data, shared)
    work = trainable(method.begin(ctx))
    return ctx, work, data, method.draw(Random(0, "step"), ctx, size)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_every_term_agrees_with_the_equations() -> None:
    method = FedBR(mu=0.5, lam=0.8)
    ctx, work, data, draw = turn(method)
    terms = method.loss(work, ctx, batch_of(data, draw))
    mixed = (ctx.shared["pseudo"][draw["row"]] + data.x[draw["partner"]]) / 2
    head = projector(STAGE, 64, (256, 256, 512))
    with torch.no_grad():
        z, z_mixed = (NET.apply(work, x, stop=NET.penultimate) for x in (data.x, mixed))
        received = NET.apply(ctx.shared["model"], mixed, stop=NET.penultimate, train=False)
        a, p, n = (
            head.apply({"params": work["params"], "buffers": {}}, f).double().numpy() for f in (z_mixed, received, z)
        )
        log_p = torch.log_softmax(NET.apply(work, z_mixed, start=NET.penultimate), 1).double().numpy()
    closeness = np.exp(2 * cosine(a, p)), np.exp(2 * cosine(a, n))
    value = np.log(closeness[0] / (closeness[0] + closeness[1])).mean()
    target = (np.full((6, 10), 0.1) + np.eye(10)[data.y[draw["partner"]].numpy()]) / 2
    assert terms["projector"].item() == pytest.approx(value, abs=1e-5)
    assert terms["contrast"].item() == pytest.approx(-0.5 * value, abs=1e-5)
    assert terms["pseudo"].item() == pytest.approx(-0.8 * (target * log_p).sum(1).mean(), abs=1e-5)


def test_projector_and_network_each_feel_only_their_own_term() -> None:
    method = FedBR()
    ctx, work, data, draw = turn(method)
    terms = method.loss(work, ctx, batch_of(data, draw))
    for name, moves_projector in (("projector", True), ("contrast", False), ("task", False), ("pseudo", False)):
        sizes = {key: float(g.abs().max()) for key, g in gradients(terms[name], work).items()}
        projecting = max(size for key, size in sizes.items() if key.startswith(STAGE))
        network = max(size for key, size in sizes.items() if not key.startswith(STAGE))
        assert (projecting > 0, network > 0) == (moves_projector, not moves_projector)


def test_without_mixture_pseudo_samples_are_plain_and_labels_uniform() -> None:
    method = FedBR(mixture=False, lam=1.0)
    ctx, work, data, draw = turn(method)
    with torch.no_grad():
        output = NET.apply(work, ctx.shared["pseudo"][draw["row"]])
    expected = -torch.log_softmax(output, 1).mean()
    assert method.loss(work, ctx, batch_of(data, draw))["pseudo"].item() == pytest.approx(float(expected), abs=1e-5)


def test_pseudo_samples_are_means_of_random_clients_rows_known_to_all() -> None:
    federation = digits_federation(5, [20, 20, 20, 20, 4])
    job = job_of(FedBR(pseudo=12, group=10), federation)
    asked = job.method.server_init(job.setup)["asked"]
    assert int(asked.sum()) == 12
    ended = run(job, rounds=2, cohort=3)
    setup = ended.views[0].phases[0]
    assert setup.phase.cohort is Cohort.ALL
    assert setup.record.rows == {"pseudo": 12 - int(asked[4])}
    assert [view.phases[0].phase.name for view in ended.views] == ["setup", "train"]
    assert "labels" not in setup.phase.uploads
    spread = torch.stack([federation.examples(0).x[i] for i in range(20)]).var(0).sum()
    assert ended.server["pseudo"].var(0).sum() < spread


def test_every_client_with_too_few_rows_makes_it_fedavg() -> None:
    federation = digits_federation(4, 6)
    models = [run(job_of(method, federation), rounds=2).server["model"] for method in (FedBR(), "fedavg")]
    assert all(torch.equal(models[0]["params"][name], value) for name, value in models[1]["params"].items())


def test_the_projector_is_new_each_round_and_never_uploaded() -> None:
    method = FedBR()
    ctx, _, data, _ = turn(method)
    first, again = (method.begin(ctx)["params"] for _ in range(2))
    later = method.begin(context(NET, data, ctx.shared, round=1))["params"]
    own = [name for name in first if name.startswith(STAGE)]
    assert all(torch.equal(first[name], again[name]) for name in own)
    assert all(not torch.equal(first[name], later[name]) for name in own)
    assert set(method.end(method.begin(ctx), ctx).upload["model"]["params"]) == set(NET.model()["params"])


def test_the_ports_projector_has_the_published_size(flea_values: dict[str, dict[str, int]]) -> None:
    weights = projector_weights(STAGE, 1280, (256, 256, 512), Random(0))
    count = sum(value.numel() for value in weights.values())
    assert count == flea_values["parameter_counts"]["fedbr_discriminator_1280_256_256_512"]
    assert projector(STAGE, 1280, (256, 256, 512)).parameter_count() == count


def test_the_authors_projector_has_one_hidden_layer_of_twice_the_features() -> None:
    """d to 2d, 2d to 2d and 2d to d, each with a bias: 8d² + 5d numbers."""
    method = choose("fedbr:official").method
    assert isinstance(method, FedBR)
    _, work, _, _ = turn(method)
    own = {name: value for name, value in work["params"].items() if name.startswith(STAGE)}
    assert [tuple(value.shape) for name, value in own.items() if name.endswith("weight")] == [
        (128, 64),
        (128, 128),
        (64, 128),
    ]
    assert sum(value.numel() for value in own.values()) == 8 * 64**2 + 5 * 64


def test_setup_asks_for_nothing_but_means() -> None:
    phases = FedBR().phases(Clock(0, 5, 1))
    assert [phase.name for phase in phases] == ["setup", "train"]
    assert isinstance(phases[0], Phase)
    assert set(phases[0].uploads) == {"pseudo"}
