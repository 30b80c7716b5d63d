"""The scaling study: which settings it measures, what it makes of measurements, and that one can be taken."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from scaling import COHORT, COHORT_CLIENTS, PARTS, Memory, Setting, process_counts, settings_of
from scaling_report import disturbance, draw, points, table, verdicts

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


def record(x: int, repeat: int, seconds: float, memory: float, **changes: Any) -> dict[str, Any]:
    setting = Setting("clients", "fedavg", x, 1_000, "fedavg", x, 100, 2)
    measured = {"round_seconds": [seconds, 9 * seconds, seconds], "start_seconds": 1.0, "memory_mib": memory}
    return {**asdict(setting), "repeat": repeat, **measured, "states": 0, "others": 0.0, **changes}


def test_every_series_of_a_part_has_its_reference() -> None:
    for part in PARTS:
        settings = settings_of(part, 4)
        for setting in settings:
            assert any(other.series == setting.series and other.x == setting.reference for other in settings)


def test_parts_change_one_thing_only() -> None:
    fedavg = [setting for setting in settings_of("clients", 2) if setting.series == "fedavg"]
    assert [setting.clients for setting in fedavg] == [100, 1_000, 10_000, 100_000, 1_000_000]
    assert {(setting.cohort, setting.processes, setting.rounds) for setting in fedavg} == {(COHORT, 2, 5)}
    assert {(setting.clients, setting.processes) for setting in settings_of("cohort", 2)} == {(COHORT_CLIENTS, 2)}


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, [1]), (2, [1, 2]), (8, [*range(1, 9)]), (24, [*range(1, 9), 16, 24])]
)
def test_process_counts_end_with_all_cores(cores: int, expected: list[int]) -> None:
    assert process_counts(cores) == expected


def test_ratios_are_to_the_reference_of_the_same_repeat() -> None:
    # The machine is three times slower in the second repeat: absolute medians would say nothing.
    records = [record(1_000, 0, 1, 100), record(10**6, 0, 1.1, 110), record(1_000, 1, 3, 100), record(10**6, 1, 3, 150)]
    largest = points(records)[1]
    assert largest.time.values == pytest.approx((1.1, 1.0))
    assert largest.memory.median == pytest.approx(1.3)


def test_cohorts_are_compared_by_turn_and_processes_by_speed() -> None:
    cohorts = [
        record(100, 0, 1, 100, part="cohort", reference=100, cohort=100),
        record(1_000, 0, 12, 100, part="cohort", reference=100, cohort=1_000),
    ]
    assert points(cohorts)[1].time.median == pytest.approx(1.2)
    processes = [record(count, 0, 1 / count, 100, part="processes", reference=1) for count in (1, 4)]
    assert points(processes)[1].time.median == pytest.approx(4)


def test_what_is_not_kept_is_said() -> None:
    kept = [record(1_000, 0, 1, 100), record(10**6, 0, 1.05, 110)]
    assert verdicts(kept)[0].endswith(": kept")
    assert verdicts([kept[0], record(10**6, 0, 1.2, 100)])[0].endswith("NOT KEPT")
    assert verdicts([kept[0], record(10**6, 0, 1, 130)])[0].endswith("NOT KEPT")


def test_a_machine_that_was_not_quiet_is_named() -> None:
    records = [record(1_000, 0, 1, 100), record(10**6, 0, 1, 100, others=0.4), record(10**6, 1, 1, 100)]
    assert disturbance(records).startswith("Others kept 0 % of the cores busy")
    assert "at most 40 %, clients 1,000,000, repeat 1" in disturbance(records)


def test_table_and_picture(tmp_path: Path) -> None:
    records = [record(1_000, 0, 1, 100), record(10**6, 0, 1.05, 110)]
    records += [record(count, 0, 1 / count, 100, part="processes", reference=1) for count in (1, 2)]
    text = table(records)
    assert "| fedavg | 1,000 | 1 (reference) | 1 (reference) |" in text
    assert "| fedavg | 1,000,000 | 1.05 (1.05 to 1.05) | 1.10 (1.10 to 1.10) |" in text
    pytest.importorskip("matplotlib")
    draw(records, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 1_000


def test_memory_is_positive_and_no_more_than_what_is_resident() -> None:
    memory = Memory.of_family()
    assert 0 < memory.own <= memory.resident


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_one_measurement_in_a_fresh_process(method: str) -> None:
    setting = Setting("clients", method, 50, 50, method, 50, 4, 1, rounds=2)
    command = [sys.executable, str(PROGRAM), "--measure", json.dumps(asdict(setting))]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    measured = json.loads(finished.stdout.splitlines()[-1])
    assert len(measured["round_seconds"]) == 2
    assert all(seconds > 0 for seconds in measured["round_seconds"])
    assert 0 < measured["memory_mib"] < measured["resident_mib"]
    assert (measured["states"] > 0) == (method == "scaffold")
