"""FedProto: prototypes as a mean over clients, the pull towards them, and the published personal form."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.method import Combined
from fewfed.methods.fedproto import FedProto, PersonalFedProto
from fewfed.network import Network
from fewfed.phase import Clock, Combine
from fewfed.tasks.classification import Classification
from fewfed.tree import Tree
from support import batch_of, context, digits, digits_federation, in_double, job_of, linear_network, run, states

NET = linear_network(torch.eye(2).tolist())
TASK = Classification(2)


def examples(x: list[list[float]], y: list[int]) -> Examples:
    return Examples(torch.tensor(x, dtype=torch.float64), torch.tensor(y))


def test_prototypes_are_unweighted_means_over_the_clients_that_have_the_class() -> None:
    method = FedProto()
    clients = [
        examples([[0.0, 0.0], [2.0, 4.0]], [0, 0]),
        examples([[7.0, 8.0], [1.0, 1.0]], [0, 1]),
        examples([[3.0, 5.0]], [1]),
    ]
    uploads = [method.end(NET.model(), context(NET, data, task=TASK)).upload for data in clients]
    totals = {name: sum(upload[name] for upload in uploads) for name in ("means", "present")}
    server = {"model": NET.model(), "prototypes": torch.zeros(2, 2), "known": torch.zeros(2)}
    phase = method.phases(Clock(0, 1, 1))[0]
    after = method.absorb(server, Combined({"model": NET.model(), **totals}, (0, 1, 2), (2.0, 2.0, 1.0)))
    assert after["prototypes"].tolist() == [[4.0, 5.0], [2.0, 3.0]]
    assert after["known"].tolist() == [1, 1]
    assert {phase.uploads[name].combine for name in ("means", "present")} == {Combine.SUM}


def test_a_prototype_outlives_rounds_without_its_class() -> None:
    method = FedProto()
    server = {"prototypes": torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "known": torch.tensor([1.0, 0.0])}
    values = {"means": torch.tensor([[0.0, 0.0], [6.0, 8.0]]), "present": torch.tensor([0.0, 2.0])}
    after = method.absorb(server, Combined(values, (0, 1), (1.0, 1.0)))
    assert after["prototypes"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert after["known"].tolist() == [1, 1]


def test_the_pull_is_the_mean_square_over_rows_whose_class_is_known() -> None:
    data = examples([[1.0, 2.0], [5.0, 5.0]], [0, 1])
    shared = {
        "model": NET.model(),
        "prototypes": torch.tensor([[0.0, 0.0], [9.0, 9.0]], dtype=torch.float64),
        "known": torch.tensor([1.0, 0.0], dtype=torch.float64),
    }
    terms = FedProto(weight=0.1).loss(NET.model(), context(NET, data, shared, task=TASK), batch_of(data))
    assert terms["prototype"].item() == pytest.approx(0.1 * ((1 + 4) / 2 + 0) / 2, abs=1e-12)


def test_the_personal_form_exchanges_prototypes_only_and_every_client_keeps_its_model() -> None:
    job = job_of("fedproto:personal", digits_federation(6, 20))
    assert isinstance(job.method, PersonalFedProto)
    ended = run(job, rounds=2, cohort=6, observers=[Evaluate()])
    phase = ended.views[-1].phases[0]
    assert set(phase.combined.values) == {"means", "present"}
    assert set(phase.shared) == {"prototypes", "known"}
    kept = states(ended.views[-1].executor, 6)
    assert sorted(kept) == list(range(6))
    assert not torch.equal(*(kept[client]["model"]["params"]["head.weight"] for client in range(2)))
    assert ended.metrics[-1]["accuracy_matched"] > ended.metrics[-1]["accuracy"]


def nearest(job: Job, model: Tree, prototypes: Tensor, known: Tensor, x: Tensor) -> list[int]:
    """By brute force: the distance of every row to every prototype there is."""
    features = job.net.apply(model, x, stop=job.net.penultimate, train=False).flatten(1)
    found = []
    for row in features:
        distances = [float((row - p).square().sum()) for p in prototypes[known > 0]]
        found.append(int(known.nonzero()[distances.index(min(distances))]))
    return found


@pytest.mark.parametrize("classes", [10, 6])
def test_the_personal_form_predicts_by_the_nearest_prototype(classes: int) -> None:
    """In double precision, where no two distances are equal; classes that nobody holds are never predicted."""
    rows = digits_federation().union()
    held = rows.rows(torch.nonzero(rows.y < classes).flatten())
    test = Examples(digits()[1].x[:200], digits()[1].y[:200])
    federation = GeneratedFederation(4, lambda k: held.rows(torch.arange(k, len(held), 4)), test, 10)
    job = in_double(job_of("fedproto:personal", federation))
    ended = run(job, rounds=2, cohort=3, observers=[Evaluate(clients=0)])
    server, kept = ended.server, states(ended.views[-1].executor, 4)
    assert server["known"].tolist() == [1.0] * classes + [0.0] * (10 - classes)
    right = []
    for client in range(4):
        state = kept.get(client, job.method.client_init(job.setup))
        scores = job.net.apply(job.method.predictor(server, state), job.federation.test.x, train=False)
        expected = nearest(job, state["model"], server["prototypes"], server["known"], job.federation.test.x)
        assert scores.argmax(1).tolist() == expected
        assert max(expected) < classes
        right += [float(a == b) for a, b in zip(expected, test.y.tolist(), strict=True)]
    assert ended.metrics[-1]["accuracy"] == pytest.approx(sum(right) / len(right), abs=1e-9)


@pytest.mark.parametrize(
    "last",
    [
        nn.Linear(8, 10, bias=False),
        nn.Sequential(nn.Linear(8, 10), nn.LogSoftmax(1)),
        nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 10)),
        nn.Sequential(nn.Tanh(), nn.Linear(8, 10)),
    ],
)
def test_a_last_stage_that_is_no_linear_layer_cannot_hold_prototypes(last: nn.Module) -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    with pytest.raises(ConfigError, match="one linear layer with bias: stage 'last' of network 'own' is not"):
        run(job_of("fedproto:personal", net=Network("own", {"body": body, "last": last})), rounds=1)
    fitting = Network("own", {"body": body, "last": nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))})
    run(job_of("fedproto:personal", net=fitting), rounds=1)


def test_the_personal_form_never_receives_the_server_model() -> None:
    job = job_of("fedproto:personal", digits_federation(3, 10))
    phase = dataclasses.replace(job.method.phases(Clock(0, 2, 1))[0])
    assert phase.keeps_state
    assert "model" not in phase.uploads
