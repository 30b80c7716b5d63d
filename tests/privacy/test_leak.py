"""What is measured of shared rows where the answer is known, and that measuring changes nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfed import Experiment, Training, networks
from fewfed import run as run_method
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine import storage
from fewfed.engine.job import Job
from fewfed.method import Context, Report
from fewfed.methods.blurred import Blurred
from fewfed.methods.flea import FLea, Share
from fewfed.methods.noised import Noised
from fewfed.methods.registry import choose
from fewfed.phase import Clock, Phase
from fewfed.privacy import leak
from fewfed.privacy.inverting import inverted
from fewfed.privacy.leak import MeasureLeak
from fewfed.privacy.ridge import Ridge
from fewfed.privacy.stand_in import Exchanged, dealt, stand_ins
from fewfed.report.survey import look_at
from fewfed.runs.results import Result
from fewfed.tasks.classification import Classification
from fewfed.tree import Tree
from support import digits, digits_federation, job_of, run, same

Measured = dict[str, Any]


def measured(job: Job, rounds: int = 2, cohort: int = 4) -> list[Measured]:
    """What was measured, by round."""
    ended = run(job, rounds=rounds, cohort=cohort, observers=[MeasureLeak()])
    return [metrics.get("leak", {}) for metrics in ended.metrics]


def patients(seed: int, count: int) -> Examples:
    """Rows of a made-up hospital: 30 correlated measurements."""
    x = torch.randn(count, 30, generator=torch.Generator().manual_seed(seed))
    x = x @ torch.randn(30, 30, generator=torch.Generator().manual_seed(99)) / 5.5
    return Examples(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def hospitals(**values: Any) -> Job:
    federation = GeneratedFederation(8, lambda client: patients(client, 40), patients(1000, 300), 3)
    method = choose("flea", {"share": 0.2, **values}).method
    return job_of(method, federation, net=networks.build("mlp", (30,), 3, 0), task=Classification(3))


class NoiseInstead(Share):
    """Sends noise in place of features."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        random = ctx.plan.protecting(ctx.clock.round, ctx.phase.name, ctx.client, "all of it")
        noise = random.normal(*report.upload["features"].shape)
        return report._replace(upload={**report.upload, "features": noise})


class Rounded(Share):
    """Sends features as whole numbers of tenths, which have no slope."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "features": (report.upload["features"] * 10).round() / 10})


class Forgetful(Share):
    """Says that fewer rows are behind what it sends than it sends."""

    def origins(self, ctx: Context) -> Tensor:
        return torch.zeros(0, 1, dtype=torch.long)

    def end(self, work: Tree, ctx: Context) -> Report:
        features = ctx.net.apply(work, ctx.data.x[:1], stop=1, train=False)
        return Report({"features": features, "labels": ctx.data.y[:1]}, {}, ctx.weight)


class Broken(Forgetful):
    """Cannot be asked which rows it sent."""

    def origins(self, ctx: Context) -> Tensor:
        raise ValueError("no idea")


def sharing(way: type[Share], **values: Any) -> FLea:
    """FLea that shares in another way."""

    class Other(FLea):
        def phases(self, clock: Clock) -> tuple[Phase, ...]:
            train, sent = super().phases(clock)
            return (train, dataclasses.replace(sent, does=way(self)))

    return Other(**values)


def test_raw_rows_are_had_back_as_they_are() -> None:
    first, second = measured(job_of("feddata", digits_federation(8, 40)))
    assert first["r2"] > 0.9999
    assert first["reidentified"] == 1.0
    assert first["rows"] == 32
    assert first["among"] == 320
    assert first["chance"] == pytest.approx(1 / 320)
    assert second == {}, "no rows are shared in round 2"


def test_noise_in_place_of_features_gives_chance() -> None:
    (found,) = measured(job_of(sharing(NoiseInstead, share=0.5), digits_federation(10, 40)), rounds=1, cohort=10)
    assert found["rows"] == 100
    assert found["r2"] < 0.05
    assert found["reidentified"] <= 0.04, "chance is 1 in 400: more than four of a hundred would be a wonder"
    assert "cannot be differentiated" in found["attackers"]["inverting"]["skipped"]


def test_the_first_layer_of_a_perceptron_on_a_table_gives_every_row_away() -> None:
    """128 ReLU units of 30 inputs: the issue's case, to less than a thousandth of a deviation."""
    found = measured(hospitals(cut="hidden1"), rounds=2)
    for one in found:
        assert one["attacker"] == "inverting"
        assert one["reidentified"] == 1.0
        assert 1 - one["r2"] < 1e-6, "a squared error below a thousandth of a deviation, squared"
    behind = [one["r2"] for one in measured(hospitals(), rounds=2)]
    assert max(behind) < 0.95, "the default cut is the narrower layer, which does not give all away"


