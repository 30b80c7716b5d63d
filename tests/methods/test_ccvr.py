"""CCVR: pooled moments against NumPy, sampling, and what is retrained when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.engine.evaluation import Evaluate
from fewfed.errors import ConfigError
from fewfed.methods.ccvr import CCVR, COLLECT, Gaussians, moments, pooled, safe_root, sampled
from fewfed.methods.local import Local
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock, Cohort, Combine, Role
from fewfed.plan import Plan, Random
from fewfed.tasks.classification import Classification
from support import EXACT, context, digits_federation, digits_network, in_double, job_of, linear_network, run, same


def test_moments_of_two_clients_pool_to_those_of_their_union(flea_values: dict[str, Any]) -> None:
    case = flea_values["ccvr_pooled_moments"]
    method = CCVR(form="gaussian")
    net = linear_network(torch.eye(2).tolist())
    phase = next(p for p in method.phases(Clock(0, 1, 1)) if p.name == COLLECT)
    uploads = []
    for name in ("client_a", "client_b"):
        x = torch.tensor(case[name], dtype=torch.float64)
        ctx = context(net, Examples(x, torch.zeros(len(x), dtype=torch.long)), phase=phase, task=Classification(2))
        uploads.append(phase.does.end(net.model(), ctx).upload)
    union = pooled(*(uploads[0][name] + uploads[1][name] for name in ("sum", "outer", "count")))
    assert union.classes.tolist() == [0]
    assert union.mean[0].tolist() == pytest.approx(case["mean"], abs=1e-12)
    assert union.covariance[0].flatten().tolist() == pytest.approx(np.ravel(case["cov"]).tolist(), abs=1e-12)
    assert {upload.combine for upload in phase.uploads.values()} == {Combine.SUM}


def test_pooling_many_clients_equals_numpys_covariance_of_all_rows() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)) + 3, draw.integers(0, 3, 60)
    parts = [moments(torch.tensor(x[rows]), torch.tensor(y[rows]), 4) for rows in np.array_split(np.arange(60), 7)]
    union = pooled(*(sum(part[name] for part in parts) for name in ("sum", "outer", "count")))
    assert union.classes.tolist() == [0, 1, 2]
    for c in range(3):
        assert np.allclose(union.mean[c], x[y == c].mean(0), atol=1e-10)
        assert np.allclose(union.covariance[c], np.cov(x[y == c].T), atol=1e-10)


def test_the_covariance_survives_a_mean_a_million_times_the_deviation() -> None:
    draw = np.random.default_rng(3)
    mixing = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.2, 0.9]])
    x = (1e4 + 1e-2 * draw.normal(size=(1500, 3)) @ mixing.T).astype(np.float32)
    parts = [moments(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long), 1) for rows in np.split(x, 5)]
    union = pooled(*(sum(part[name] for part in parts) for name in ("sum", "outer", "count")))
    expected = np.cov(x.astype(np.float64).T)
    assert np.allclose(union.mean[0], x.astype(np.float64).mean(0), rtol=0, atol=1e-6)
    assert np.allclose(union.covariance[0], expected, rtol=0, atol=1e-3 * expected.max())


def test_a_single_row_has_no_spread_and_a_singular_covariance_has_a_root() -> None:
    z = torch.tensor([[1.3, 2.7, 0.1]])
    lone = pooled(*moments(z, torch.tensor([1]), 3).values())
    drawn = sampled(lone, 5, Random(0))
    assert drawn.y.tolist() == [1] * 5
    assert torch.allclose(drawn.x, z.expand(5, 3), atol=1e-6)
    line = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    singular = torch.outer(line, line)
    root = safe_root(singular)
    assert torch.allclose(root @ root.T, singular, atol=1e-4)
    slightly_negative = singular - 1e-7 * torch.eye(3, dtype=torch.float64)
    assert torch.isfinite(safe_root(slightly_negative)).all()
    assert torch.isfinite(safe_root(-torch.eye(2, dtype=torch.float64))).all()


def test_samples_have_the_moments_they_were_drawn_from() -> None:
    covariance = torch.tensor([[3.7, 1.5], [1.5, 1.0]], dtype=torch.float64)
    gaussians = Gaussians(torch.tensor([4]), torch.tensor([[2.2, 1.0]], dtype=torch.float64), covariance.unsqueeze(0))
    drawn = sampled(gaussians, 20000, Random(1))
    assert np.allclose(drawn.x.mean(0), [2.2, 1.0], atol=0.06)
    assert np.allclose(np.cov(drawn.x.T.numpy()), covariance, atol=0.12)


@pytest.mark.parametrize("form", ["features", "gaussian"])
def test_only_the_head_changes_and_only_after_the_last_round(form: str) -> None:
    federation = digits_federation(10, 20)
    method = choose("ccvr", {"form": form, "samples": 50}).method
    plain, ended = (run(job_of(m, federation), rounds=2, cohort=5) for m in ("fedavg", method))
    assert [[p.phase.name for p in view.phases] for view in ended.views] == [
        ["train"],
        ["train", "collect", "calibrate"],
    ]
    collect, calibrate = ended.views[-1].phases[1:]
    assert (collect.phase.cohort, calibrate.phase.cohort) == (Cohort.ALL, Cohort.SERVER)
    assert calibrate.record.traffic.up == 0
    before, after = plain.server["model"]["params"], method.predictor(ended.server, {})["params"]
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert set(ended.server["own"]) == {"calibrated"}, "what was collected is not kept"


def test_a_cut_retrains_every_stage_after_it_on_features_of_that_stage() -> None:
    federation = digits_federation(6, 20)
    method = choose("ccvr", {"cut": "conv1", "epochs": 2}).method
    ended = run(job_of(method, federation), rounds=1, cohort=3)
    features = ended.views[-1].phases[1].combined.values["features"]
    assert features.shape == (6 * 2, 16, 8, 8)
    before, after = ended.server["inner"]["model"], method.predictor(ended.server, {})
    kept = {name for name, value in before["params"].items() if torch.equal(value, after["params"][name])}
    assert kept == {name for name in before["params"] if name.startswith("conv1.")}
    assert torch.equal(before["buffers"]["conv1.norm.running_mean"], after["buffers"]["conv1.norm.running_mean"])
    assert not torch.equal(before["buffers"]["conv2.norm.running_mean"], after["buffers"]["conv2.norm.running_mean"])


def test_from_a_round_on_every_round_ends_with_a_calibration_of_that_rounds_model() -> None:
    """By hand: FedAvg's model of the round, its features of the shared rows, and torch's Adam on the head."""
    federation = digits_federation(6, 20)
    calibrated, epochs, batch, lr = choose("ccvr", {"start": 2, "epochs": 2, "batch": 5, "lr": 1e-2}).method, 2, 5, 1e-2
    jobs = [in_double(job_of(method, federation)) for method in ("fedavg", calibrated)]
    plain, ended = (run(job, rounds=3, cohort=3) for job in jobs)
    assert [len(view.phases) for view in ended.views] == [1, 3, 3]
    assert same(plain.server["model"], ended.server["inner"]["model"]), "training goes on from what was trained"
    assert calibrated.predictor(ended.views[0].server, {}) is ended.views[0].server["inner"]["model"]
    net = jobs[0].net
    for round in (1, 2):
        model = plain.views[round].server["model"]
        shared = [
            federation.examples(client).rows(Plan(0, 8).fixed(client, "shared rows").choice(20, 2, replace=False))
            for client in range(6)
        ]
        x = torch.cat([net.apply(model, rows.x.double(), stop=net.penultimate, train=False) for rows in shared])
        y = torch.cat([rows.y for rows in shared])
        head = torch.nn.Linear(x.shape[1], 10, dtype=torch.float64)
        head.load_state_dict({part: model["params"][f"head.{part}"] for part in ("weight", "bias")})
        adam = torch.optim.Adam(head.parameters(), lr=lr)
        for rows in Plan(0, batch).batches(round, "calibrate", -1, len(y), epochs):
            adam.zero_grad()
            torch.nn.functional.cross_entropy(head(x[rows].flatten(1)), y[rows]).backward()
            adam.step()
        found = calibrated.predictor(ended.views[round].server, {})["params"]
        assert torch.allclose(found["head.weight"], head.weight, rtol=0, atol=EXACT)
        assert torch.allclose(found["head.bias"], head.bias, rtol=0, atol=EXACT)


def test_without_training_the_first_model_is_calibrated_as_it_is() -> None:
    method = choose("ccvr", {"train": False, "epochs": 2}).method
    ended = run(job_of(method, digits_federation(6, 20)), rounds=2, cohort=3, observers=[Evaluate()])
    assert [[p.phase.name for p in view.phases] for view in ended.views] == 2 * [["collect", "calibrate"]]
    first, after = digits_network().model(), method.predictor(ended.server, {})
    assert same(ended.server["inner"]["model"], first)
    changed = {name for name, value in first["params"].items() if not torch.equal(value, after["params"][name])}
    assert changed == {"head.weight", "head.bias"}
    with pytest.raises(ConfigError, match="nothing to do"):
        CCVR(train=False, epochs=0).check(job_of("fedavg").setup)


def test_the_cut_before_the_first_stage_shares_raw_rows_says_so_and_retrains_everything() -> None:
    federation = digits_federation(6, 20)
    method = choose("ccvr", {"cut": "input", "epochs": 1}).method
    ended = run(job_of(method, federation, rows_public=True), rounds=1, cohort=3)
    collect = ended.views[-1].phases[1]
    assert {name: upload.role for name, upload in collect.phase.uploads.items()} == {
        "features": Role.INPUTS,
        "labels": Role.LABELS,
    }
    sent = collect.combined.values["features"]
    rows = torch.cat([federation.examples(client).x for client in range(6)])
    assert sent.shape == (6 * 2, 1, 8, 8)
    assert all(any(torch.equal(row, own) for own in rows) for row in sent), "as they are"
    before, after = ended.server["inner"]["model"], method.predictor(ended.server, {})
    assert not any(torch.equal(value, after["params"][name]) for name, value in before["params"].items())
    behind = next(p for p in choose("ccvr", {"cut": "conv1"}).method.phases(Clock(0, 1, 1)) if p.name == COLLECT)
    assert behind.uploads["features"].role is Role.FEATURES


def test_features_are_those_of_the_final_model_in_eval_mode() -> None:
    federation = digits_federation(3, 30)
    ended = run(job_of("ccvr", federation), rounds=1, cohort=3)
    features = ended.views[-1].phases[1].combined.values["features"]
    net = digits_network()
    everybody = net.apply(ended.server["inner"]["model"], federation.union().x, stop=net.penultimate, train=False)
    nearest = (features.unsqueeze(1) - everybody).abs().amax(2).min(1).values
    assert len(features) == 9
    assert float(nearest.max()) < 1e-5


def test_it_wraps_methods_with_phases_and_state_of_their_own() -> None:
    for spec in ("ccvr(flea)", "ccvr(moon)", "ccvr(fedgen-latent)"):
        ended = run(job_of(spec, digits_federation(6, 15)), rounds=2, cohort=3, observers=[Evaluate()])
        assert 0 <= ended.metrics[-1]["accuracy"] <= 1
        assert ended.views[-1].phases[-1].phase.name == "calibrate"


def test_it_lifts_the_head_that_label_skew_broke() -> None:
    federation = digits_federation(10, 40)
    final = {
        spec: run(job_of(spec, federation, training={"epochs": 3}), rounds=3, cohort=4, observers=[Evaluate()])
        for spec in ("fedavg", "ccvr:gaussian")
    }
    fedavg, ccvr = (ended.metrics[-1]["accuracy"] for ended in final.values())
    assert ccvr > fedavg


def test_what_does_not_fit_is_refused() -> None:
    job = job_of("fedavg")
    with pytest.raises(ConfigError, match="one common model"):
        CCVR(inner=Local()).check(job.setup)
    with pytest.raises(ConfigError, match="once"):
        CCVR(inner=CCVR()).check(job.setup)
    with pytest.raises(ConfigError, match="nothing to retrain"):
        CCVR(cut="head").check(job.setup)
    with pytest.raises(ConfigError, match="last stage only"):
        CCVR(form="gaussian", cut="conv1").check(job.setup)
    named = Network("own", {"input": torch.nn.Flatten(), "head": torch.nn.Linear(64, 10)})
    with pytest.raises(ConfigError, match=r"has a stage of that name: .* \(cut = 1\)"):
        CCVR(cut="input").check(job_of("fedavg", net=named).setup)
    CCVR(cut="1").check(job_of("fedavg", net=named, rows_public=True).setup)
    for cut in ("1", ""):
        with pytest.raises(ConfigError, match=r"affine function of the input.*rows_public = true"):
            CCVR(cut=cut).check(job_of("fedavg", net=named).setup)
    CCVR(form="gaussian").check(job_of("fedavg", net=named).setup)
    with pytest.raises(ConfigError, match="share"):
        choose("ccvr", {"share": 0.0})
