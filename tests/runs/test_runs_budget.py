"""A run with a privacy budget: what its rounds and result say, how it ends, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewfed
from fewfed import Dataset, Examples, Experiment, Training, explain, run
from fewfed.data.readers.options import DataOptions
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError
from fewfed.privacy.gaussian import epsilon_of
from fewfed.runs.budget import BudgetSpent, told_privacy
from run_support import Outcome, assert_same_end, called, killed_after, records, small, states

LOCAL = Training(epochs=1)
NOISE = {"sigma": 2.0}


def private(out: Path, **changes: Any) -> fewfed.Result:
    return fewfed.run("dp(fedavg)", small(rounds=6, **changes), LOCAL, values=NOISE, out=out)


def test_rounds_and_result_say_what_was_spent_and_where_the_noise_is_from(tmp_path: Path) -> None:
    result = private(tmp_path / "run")
    rounds = records(tmp_path / "run")
    spent = [record["epsilon_server"] for record in rounds]
    assert spent == sorted(spent)
    assert all(record["epsilon_sites"] == record["epsilon_server"] for record in rounds)
    assert all(0 < record["epsilon_server_mean"] <= record["epsilon_server"] for record in rounds)
    assert result.privacy is not None
    assert result.privacy["epsilon_server"] == spent[-1] < result.privacy["rdp"]["epsilon_server"]
    assert result.privacy["without_bound"] == {"server": [], "sites": []}
    assert "for simulation only" in result.privacy["noise"]
    assert fewfed.resume(tmp_path / "run") == result
    assert {"epsilon_server", "epsilon_sites"} <= result.history[0].keys()


def test_runs_without_noise_say_nothing_of_it(tmp_path: Path) -> None:
    result = fewfed.run("fedavg", small(rounds=1), LOCAL, out=tmp_path / "run")
    assert result.privacy is None
    assert "privacy" not in result.as_json()
    assert "epsilon_server" not in records(tmp_path / "run")[0]


def test_what_no_noise_bounds_is_said(tmp_path: Path) -> None:
    values = {"inner.decorrelate": 0.0}
    result = fewfed.run("dp(flea)", small(rounds=1), LOCAL, values=values, out=tmp_path / "run")
    assert result.privacy is not None
    assert result.privacy["epsilon_server"] is None
    assert result.privacy["without_bound"]["sites"] == ["phase 'share' sends 'features' (features) without noise"]


@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_a_run_stops_before_its_budget_and_goes_on_with_a_larger_one(tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(BudgetSpent, match=r"the privacy budget is spent: after round \d of 6 .* --epsilon NUMBER"):
        private(folder, epsilon=4.5, executor=executor)
    stopped = records(folder)
    assert 0 < len(stopped) < 6
    assert max(record["epsilon_server"] for record in stopped) <= 4.5
    assert any(failure["cause"] == "budget" for record in stopped for failure in record["failed"])
    with pytest.raises(BudgetSpent):
        fewfed.resume(folder)
    assert records(folder) == stopped  # Nothing was tried again.
    with pytest.raises(ConfigError, match=r"expected at least 4\.5"):
        fewfed.resume(folder, epsilon=2.0)
    result = fewfed.resume(folder, epsilon=50.0)
    assert records(folder)[: len(stopped)] == stopped
    assert len(records(folder)) == 6
    assert records(folder)[-1]["failed"] == []
    assert result.privacy is not None
    assert 4.5 < result.privacy["epsilon_server"] <= 50.0
    assert result.privacy["budget"] == 50.0


def test_a_killed_run_forgets_nothing_of_what_was_released(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    changes = {"epsilon": 4.5, "checkpoint_seconds": 0.0}
    with pytest.raises(BudgetSpent):
        private(whole, **changes)

    def work(halt: Any) -> None:
        fewfed.run("dp(fedavg)", small(rounds=6, **changes), LOCAL, values=NOISE, out=killed, observers=[halt])

    killed_after(1, killed, work)
    with pytest.raises(BudgetSpent):
        fewfed.resume(killed)
    assert records(killed) == records(whole)
    for folder in (whole, killed):
        fewfed.resume(folder, epsilon=100.0)
    assert_same_end(killed, whole)
    assert all("fewfed.book" in state for state in states(whole).values())


def test_a_budget_needs_noise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing bounds what method 'fedavg' sends: .* as in dp\(fedavg\)"):
        fewfed.run("fedavg", small(epsilon=1.0), LOCAL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def of_sites() -> Dataset:
    """Rows of three sites, four columns, half of them for the test."""
    random = torch.Generator().manual_seed(0)
    groups = {"client": np.repeat(np.arange(3), 20)}

    def rows() -> Examples:
        return Examples(torch.randn(60, 4, generator=random) * 5 + 2, torch.arange(60) % 2)

    return Dataset("visits", rows(), rows(), 2, groups=groups, test_groups=groups)


@pytest.mark.parametrize("mode", ["site", "federated"])
def test_inputs_that_are_scaled_by_what_rows_say_have_no_bound(tmp_path: Path, mode: Any) -> None:
    """One row moves mean and deviation, and with them every other row."""
    chosen = {"split": "client", "clients": 0, "rounds": 1}

    def started(**changes: Any) -> fewfed.Result:
        options = DataOptions(normalise=changes.pop("normalise", mode))
        experiment = small(**chosen, **changes)
        return fewfed.run(
            "dp(fedavg)", experiment, LOCAL, values=NOISE, data=of_sites(), options=options, out=tmp_path / "run"
        )

    with pytest.raises(ConfigError, match=r"without noise.*: normalise = fixed or none"):
        started(epsilon=50.0)
    result = started()
    assert result.privacy is not None
    assert result.privacy["epsilon_server"] is None
    assert result.privacy["epsilon_sites"] is None
    assert all("without noise" in gap for gaps in result.privacy["without_bound"].values() for gap in gaps)


def test_constants_of_all_rows_count_as_public_and_the_result_says_so(tmp_path: Path) -> None:
    pooled = private(tmp_path / "pooled").privacy
    assert pooled is not None
    assert "count as public" in pooled["assumed"]
    assert "count as public" in told_privacy(pooled)
    options = DataOptions(normalise="none")
    alone = fewfed.run("dp(fedavg)", small(rounds=1), LOCAL, options=options, out=tmp_path / "none").privacy
    assert alone is not None
    assert alone["assumed"] is None


def test_the_program_stops_with_a_sentence_and_prints_what_was_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(*arguments: str) -> Outcome:
        return called(capsys, monkeypatch, *arguments)

    folder = str(tmp_path / "run")
    sizes = ("--network", "mlp", "--clients", "6", "--cohort", "3", "--rounds", "6", "--epochs", "1")
    code, _, err = program("run", "dp(fedavg)", *sizes, "--set", "sigma=2", "--set", "epsilon=4.5", "--out", folder)
    assert code == 2
    assert "error: the privacy budget is spent" in err
    code, out, err = program("resume", folder, "--epsilon", "60", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["privacy"]["budget"] == 60.0
    assert "against the server" in out + err
    assert "for simulation only" in out + err


class Books:
    """Keeps the file of a client's state after every checkpoint."""

    def __init__(self) -> None:
        self.spent: list[float] = []

    def after_round(self, view: RoundView) -> None:
        book = view.executor.homes.book(0)
        self.spent.append(float(book["ledger"]["server"].max()) if book else 0.0)


