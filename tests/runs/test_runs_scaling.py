"""Inputs are scaled by constants whose origin is known; what clients exchange for them is declared and counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewfed import Experiment, Training, resume, run
from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.options import DataOptions
from fewfed.data.scaling import Scaling
from fewfed.data.sources import load
from fewfed.data.splits import Split, make_split
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError, DataError
from fewfed.phase import Clock, Combine
from fewfed.runs.experiment import layered
from fewfed.runs.measure import MeasureInputs
from fewfed.runs.prepare import Prepared, prepare
from fewfed.runs.scaling import InputScaling, scale
from run_support import SHORT, assert_same_end, records

SIZES = (1, 7, 40, 12)
"""Rows of four sites."""


def sites(seed: int = 0, mean: float = 0.0, missing: bool = False) -> Dataset:
    """Three columns whose means differ from site to site, 60 training and 20 test rows."""
    draw = np.random.default_rng(seed)
    ids = np.repeat(np.arange(4), SIZES)
    tested = np.arange(20) % 4
    x = draw.normal(np.arange(3) * 10 + ids[:, None], [1, 5, 0.1]) + mean
    test = draw.normal(np.arange(3) * 10 + tested[:, None], [1, 5, 0.1]) + mean
    if missing:
        x[3, 1] = x[20, 1] = x[50, 2] = test[0, 0] = np.nan
    return Dataset(
        "clinics",
        Examples(torch.tensor(x, dtype=torch.float32), torch.arange(60) % 2),
        Examples(torch.tensor(test, dtype=torch.float32), torch.arange(20) % 2),
        2,
        ("ill", "well"),
        {"client": ids},
        {"client": ("north", "east", "south", "west")},
        test_groups={"client": tested},
    )


def natural(dataset: Dataset, **changes: Any) -> Split:
    return make_split("client", dataset.split_labels, 2, 0, 0, groups=dataset.groups, **changes)


def plain(values: torch.Tensor) -> np.ndarray:
    return values.double().numpy()


@pytest.mark.parametrize("mean", [0.0, 3e4])
@pytest.mark.parametrize("missing", [False, True])
def test_sums_over_clients_give_the_mean_and_deviation_of_the_rows_that_clients_train_on(
    mean: float, missing: bool
) -> None:
    data = sites(mean=mean, missing=missing)
    split = natural(data, volume=0.6)  # Not all rows are anybody's.
    scaled, found = scale(data, split, None, DataOptions(normalise="federated"))
    held = plain(data.train.x)[split.order]
    middle, spread = np.nanmean(held, 0), np.nanstd(held, 0)
    assert found.common is not None
    np.testing.assert_allclose(found.common.mean.numpy(), middle, rtol=1e-6)
    np.testing.assert_allclose(found.common.std.numpy(), spread, rtol=1e-5)
    for part, before in ((scaled.train.x, data.train.x), (scaled.test.x, data.test.x)):
        filled = np.where(np.isnan(plain(before)), middle, plain(before))
        np.testing.assert_allclose(plain(part), (filled - middle) / spread, atol=2e-5 + 1e-6 * mean)


def test_the_exchange_is_three_phases_of_sums_by_everybody_and_nothing_else() -> None:
    phases = MeasureInputs().phases(Clock(0, 1, 1))
    assert {upload.combine for phase in phases for upload in phase.uploads.values()} == {Combine.SUM}
    data = sites()
    _, found = scale(data, natural(data), None, DataOptions(normalise="federated"))
    clients, columns, double = 4, 3, 8
    traffic = {name: (record.traffic.up, record.traffic.down) for name, record in found.exchange.items()}
    assert traffic == {
        "measure values": (clients * 3 * columns * double, 0),
        "measure squares": (clients * columns * double, clients * 2 * columns * double),
        "receive scaling": (0, clients * columns * double),  # The mean they hold already.
    }


def test_the_exchange_is_counted_once_in_a_run_and_told() -> None:
    data = sites()
    experiment = Experiment(split="client", clients=0, cohort=4, rounds=2, network="mlp", executor="sequential")
    options = DataOptions(normalise="federated")
    without = run("fedavg", experiment, SHORT, data=data, options=DataOptions(normalise="none"), out="without")
    with_it = run("fedavg", experiment, SHORT, data=data, options=options, out="with")
    assert with_it.bytes["up"] - without.bytes["up"] == 4 * 4 * 3 * 8
    assert with_it.bytes["down"] - without.bytes["down"] == 4 * 3 * 3 * 8
    first, second = records(Path("with"))
    assert list(first["phases"]) == ["measure values", "measure squares", "receive scaling", "train"]
    assert list(second["phases"]) == ["train"]
    assert "federated" in with_it.note
    assert "federated" not in without.note


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Stop(Exception):
    pass


class StopAfter:
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def after_round(self, view: RoundView) -> None:
        if view.clock.round + 1 == self.rounds:
            raise Stop


@pytest.mark.parametrize("after", [1, 2])
def test_a_run_that_is_stopped_measures_again_and_ends_the_same(after: int) -> None:
    x, y = np.asarray(sites().train.x), np.arange(60) % 2
    np.savez("clinics.npz", x=x, y=y, client=np.repeat(np.arange(4), SIZES))
    experiment = Experiment(
        data="clinics.npz", split="client", clients=0, cohort=2, rounds=3, network="mlp", executor="sequential"
    )
    run("scaffold", experiment, SHORT, out="whole")
    with pytest.raises(Stop):
        run("scaffold", experiment, SHORT, out="stopped", observers=[StopAfter(after)])
    resume("stopped")
    assert_same_end(Path("stopped"), Path("whole"))


def prepared(split: str, data: str = "digits", **options: Any) -> Prepared:
    experiment = Experiment(data=data, split=split, clients=0 if split == "client" else 5, cohort=2, network="mlp")
    return prepare(layered("fedavg", {}, experiment, {}, DataOptions(**options)))


def test_where_nobody_says_benchmarks_are_pooled_sites_federated_and_own_objects_left_alone() -> None:
    np.savez("own.npz", x=np.asarray(sites().train.x), y=np.arange(60) % 2, client=np.repeat(np.arange(4), SIZES))
    assert prepared("iid").scaling.mode == "pooled"
    assert prepared("iid", "own.npz").scaling.mode == "pooled"
    assert prepared("client", "own.npz").scaling.mode == "federated"
    assert prepared("client", "own.npz", normalise="none").scaling == InputScaling("none")
    data = sites()
    assert scale(data, natural(data), None, DataOptions())[1].mode == "none"
    published = dataclasses.replace(data, scaling=Scaling.constants([1, 2, 3], [4, 5, 6]))
    same, found = scale(published, natural(data), None, DataOptions())
    assert found.mode == "fixed"
    torch.testing.assert_close(same.test.x, (data.test.x - torch.tensor([1, 2, 3])) / torch.tensor([4, 5, 6]))


def test_pooled_inputs_are_the_bits_they_always_were() -> None:
    plain_digits = load("digits", options=DataOptions(normalise="none"))
    values = plain_digits.train.x.double()
    expected = (plain_digits.train.x - values.mean().float()) / values.std(correction=0).float()
    assert torch.equal(prepared("iid").job.federation.dataset.train.x, expected)  # type: ignore[attr-defined]


def test_a_site_that_scales_for_itself_uses_its_own_training_rows_alone() -> None:
    data = sites(missing=True)
    split = natural(data)
    scaled, found = scale(data, split, None, DataOptions(normalise="site"))
    assert (found.common, found.exchange) == (None, {})
    assert list(found.sites) == ["north", "east", "south", "west"]
    assert torch.equal(scaled.train.x[0], torch.zeros(3)), "one row tells no deviation"
    for site in (1, 2, 3):
        rows, tested = data.groups["client"] == site, data.test_groups["client"] == site
        own = plain(data.train.x)[rows]
        middle, spread = np.nanmean(own, 0), np.nanstd(own, 0)
        for part, before in ((scaled.train.x[rows], data.train.x[rows]), (scaled.test.x[tested], data.test.x[tested])):
            filled = np.where(np.isnan(plain(before)), middle, plain(before))
            np.testing.assert_allclose(plain(part), (filled - middle) / spread, atol=1e-4)


def test_rows_held_back_for_validation_are_scaled_and_not_measured() -> None:
    np.savez("own.npz", x=np.asarray(sites().train.x), y=np.arange(60) % 2, client=np.repeat(np.arange(4), SIZES))
    experiment = Experiment(data="own.npz", split="client", clients=0, network="mlp", validation=0.5, cohort=2)
    made = prepare(layered("fedavg", {}, experiment, {}, DataOptions()))
    rows = torch.cat([made.job.federation.examples(client).x for client in range(4)])
    np.testing.assert_allclose(plain(rows).mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(plain(rows).std(0), 1, atol=1e-4)
    assert abs(float(made.job.federation.validation.x.mean())) < 1
    assert float(made.job.federation.validation.x.mean()) != 0


def test_missing_values_are_filled_also_where_nothing_is_scaled() -> None:
    data = sites(missing=True)
    for split in (natural(data), make_split("iid", data.split_labels, 2, 3, 0)):
        filled, found = scale(data, split, None, DataOptions(normalise="none"))
        assert found.mode == "none"
        before = plain(data.train.x)
        np.testing.assert_allclose(
            plain(filled.train.x), np.where(np.isnan(before), np.nanmean(before, 0), before), rtol=1e-5
        )
        assert bool(torch.isfinite(filled.test.x).all())


def test_constants_of_the_users_own() -> None:
    data = sites()
    options = DataOptions(normalise="fixed", scale_mean="0,10,20", scale_std="1, 5, 0.1")
    scaled, found = scale(data, natural(data), None, options)
    assert found.mode == "fixed"
    expected = (plain(data.train.x) - [0, 10, 20]) / [1, 5, 0.1]
    np.testing.assert_allclose(plain(scaled.train.x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"normalise": "fixed"}, "has no constants of its own: expected scale_mean and scale_std"),
        ({"normalise": "fixed", "scale_mean": "1,2"}, "scale_mean = '1,2': expected 3 numbers with commas"),
        ({"normalise": "fixed", "scale_mean": "1,2,x"}, "expected 3 numbers"),
        ({"normalise": "fixed", "scale_mean": "1,2,3", "scale_std": "1,0,1"}, "expected 3 numbers above 0"),
        ({"normalise": "fixed", "scale_mean": "1,2,nan", "scale_std": "1,1,1"}, "expected 3 numbers"),
        ({"normalise": "fixed", "scale_mean": "1,2,3"}, "scale_std = ''"),
    ],
)
def test_constants_that_do_not_fit_are_refused(options: dict[str, Any], told: str) -> None:
    data = sites()
    with pytest.raises(ConfigError, match=told):
        scale(data, natural(data), None, DataOptions(**options))


def test_sites_that_are_not_known_cannot_scale_for_themselves() -> None:
    data = sites()
    with pytest.raises(ConfigError, match="needs to know whose every row is"):
        scale(data, make_split("iid", data.split_labels, 2, 3, 0), None, DataOptions(normalise="site"))
    nobody_tests = dataclasses.replace(data, test_groups={})
    with pytest.raises(ConfigError, match="needs to know whose every row is"):
        scale(nobody_tests, natural(data), None, DataOptions(normalise="site"))
    elsewhere = dataclasses.replace(data, test_groups={"client": np.full(20, 4)})
    with pytest.raises(ConfigError, match="has test rows and nobody trains there"):
        scale(elsewhere, natural(data), None, DataOptions(normalise="site"))


def test_values_that_cannot_be_summed_up_are_one_sentence() -> None:
    data = sites()
    data.train.x[5, 1] = 3e20
    with pytest.raises(DataError, match=r"the inputs of client 1 cannot be summed up \(.*measure|expected numbers of"):
        scale(data, natural(data), None, DataOptions(normalise="federated"))


def test_seconds_since_1970_are_an_ordinary_column() -> None:
    data = sites()
    data.train.x[:, 1] += 1.7e9
    _, found = scale(data, natural(data), None, DataOptions(normalise="federated"))
    assert found.common is not None
    assert float(found.common.mean[1]) == pytest.approx(1.7e9, rel=1e-6)


def test_constants_are_written_and_read_back_bit_for_bit() -> None:
    data = sites(missing=True)
    for mode in ("federated", "site"):
        _, found = scale(data, natural(data), None, DataOptions(normalise=mode))  # type: ignore[arg-type]
        again = InputScaling.from_json(found.as_json())
        assert again.mode == mode
        pairs = [(found.common, again.common)] if mode == "federated" else list(zip(
            found.sites.values(), again.sites.values(), strict=True))  # fmt: skip
        for one, other in pairs:
            assert one is not None
            assert other is not None
            assert torch.equal(one.mean, other.mean)
            assert torch.equal(one.std, other.std)
            assert torch.equal(one.fill, other.fill)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"mean": [0.0], "std": [0.0], "fill": None},
        {"mean": [0.0], "std": [1.0, 2.0], "fill": None},
        {"mean": [0.0], "std": [1.0], "fill": [float("nan")]},
        {"mean": [0.0], "std": [float("inf")], "fill": None},
        {"mean": "x", "std": [1.0], "fill": None},
        {"mean": [[0.0]], "std": [[1.0]], "fill": None},
    ],
)
def test_damaged_constants_are_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="damaged"):
        InputScaling.from_json({"mode": "pooled", "common": damaged, "sites": {}})


def test_a_model_trains_on_values_that_were_missing() -> None:
    result = run(
        "flea",
        Experiment(split="client", clients=0, cohort=4, rounds=2, network="mlp", executor="sequential"),
        Training(epochs=1),
        data=dataclasses.replace(sites(), scaling=None),
        options=DataOptions(normalise="federated"),
        out="model",
    )
    assert result.failed == 0