def test_averages_give_less_away_the_more_rows_are_in_them() -> None:
    federation = digits_federation(10, 40)
    found = {
        group: measured(job_of(choose("fedmix", {"group": group}).method, federation), rounds=1)[0]
        for group in (1, 2, 10)
    }
    assert found[1]["r2"] > 0.999
    assert found[1]["reidentified"] == 1.0
    assert found[1]["r2"] > found[2]["r2"] > found[10]["r2"]
    assert found[10]["r2"] < 0.5
    assert found[10]["reidentified"] < 0.5
    assert found[10]["chance"] == pytest.approx(10 / 400)


def test_features_behind_the_first_convolution_give_digits_away() -> None:
    """As the issue found: ridge regression alone finds all rows and has R2 about 0.99 once the model has learnt."""
    found = measured(job_of("flea", digits_federation(8, 60), training={"lr": 0.003}), rounds=4, cohort=8)
    ridge = found[-1]["attackers"]["ridge"]
    assert ridge["r2"] > 0.98
    assert ridge["reidentified"] == 1.0
    assert found[-1]["r2"] > 0.999
    assert found[-1]["held"] == len(digits()[1])


@pytest.mark.parametrize("spec", ["ccvr", "sem(flea)", "flea:official", "fedbr", "ccvr(flea)"])
def test_any_method_that_sends_rows_is_measured(spec: str) -> None:
    values = {"share": 0.2} if spec == "flea:official" else {}
    found = measured(job_of(choose(spec, values).method, digits_federation(6, 40)), rounds=2)
    sent = [one for one in found if one]
    assert sent
    for one in sent:
        assert 0 <= one["reidentified"] <= 1
        assert one["r2"] <= 1
        assert one["rows"] > 0


@pytest.mark.parametrize("spec", ["fedavg", "fedproto", "moon", "single"])
def test_methods_that_send_no_rows_are_not(spec: str) -> None:
    assert measured(job_of(spec, digits_federation(4, 20))) == [{}, {}]


def test_it_is_measured_once_in_every_tenth_and_in_the_first_and_last_round() -> None:
    job = job_of("flea")
    for rounds, expected in ((30, [1, *range(3, 31, 3)]), (100, [1, *range(10, 101, 10)]), (4, [1, 2, 3, 4]), (1, [1])):
        due = [number + 1 for number in range(rounds) if leak._is_due(job, Clock(number, rounds, 1))]
        assert due == expected
    odd = [number + 1 for number in range(23) if leak._is_due(job, Clock(number, 23, 1))]
    assert (odd[0], odd[-1], len(odd)) == (1, 23, 11)


def test_weights_are_inverted_in_the_first_and_the_last_round_only() -> None:
    found = measured(job_of("flea", digits_federation(4, 20)), rounds=3, cohort=2)
    assert ["inverting" in one["attackers"] for one in found] == [True, False, True]


def test_what_has_no_slope_is_left_to_the_regression() -> None:
    (found,) = measured(job_of(sharing(Rounded, share=0.5), digits_federation(4, 20)), rounds=1, cohort=4)
    assert found["attacker"] == "ridge"
    assert found["r2"] > 0.8
    assert "cannot be differentiated" in found["attackers"]["inverting"]["skipped"]


@pytest.mark.parametrize(("share", "why"), [(Broken, "no idea"), (Forgetful, "rows were sent, but the method says")])
def test_what_cannot_be_measured_is_said_and_the_run_goes_on(share: type[Share], why: str) -> None:
    found = measured(job_of(sharing(share), digits_federation(4, 20)), rounds=2)
    assert all(why in one["skipped"] for one in found)


def test_too_few_test_rows_are_said() -> None:
    federation = GeneratedFederation(8, lambda client: patients(client, 40), patients(1000, 5), 3)
    job = dataclasses.replace(hospitals(), federation=federation)
    assert "5 test rows" in measured(job, rounds=1)[0]["skipped"]