def test_the_book_of_a_client_is_in_its_file_beside_its_state(tmp_path: Path) -> None:
    books = Books()
    fewfed.run("dp(scaffold)", small(rounds=3), LOCAL, values=NOISE, out=tmp_path / "run", observers=[books])
    assert books.spent == sorted(books.spent)
    kept = states(tmp_path / "run")
    assert kept
    for state in kept.values():
        assert state.keys() == {"fewfed.state", "fewfed.book"}
        assert torch.isfinite(state["fewfed.book"]["ledger"]["server"]).all()


def test_sums_that_sites_send_before_the_first_round_are_not_covered_by_any_noise(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=random), torch.arange(60) % 2
    data = Dataset("own", Examples(x[:48], y[:48]), Examples(x[48:], y[48:]), 2, groups={"site": np.arange(48) % 3})
    experiment = Experiment(data="own", split="site", network="mlp", rounds=2, clients=0, cohort=3.0)
    together = {"normalise": "federated"}
    found = run("dp(fedavg)", experiment, data=data, options=together, out=tmp_path / "measured")
    assert found.privacy is not None
    assert found.privacy["epsilon_server"] is None
    assert any("sums over inputs" in gap for gap in found.privacy["without_bound"]["sites"])
    asked = dataclasses.replace(experiment, epsilon=8.0)
    with pytest.raises(ConfigError, match="normalise = fixed or none"):
        run("dp(fedavg)", asked, data=data, options=together, out=tmp_path / "refused")
    alone = run("dp(fedavg)", experiment, data=data, options={"normalise": "none"}, out=tmp_path / "alone")
    assert alone.privacy is not None
    assert alone.privacy["epsilon_server"] > 0
    said = explain("dp(fedavg)", dataclasses.replace(experiment, epsilon=1e6), data=data, options={"normalise": "none"})
    assert any("against the server" in bound and "1e+06" in bound for bound in said.bounds)
    assert explain("dp(fedavg)", experiment, data=data, options=together).bounds == ()


