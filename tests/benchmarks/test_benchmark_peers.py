"""The peer benchmark's own arithmetic: what work is expected, how ratios are formed, what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import contract, environments, measure, workload
from peers.settings import SETTINGS
from peers.tables import Entry, Pair, bare_runs, markdown, ratio, unrest
from ratios import Ratios


def a_run(whole: float, rounds: float, peak_mb: float = 100.0, processes: int = 2) -> measure.Run:
    return measure.Run(whole, rounds, 10, processes, 0.1, peak_mb, "PSS")


@pytest.mark.parametrize(("name", "steps", "rows"), [("cifar_pfl", 5, 50), ("lenet5", 10, 64), ("harnet", 20, 128)])
def test_a_client_takes_these_steps(name: str, steps: int, rows: int) -> None:
    setting = SETTINGS[name]
    assert setting.steps_per_client == steps
    assert setting.rows_per_epoch == rows
    assert setting.expected_steps(3) == 3 * setting.cohort * steps


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_peer_that_takes_short_batches_gets_whole_ones(name: str) -> None:
    setting = SETTINGS[name]
    x, y = workload.client_maker(setting)(7)
    filled_x, filled_y = workload.filled_maker(setting)(7)
    assert len(filled_x) == len(filled_y) == setting.rows_per_epoch
    assert filled_x[: setting.rows].equal(x)
    assert filled_x[setting.rows :].equal(x[: setting.rows_per_epoch - setting.rows])
    assert filled_y[: setting.rows].equal(y)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_module_is_the_network(name: str) -> None:
    setting = SETTINGS[name]
    net, module = workload.network(setting), workload.module(setting)
    x, _ = workload.client_maker(setting)(0)
    assert module.eval()(x[:2]).equal(net.apply(net.model(), x[:2], train=False))
    assert sum(p.numel() for p in module.parameters()) == net.parameter_count()


def test_optimiser_steps_are_counted() -> None:
    setting = SETTINGS["lenet5"]
    counter = contract.StepCounter()
    optimizer = counter.watch(workload.optimizer(setting, workload.module(setting).parameters()))
    optimizer.step()
    optimizer.step()
    assert counter.total == 2


def test_other_work_is_refused() -> None:
    setting = SETTINGS["harnet"]
    expected = setting.expected_steps(2)
    measure.check(expected, 2, setting, rounds=1)
    with pytest.raises(environments.NotMeasured, match=f"{expected - 1} optimiser steps instead of {expected}"):
        measure.check(expected - 1, 2, setting, rounds=1)
    with pytest.raises(environments.NotMeasured, match="1 rounds instead of 2"):
        measure.check(expected, 1, setting, rounds=1)


def test_a_ratio_is_taken_to_the_mean_of_both_neighbours() -> None:
    assert ratio(3.0, 1.0, 2.0) == 2.0
    pair = Pair(a_run(whole=9.0, rounds=4.0), a_run(whole=2.0, rounds=1.0), a_run(whole=4.0, rounds=3.0))
    assert (pair.whole_ratio, pair.rounds_ratio) == (3.0, 2.0)
    spread = Ratios((3.0, 1.0, 2.0))
    assert (spread.median, spread.low, spread.high) == (2.0, 1.0, 3.0)


def test_a_run_of_the_bare_loop_counts_once_though_it_has_two_neighbours() -> None:
    own, bare = a_run(1.0, 1.0), [a_run(1.0, seconds) for seconds in (2.0, 4.0, 5.0)]
    entries = [Entry("a", "A", pairs=[Pair(own, *bare[:2])]), Entry("b", "B", pairs=[Pair(own, *bare[1:])])]
    assert bare_runs(entries) == bare
    spread = unrest(bare)
    assert (spread.median, spread.low, spread.high) == (1.0, 0.5, 1.25)


def test_the_table_has_the_fastest_first_and_names_what_is_missing() -> None:
    bare = a_run(1.0, 1.0, peak_mb=50)
    slow = Entry("slow", "Slow", "1.0", [Pair(a_run(4.0, 3.0, 200, 1), bare, bare)])
    fast = Entry("fast", "Fast", "2.0", [Pair(a_run(2.0, 1.5), bare, bare)])
    broken = Entry("broken", "Broken", "3.0", failures=["repeat 2: status 1: no such thing"])
    lines = markdown("work", [broken, slow, fast]).splitlines()
    assert lines[4] == "| bare PyTorch loop | 2 | 1 | 1 | 50 |"
    assert lines[5] == "| Fast 2.0 | 2 | 1.50 (1.50 to 1.50) | 2.00 (2.00 to 2.00) | 100 |"
    assert lines[6].startswith("| Slow 1.0 | 1 | 3.00")
    assert lines[9] == "The bare loop's 1 runs took 1.00 to 1.00 of their median."
    assert lines[7] == "| Broken 3.0 | | not measured: repeat 2: status 1: no such thing | | |"


def test_repeats_that_failed_are_named_below_those_that_did_not() -> None:
    bare = a_run(1.0, 1.0)
    shaky = Entry("shaky", "Shaky", "1.0", [Pair(a_run(2.0, 1.5), bare, bare)], failures=["repeat 2: it died"])
    text = markdown("work", [shaky])
    assert "| Shaky 1.0 | 2 | 1.50 (1.50 to 1.50)" in text
    assert "Shaky 1.0 failed in repeat 2: it died" in text


def test_a_peer_that_cannot_be_had_says_why() -> None:
    absent = environments.Simulator("nowhere", "Nowhere", absent="not on the package index")
    with pytest.raises(environments.NotMeasured, match="not on the package index"):
        environments.python_of(absent)


def test_an_adapter_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "broken_rounds.py").write_text("raise SystemExit('it is broken')")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    broken = environments.Simulator("broken", "Broken")
    with pytest.raises(environments.NotMeasured, match="status 1: it is broken"):
        measure.run(Path(sys.executable), broken, SETTINGS["lenet5"], rounds=1, processes=1, limit=60)


def test_an_adapter_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "endless_rounds.py").write_text("import time\ntime.sleep(100)")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    endless = environments.Simulator("endless", "Endless")
    with pytest.raises(environments.NotMeasured, match="not finished within 1 s"):
        measure.run(Path(sys.executable), endless, SETTINGS["lenet5"], rounds=1, processes=1, limit=1)


def test_every_peer_has_an_adapter_and_pins() -> None:
    for peer in environments.PEERS.values():
        if not peer.absent:
            assert peer.adapter.exists()
            assert all("==" in line for line in peer.pins.read_text().split())
