"""What `fewfed methods` says: agreement with what a method declares and with what a run really sends."""

from __future__ import annotations

import json

import pytest

from fewfed.methods.registry import choose, registered
from fewfed.phase import Clock
from fewfed.report.catalogue import catalogue, entry, fields_of, phases
from support import job_of, run


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedmix", "feddata", "flea", "local"])
def test_the_uploads_are_those_of_a_run(name: str) -> None:
    declared = {phase["name"]: set(phase["uploads"]) for phase in entry(registered()[name])["phases"]}
    for view in run(job_of(name)).views:
        for result in view.phases:
            assert set(result.combined.values) == declared[result.phase.name]


def test_a_phase_of_the_first_round_only_says_so() -> None:
    when = {phase.name: text for phase, text in phases(choose("fedmix").method)}
    assert when["train"] == "every round"
    assert "first round" in when.values()


def test_what_is_seen_raw_is_what_is_not_combined() -> None:
    for item in catalogue():
        for phase in item["phases"]:
            raw = {name for name, how in phase["uploads"].items() if how["combine"] in ("concat", "keep")}
            assert set(phase["seen_raw"]) == raw


def test_the_catalogue_is_json_and_complete() -> None:
    read = json.loads(json.dumps(catalogue()))
    assert [item["name"] for item in read] == list(registered())
    for item in read:
        method = registered()[item["name"]]()
        assert {phase["name"] for phase in item["phases"]} >= {phase.name for phase in method.phases(Clock(0, 1000, 2))}
        assert item["presets"][0] == "paper"


def test_the_values_of_a_methods_fields() -> None:
    assert fields_of(choose("fedprox", {"mu": 0.5}).method)["mu"] == 0.5
    assert "inner" not in fields_of(choose("sem(flea)").method)


def test_no_exchange_of_any_round_is_missing() -> None:
    for name, cls in registered().items():
        listed = {phase.name: dict(phase.uploads) for phase, _ in phases(cls())}
        for number in range(1000):
            for phase in cls().phases(Clock(number, 1000, 5)):
                assert dict(phase.uploads) == listed[phase.name], f"{name}, round {number + 1}"