def test_it_changes_no_bit_of_the_run_and_not_what_run_it_is(tmp_path: Path) -> None:
    plan = {"clients": 6, "cohort": 3.0, "rounds": 3, "executor": "sequential"}
    with_it, without = (
        run_method("flea", Experiment(**plan, leak=measure), Training(epochs=1), out=tmp_path / str(measure))
        for measure in (True, False)
    )
    ends = [storage.load(tmp_path / str(measure) / "model.safetensors")[0] for measure in (True, False)]
    assert same(ends[0], ends[1])
    assert with_it.accuracy == without.accuracy
    assert without.leak is None
    assert "leak" not in without.as_json()
    assert with_it.leak is not None
    assert with_it.leak.round == 3
    assert Result.from_json(json.loads(json.dumps(with_it.as_json()))) == with_it
    assert look_at(tmp_path / "True").leak == with_it.leak
    assert look_at(tmp_path / "False").leak is None
    records = [json.loads(line) for line in (tmp_path / "True" / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records if "leak" in record] == [1, 2, 3]
    assert with_it.history[-1]["leak_r2"] == with_it.leak.r2


def test_the_generator_of_torch_is_left_alone() -> None:
    job = job_of("flea", digits_federation(4, 20))
    before = torch.random.get_rng_state()
    left, right = run(job, observers=[MeasureLeak()]), run(job)
    assert same(left.server, right.server)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_stand_in_sends_what_the_rows_it_is_given_give() -> None:
    job = job_of("flea", digits_federation(4, 20))
    (phase,) = job.method.phases(Clock(1, 5, 1))[1:]
    shared = phase.does.broadcast(job.method.server_init(job.setup))
    _, test = digits()
    exchanged = Exchanged(job, phase, Clock(1, 5, 1), shared, {})
    made = list(stand_ins(exchanged, test, 150))
    assert 150 <= sum(len(one.origins) for one in made) < 300
    for one in made:
        x = dealt(one, test, 3)
        behind = x[one.origins[:, 0]]
        assert torch.equal(one.sources(x), behind.flatten(1))
        expected = job.net.apply(shared["model"], behind, stop=1, train=False)
        assert torch.allclose(one(x), expected.flatten(1), atol=1e-6)
        inside = {tuple(row.flatten().tolist()) for row in test.x}
        assert all(tuple(row.flatten().tolist()) in inside for row in x)
        labels = {tuple(row.flatten().tolist()): int(label) for row, label in zip(test.x, test.y, strict=True)}
        assert [labels[tuple(row.flatten().tolist())] for row in x] == one.labels_behind().tolist()


def test_ridge_solves_its_equations_in_both_spaces() -> None:
    """Beside the closed form, with more rows than features and the other way round."""
    random = torch.Generator().manual_seed(4)
    for features in (10, 200):
        z, x = torch.randn(90, features, generator=random), torch.randn(90, 5, generator=random)
        ridge = Ridge(z, x, len(z) // 3)
        scaled = ((z - z.mean(0)) / z.std(0, unbiased=False)).double()  # No variance is below a hundredth of another.
        size = ridge.strength * float((scaled.square().sum(0) if features < 90 else scaled.square().sum(1)).mean())
        gram = scaled.T @ scaled + size * torch.eye(features, dtype=torch.double)
        weights = torch.linalg.solve(gram, scaled.T @ (x.double() - x.double().mean(0)))
        assert torch.allclose(ridge(z), x.double().mean(0) + scaled @ weights, atol=1e-4)


def test_ridge_finds_a_linear_map_and_gives_up_on_noise() -> None:
    random = torch.Generator().manual_seed(5)
    x, weights = torch.randn(200, 12, generator=random), torch.randn(12, 40, generator=random)
    assert torch.allclose(Ridge(x[:150] @ weights, x[:150], 50)(x[150:] @ weights), x[150:].double(), atol=1e-3)
    noise = torch.randn(200, 40, generator=random)
    guess = Ridge(noise[:150], x[:150], 50)(noise[150:])
    assert float((guess - x[150:]).square().mean()) < 1.3 * float(x[150:].square().mean())


def test_inverting_solves_a_linear_system_and_a_bent_one() -> None:
    random = torch.Generator().manual_seed(6)
    weights, x = torch.randn(8, 30, generator=random), torch.randn(5, 8, generator=random)
    found = inverted(lambda v: v @ weights, x @ weights, torch.zeros_like(x))
    assert torch.allclose(found, x, atol=1e-3)
    start = x + 0.3 * torch.randn(5, 8, generator=random)
    found = inverted(lambda v: (v @ weights).relu(), (x @ weights).relu(), start)
    assert torch.allclose(found, x, atol=1e-3)


def test_a_step_of_the_inversion_is_never_for_the_worse() -> None:
    """Each row ends with no larger residual than it began with, whatever the function does."""
    random = torch.Generator().manual_seed(7)
    weights, sent = torch.randn(6, 9, generator=random), torch.randn(20, 9, generator=random)
    start = 3 * torch.randn(20, 6, generator=random)

    def function(v: Tensor) -> Tensor:
        return torch.sin(3 * v @ weights)

    found = inverted(function, sent, start)
    before, after = ((function(v) - sent).square().sum(1) for v in (start, found))
    assert bool((after <= before).all())
    assert float(after.sum()) < float(before.sum())


def test_rows_that_an_attacker_has_twice_do_not_cost_it_the_regression() -> None:
    """Found on sensor windows: features far wider than rows, and labels of which there were too few rows."""
    random = torch.Generator().manual_seed(4)
    x = torch.randn(200, 20, generator=random)
    wide = torch.relu(x @ torch.randn(20, 3000, generator=random))
    fit, new = torch.cat([torch.arange(60), torch.arange(60, 150), torch.arange(60, 150)]), torch.arange(150, 200)
    guess = Ridge(wide[fit], x[fit], 60)(wide[new])
    r2 = 1 - float((guess - x[new]).square().sum()) / float((x[new] - x[fit].mean(0)).square().sum())
    assert r2 > 0.8


@pytest.mark.parametrize("method", [Blurred(noise=1.0), Noised(clip=20.0, sigma=0.02)])
def test_who_inverts_weights_adds_no_noise_of_its_own_to_that_of_the_clients(
    method: Blurred | Noised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told of the noise must not do worse for it than somebody who takes what was sent for features."""
    job = job_of(dataclasses.replace(method, inner=FLea(share=0.3, decorrelate=0.0)), digits_federation(8, 30))

    def r2() -> float:
        found: float = measured(job, rounds=1, cohort=8)[0]["attackers"]["inverting"]["r2"]
        return found

    without = r2()
    monkeypatch.setattr(leak, "without_noise", lambda job: job)
    assert without > r2() + 0.05


def test_codes_are_measured_as_the_numbers_they_stand_for(tmp_path: Path) -> None:
    found = {}
    for bits in (0, 8, 2):
        values = {"bits": bits, "inner.share": 0.5}
        few = Experiment(clients=6, cohort=3.0, rounds=2, executor="sequential")
        found[bits] = run_method(
            "quantised(flea)", few, Training(epochs=1), values=values, out=tmp_path / str(bits)
        ).leak
    assert all(leak is not None and leak.reidentified > 0.9 for leak in found.values()), found
    assert found[2].r2 < found[0].r2  # type: ignore[union-attr]


def test_who_learns_without_the_noise_is_nearly_as_good_as_the_best_linear_guess() -> None:
    """Beside the linear guess of least error, which knows the true covariances, with few rows and much noise."""
    random = torch.Generator().manual_seed(11)
    for features, size in ((100, 2.0), (400, 6.0)):
        weights = torch.randn(12, features, generator=random) / 12**0.5
        x = torch.randn(1150, 12, generator=random)
        quiet = x @ weights
        sent = quiet + size * torch.randn(quiet.shape, generator=random)
        fit, new = slice(0, 150), slice(150, None)

        def error(guess: Tensor, truth: Tensor = x[new]) -> float:
            return float((guess - truth).square().mean())

        covariance = weights.T @ weights + size**2 * torch.eye(features)
        best = error(sent[new] @ torch.linalg.solve(covariance, weights.T))
        told = error(Ridge(sent[fit], x[fit], 50, quiet[fit])(sent[new]))
        learnt = error(Ridge(sent[fit], x[fit], 50)(sent[new]))
        assert best < told < 1.1 * best
        assert learnt > 1.25 * best


def test_rows_that_are_all_noise_are_no_worse_than_the_mean() -> None:
    """More noise calls for more regularisation than rows without any ever do."""
    random = torch.Generator().manual_seed(12)
    x, noise = torch.randn(400, 5, generator=random), torch.randn(400, 60, generator=random)
    guess = Ridge(noise[:90], x[:90], 30)(noise[90:])
    mean = x[:90].mean(0)
    assert float((guess - x[90:]).square().mean()) < 1.01 * float((mean - x[90:]).square().mean())


def test_noise_on_shared_rows_hides_less_from_who_knows_of_it() -> None:
    """It was told as an R2 of 0.35, and below 0 with more noise, when the regression learnt from noisy rows alone."""
    values = {"clip": 20.0, "inner.share": 0.5, "inner.decorrelate": 0.0}
    found = {}
    for sigma in (0.05, 0.2):
        job = job_of(choose("noised(flea)", {"sigma": sigma, **values}).method, digits_federation(20, 60))
        found[sigma] = measured(job, rounds=1, cohort=20)[0]["attackers"]["ridge"]["r2"]
    assert found[0.05] > 0.5
    assert 0 <= found[0.2] < 0.2


def test_no_noise_is_on_two_rows_that_the_regression_learns_from() -> None:
    """It chooses its settings on rows with other noise than that of the rows it is fitted to."""
    job = job_of(Noised(inner=FLea(share=0.5), clip=20.0, sigma=0.1), digits_federation(4, 20))
    (phase,) = job.method.phases(Clock(1, 5, 1))[1:]
    shared = phase.does.broadcast(job.method.server_init(job.setup))
    pairs = leak._pairs(Exchanged(job, phase, Clock(1, 5, 1), shared, {}), digits()[1], torch.device("cpu"))
    assert pairs.quiet is not None
    noise = pairs.sent - pairs.quiet
    assert float(noise.std()) == pytest.approx(2.0, rel=0.01)
    lengths = noise.norm(dim=1)
    alike = noise[: pairs.apart] @ noise[pairs.apart :].T / torch.outer(lengths[: pairs.apart], lengths[pairs.apart :])
    assert float(alike.abs().max()) < 0.3


def test_where_nothing_is_added_rows_are_looked_at_once() -> None:
    job = job_of("flea", digits_federation(4, 20))
    (phase,) = job.method.phases(Clock(1, 5, 1))[1:]
    shared = phase.does.broadcast(job.method.server_init(job.setup))
    pairs = leak._pairs(Exchanged(job, phase, Clock(1, 5, 1), shared, {}), digits()[1], torch.device("cpu"))
    assert pairs.quiet is None


@pytest.mark.parametrize("column", [0.0, 1e6])
def test_a_column_far_from_zero_does_not_make_all_rows_alike(column: float) -> None:
    """A year, or an amount: every average of three was told to give a row away, and pure noise nine rows of ten. Beside
    distances that are written out in double precision."""

    def rows(seed: int, count: int) -> Examples:
        made = patients(seed, count)
        return Examples(torch.cat([made.x, torch.full((count, 1), column)], 1), made.y)

    found = leak._Candidates.of(hospitals(), 30)
    candidates = dataclasses.replace(found, x=torch.cat([found.x, torch.full((len(found.x), 1), column)], 1))
    random = torch.Generator().manual_seed(3)
    guess = 2 * torch.randn(60, 31, generator=random, dtype=torch.double)
    guess[:, 30] = column
    keys = [((0, number % 40), (1, number % 40), (2, number % 40)) for number in range(60)]
    distances = (guess[:, None] - candidates.x[None].double()).square().sum(2)
    wanted = sum(candidates.keys[int(row.argmin())] in behind for row, behind in zip(distances, keys, strict=True))
    assert leak._hits(guess, keys, candidates) == wanted

    federation = GeneratedFederation(8, lambda client: rows(client, 40), rows(1000, 300), 3)
    method = choose("noised(feddata)", {"clip": 1e9, "sigma": 1e-3}).method
    training = {"lr": 1e-9}
    job = job_of(method, federation, net=networks.build("mlp", (31,), 3, 0), task=Classification(3), training=training)
    (one,) = measured(job, rounds=1, cohort=8)
    assert one["reidentified"] < 0.1


def test_a_row_that_is_there_twice_is_found_with_either() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [5.0, 5.0]])
    candidates = leak._Candidates([(0, 0), (1, 0), (2, 0)], x)
    guess = torch.tensor([[0.1, 1.1]], dtype=torch.double)
    assert [leak._hits(guess, [[(client, 0)]], candidates) for client in range(3)] == [1, 1, 0]