def test_a_bound_on_shared_rows_alone_is_told_beside_what_has_none() -> None:
    """Closed form: a release of precision 1/sigma² a turn; four times as much where only averages were clipped."""
    experiment = Experiment(clients=10, cohort=5, rounds=8)
    for method, values, precision in (
        ("potluck:bounded", {"sigma": 2.0}, 1 / 4),
        ("veiled(flea)", {"sigma": 2.0, "inner.share": 1.0}, 1 / 4),
        ("noised(grouped(flea))", {"sigma": 2.0, "clip": 5.0, "inner.inner.share": 1.0}, 1.0),
        ("noised(flea)", {"sigma": 2.0, "clip": 5.0}, 1 / 4),
    ):
        said = explain(method, experiment, values=values)
        assert said.bounds == ()
        (part,) = said.partial
        once, often = (f"{epsilon_of(times * precision, 1e-5):.3g}" for times in (1, 4))
        assert f"epsilon {once} when a site sends it once, {often} for the 4 times" in part
        assert part in str(said).replace("\n", " ")
    assert explain("flea", experiment).partial == ()
    data = {"normalise": "federated"}
    assert explain("veiled(flea)", experiment, options=data).partial == (), "one row moves how all are scaled"
    assert explain("dp(fedavg)", dataclasses.replace(experiment, network="mlp")).partial == (), "all of it is bounded"


def test_sites_with_budgets_are_told_before_the_run_that_nothing_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("epsilon = 5.0\n")
    with pytest.raises(ConfigError, match=r"every site has a privacy budget .* 'fedavg' sends: .* as in dp\(fedavg\)"):
        fewfed.run("fedavg", small(policy=str(tmp_path / "policy.toml")), LOCAL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "policy.toml").write_text("[site.0]\nepsilon = 5.0\n")  # The others can do without it.
    fewfed.run("fedavg", small(policy=str(tmp_path / "policy.toml"), rounds=1), LOCAL, out=tmp_path / "run")


def least_of_a_turn(steps: int, sigma: float) -> float:
    """Of a row that is in so many steps, once in each."""
    return epsilon_of(steps / sigma**2, 1e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_budget_that_suffices_for_no_turn_is_refused_before_the_run(tmp_path: Path, epochs: int) -> None:
    needed = least_of_a_turn(epochs, 2.0)
    local = Training(epochs=epochs, batch_rule="partial")
    with pytest.raises(ConfigError, match=rf"a single round: that takes epsilon = {needed:.4g} against the server"):
        fewfed.run("dp(fedavg)", small(epsilon=0.999 * needed), local, values=NOISE, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fewfed.run("dp(fedavg)", small(epsilon=1.001 * needed, rounds=1), local, values=NOISE, out=tmp_path / "run")
    assert records(tmp_path / "run")[0]["failed"] == []


def test_a_site_that_raises_its_own_budget_goes_on_although_another_has_more(tmp_path: Path) -> None:
    """What others are allowed, and have spent, is no reason to leave it out."""
    policy, once = tmp_path / "policy.toml", least_of_a_turn(1, 2.0)
    chosen = small(rounds=6, clients=2, cohort=2.0, policy=str(policy))

    def budgets(first: float) -> str:
        return f"[site.0]\nepsilon = {first}\n[site.1]\nepsilon = {2 * once}\n"

    policy.write_text(budgets(1.01 * once))
    local = Training(epochs=1, batch_rule="partial")
    with pytest.raises(BudgetSpent, match=r"goes on from there, in the sites' policy, with 'fewfed resume"):
        fewfed.run("dp(fedavg)", chosen, local, values=NOISE, out=tmp_path / "run")
    stopped = records(tmp_path / "run")
    with pytest.raises(BudgetSpent):
        fewfed.resume(tmp_path / "run")
    assert records(tmp_path / "run") == stopped
    policy.write_text(budgets(1.9 * once))
    with pytest.raises(BudgetSpent):
        fewfed.resume(tmp_path / "run")
    more = records(tmp_path / "run")[len(stopped) :]
    assert more
    assert [failure["client"] for failure in more[0]["failed"]] == [1]
    assert more[-1]["epsilon_server"] <= 2 * once
