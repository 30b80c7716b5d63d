"""A blueprint is written and read back as it was, and anything else is refused in a sentence."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed import FewfedError, run
from fewfed.data.raw_inputs import InputColumn, RawInputs
from fewfed.data.scaling import Scaling
from fewfed.methods.registry import choose
from fewfed.runs.blueprint import Blueprint, NetworkRecipe, changes_inputs
from fewfed.runs.scaling import InputScaling
from run_support import SHORT, small

OWN = Scaling(torch.tensor([0.1, 2.0, 1e-7]), torch.tensor([1.0, 0.3, 5e8]), torch.tensor([0.0, 1.0, -3.0]))
WHOLE = Blueprint(
    task="classification",
    outputs=2,
    class_names=("ill", "wéll"),
    shape=(3,),
    inputs=RawInputs("table", (InputColumn("age"), InputColumn("colour", ("blue", "red")))),
    scaling=InputScaling("site", None, {"north": OWN, "south": OWN}),
    network=NetworkRecipe("file", "net.py:build", "abc"),
    clients=2,
    sites=("north", "south"),
    personal=True,
    presents=True,
    label="diagnosis",
    site="hospital",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)


def test_it_is_read_back_as_it_was_written() -> None:
    again = Blueprint.from_json(json.loads(json.dumps(WHOLE.as_json())))
    assert again.as_json() == WHOLE.as_json()
    assert torch.equal(again.scaling.sites["north"].std, OWN.std)
    assert again.inputs == WHOLE.inputs
    assert again.network == WHOLE.network


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in some JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


PLACES = places(WHOLE.as_json())[1:]


@given(st.sampled_from(PLACES), VALUES)
def test_anything_else_anywhere_is_understood_or_refused(place: tuple[Any, ...], value: Any) -> None:
    recorded = copy.deepcopy(WHOLE.as_json())
    part = recorded
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with contextlib.suppress(FewfedError):
        Blueprint.from_json(recorded).as_json()


@pytest.mark.parametrize("name", list(WHOLE.as_json()))
def test_nothing_may_be_missing(name: str) -> None:
    recorded = {key: value for key, value in WHOLE.as_json().items() if key != name}
    if name == "fewfed":
        Blueprint.from_json(recorded)
        return
    with pytest.raises(FewfedError):
        Blueprint.from_json(recorded)


@pytest.mark.parametrize("other", ["{", 3, None, [], [["format", 1]]])
def test_json_that_is_no_blueprint_at_all_is_refused(other: Any) -> None:
    with pytest.raises(FewfedError, match="a blueprint is damaged"):
        Blueprint.from_json(other)


def test_only_one_sites_part_is_left_of_it() -> None:
    alone = WHOLE.alone("south")
    assert "north" not in json.dumps(alone.as_json())
    assert not alone.of_site
    assert Blueprint.from_json(json.loads(json.dumps(alone.as_json()))).scaling.common is not None


def test_methods_that_change_test_inputs_are_known() -> None:
    assert changes_inputs(choose("fedharmo").method)
    assert changes_inputs(choose("sem(fedharmo)").method)
    assert not changes_inputs(choose("sem(fedavg)").method)


def test_a_run_has_one(tmp_path: Path) -> None:
    run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    found = Blueprint.from_json(json.loads((tmp_path / "run" / "blueprint.json").read_text()))
    assert found.network == NetworkRecipe("built-in", "mlp")
    assert (found.shape, found.outputs, found.clients, found.sites) == ((1, 8, 8), 10, 6, ())
    assert found.scaling.mode == "pooled"
