"""FedBN: what stays at a client, what the server never has, and how they are joined."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fewfed import networks, tree
from fewfed.engine.evaluation import Evaluate
from fewfed.errors import ConfigError
from fewfed.method import Setup
from fewfed.methods.fedbn import FedBN, batch_norm_names
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from support import digits_network, job_of, run, states


def norm_by_index() -> Network:
    """BatchNorm without "bn" in any name: inside an index-named Sequential, and as a stage of its own."""
    stages: dict[str, nn.Module] = {
        "first": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU()),
        "scale": nn.BatchNorm1d(8),
        "group": nn.LayerNorm(8),
        "head": nn.Linear(8, 10),
    }
    torch.manual_seed(0)
    return Network("by index", stages)


def test_layers_are_found_by_type() -> None:
    kinds = ("weight", "bias", "running_mean", "running_var")
    assert batch_norm_names(norm_by_index()) == {f"{layer}.{kind}" for layer in ("first.2", "scale") for kind in kinds}


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "alexnet"])
def test_every_buffer_of_the_papers_networks_belongs_to_batch_norm(name: str) -> None:
    net = networks.build(name, (3, 64, 64), 10, 0)
    found = batch_norm_names(net)
    model = net.model()
    assert set(model["buffers"]) <= found
    assert len(found) == 2 * len(model["buffers"])


def test_the_server_never_holds_a_batch_norm_value() -> None:
    net = norm_by_index()
    done = run(job_of("fedbn", net=net), rounds=2)
    held = {path.split("/")[-1] for path, _ in tree.leaves(done.server)}
    assert not held & batch_norm_names(net)
    assert held | batch_norm_names(net) == {path.split("/")[-1] for path, _ in tree.leaves(net.model())}
    whole = sum(leaf.numel() for _, leaf in tree.leaves(net.model()))
    assert done.metrics[0]["bytes"]["up"] == 3 * 4 * (whole - 2 * 4 * 8)


def test_clients_keep_their_own_layers_and_share_the_rest() -> None:
    done = run(job_of("fedbn"), rounds=1)
    view = done.views[0]
    method, net = view.job.method, view.job.net
    kept = states(view.executor, 10)
    models = {client: method.predictor(done.server, kept[client]) for client in view.cohort}
    first, second, _ = models.values()
    names = batch_norm_names(net)
    for kind in ("params", "buffers"):
        assert set(first[kind]) == set(net.model()[kind])
        for name in first[kind]:
            assert torch.equal(first[kind][name], second[kind][name]) == (name not in names)


def test_a_client_resumes_with_the_layers_it_kept() -> None:
    """With nothing but BatchNorm to train and one client, training twice is training on."""
    job = job_of("fedbn")
    earlier, later = (states(run(job, rounds=rounds, cohort=10).views[-1].executor, 10) for rounds in (1, 2))
    for client in range(10):
        before, after = earlier[client]["norm"]["buffers"], later[client]["norm"]["buffers"]
        assert float(tree.sq_distance(after, before)) > 0


def test_a_client_that_never_took_part_has_the_initial_layers() -> None:
    net = digits_network()
    method = FedBN()
    setup = Setup(net, Classification(10), Plan(0, 8), 3, (1, 8, 8))
    model = method.predictor(method.server_init(setup), method.client_init(setup))
    for (_, a), (_, b) in zip(
        sorted(tree.leaves(model), key=lambda leaf: leaf[0]),
        sorted(tree.leaves(net.model()), key=lambda leaf: leaf[0]),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_evaluation_averages_over_clients() -> None:
    assert run(job_of("fedbn"), rounds=1, observers=[Evaluate()]).metrics[0]["evaluated_clients"] == 10


def test_a_network_without_batch_norm_is_refused() -> None:
    net = Network("plain", {"flat": nn.Flatten(), "head": nn.Linear(64, 10)})
    with pytest.raises(ConfigError, match="'plain' has none"):
        run(job_of("fedbn", net=net), rounds=1)
