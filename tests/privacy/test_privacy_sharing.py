"""What leaves a site is put in levels by declarations alone."""

from __future__ import annotations

from typing import Any

import pytest

from fewfed.errors import ConfigError
from fewfed.methods.registry import registered
from fewfed.privacy.sharing import TOLD, Share, leaves, share_of
from fewfed.report.catalogue import entry_of
from fewfed.runs.candidates import CANDIDATES
from fewfed.runs.cells import LoadedData
from fewfed.runs.considered import considered
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import prepare

TINY = {"data": "digits", "clients": 6, "cohort": 3, "rounds": 3, "network": "digits-cnn-gn"}
NEEDS_BATCH_NORM = ("fedbn",)
AVERAGED = ("fedmix", "grouped", "grouped(flea)", "potluck", "veiled")
"""Methods whose rows are averages of several, as their papers say."""


def level(spec: str) -> Share:
    network = "digits-cnn" if spec in NEEDS_BATCH_NORM else "digits-cnn-gn"
    return leaves(prepare(resolve(spec, {**TINY, "network": network})).job, 100).share


def from_catalogue(spec: str) -> Share:
    """The same from what `fewfed methods` prints."""
    found = [Share.NOTHING]
    for phase in entry_of(spec)["phases"]:
        if phase["cohort"] == "union":
            found.append(Share.INPUTS)
        if phase["cohort"] in ("union", "server"):
            continue
        found += [_of(spec, upload) for upload in phase["uploads"].values()]
    return max(found)


def _of(spec: str, upload: dict[str, Any]) -> Share:
    if upload["role"] in ("model", "update", "control"):
        return Share.MODEL
    if upload["role"] in ("inputs", "features", "labels"):
        if upload["rows_per_row"] and spec in AVERAGED:
            return Share.AVERAGES
        return Share.INPUTS if upload["role"] == "inputs" else Share.FEATURES
    return Share.STATISTICS


@pytest.mark.parametrize("spec", [*registered(), "grouped(flea)"])
def test_the_level_of_every_method_is_that_of_what_it_declares(spec: str) -> None:
    assert level(spec) is from_catalogue(spec)


@pytest.mark.parametrize("allowed", [share for share in Share if share])
def test_only_candidates_that_send_what_is_allowed_are_tried(allowed: Share) -> None:
    values = {**TINY, "split": "qua:2", "network": "auto", "experiment.validation": 0.2}
    found = considered(values, allowed, (), LoadedData())
    tried = {each.spec for each in found.tried}
    assert {"local", "fedavg", "single"} <= tried
    assert all(from_catalogue(spec) <= allowed for spec in tried - {"single"})
    kept_out = {each.label: each.why for each in found.not_tried}
    for candidate in CANDIDATES:
        if candidate.why(found.look) and candidate.spec != "single" and from_catalogue(candidate.spec) > allowed:
            assert f"{allowed.word} is the most that may leave" in kept_out[candidate.spec]


def test_more_is_never_told_as_less() -> None:
    assert list(TOLD) == sorted(Share)
    assert level("local") < level("fedavg") < level("fedproto") < level("fedmix") < level("flea") < level("feddata")


@pytest.mark.parametrize("text", ["", "nothing", "everything", "MODEL"])
def test_other_words_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(ConfigError, match="model"):
        share_of(text)


def test_averages_of_one_row_are_rows() -> None:
    single = leaves(prepare(resolve("fedmix", {**TINY, "group": 1})).job, 100)
    assert single.share is Share.INPUTS
    assert "inputs" in single.seen_raw
