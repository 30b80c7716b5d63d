"""A job is made again from its recipe, in a process that shares nothing with this one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fewfed import Experiment
from fewfed.conformance.differences import differences
from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.options import DataOptions
from fewfed.data.saved import read, save
from fewfed.data.sources import load
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import Packet, decode
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError, DataError
from fewfed.phase import Clock
from fewfed.runs.experiment import Resolved, layered
from fewfed.runs.identity import content_of
from fewfed.runs.prepare import Prepared, prepare
from fewfed.runs.recipe import Recipe, recipe_of
from run_support import small

ELSEWHERE = """
import json, sys
from fewfed.engine.packet import encode
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.phase import Clock
from fewfed.runs.recipe import Recipe

prepared = Recipe.from_json(json.load(sys.stdin)).prepare()
job = prepared.job
phase, clock = job.method.phases(Clock(0, 3, 1))[0], Clock(0, 3, 1)
server = job.method.server_init(job.setup)
member = Member(2, phase.does.personal(server, 2), job.method.client_init(job.setup))
with one_thread():  # As every executor does; more of them add up in another order.
    found = run_turn(job, phase, clock, phase.does.broadcast(server), member)
sys.stdout.buffer.write(encode(found.packet))
"""


def resolved(method: str = "fedavg", **changes: Any) -> Resolved:
    return layered(method, {}, small(**changes), {"epochs": 1}, DataOptions())


def here(prepared: Prepared) -> Packet:
    job, clock = prepared.job, Clock(0, 3, 1)
    phase = job.method.phases(clock)[0]
    server = job.method.server_init(job.setup)
    member = Member(2, phase.does.personal(server, 2), job.method.client_init(job.setup))
    found = run_turn(job, phase, clock, phase.does.broadcast(server), member)
    assert isinstance(found, Finished)
    return found.packet


def elsewhere(recipe: Recipe, folder: Path) -> Packet:
    """A client's turn in a fresh interpreter, whose folder is another one."""
    written = json.dumps(recipe.as_json()).encode()
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=written, capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return decode(done.stdout)


def own_data() -> Dataset:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 3, 5, generator=generator), torch.arange(60) % 3
    sites = {"site/of origin": np.arange(60) % 4}
    return Dataset(
        "ours", Examples(x, y), Examples(x[:9], y[:9]), 3, ("a", "b", "c"), sites, {"site/of origin": ("n",)}
    )


@pytest.mark.parametrize("method", ["scaffold", "fedfa(fedprox)"])
def test_a_client_trains_the_same_from_the_recipe_in_another_process(method: str, tmp_path: Path) -> None:
    prepared = prepare(resolved(method))
    ours, theirs = here(prepared), elsewhere(recipe_of(prepared, tmp_path / "recipe"), tmp_path)
    assert differences(theirs.arrays, ours.arrays) == []
    assert (theirs.round, theirs.sender, theirs.weight, theirs.metrics) == (0, 2, ours.weight, ours.metrics)
    assert not (tmp_path / "recipe").exists()  # Data found by name are not copied.


def test_the_users_own_data_travel_in_a_file(tmp_path: Path) -> None:
    prepared = prepare(resolved(data="ours", split="iid", clients=4), data=own_data())
    recipe = recipe_of(prepared, tmp_path / "recipe")
    assert differences(elsewhere(recipe, tmp_path).arrays, here(prepared).arrays) == []


def test_saved_data_come_back_as_they_were(tmp_path: Path) -> None:
    before = own_data()
    save(before, tmp_path / "data")
    after = read(tmp_path / "data")
    for part in ("train", "test"):
        for array in ("x", "y"):
            assert torch.equal(getattr(getattr(after, part), array), getattr(getattr(before, part), array))
    assert (after.name, after.classes, after.class_names, after.task) == ("ours", 3, ("a", "b", "c"), "classification")
    assert after.group_names == before.group_names
    assert after.groups.keys() == before.groups.keys()
    assert all(np.array_equal(after.groups[name], before.groups[name]) for name in after.groups)


def test_data_that_a_reader_read_are_scaled_elsewhere_as_they_are_here(tmp_path: Path) -> None:
    """A data set handed over as an object knows constants; without them another process would train on raw pixels."""
    data = load("digits")
    prepared = prepare(resolved(data="digits", split="iid", clients=4), data=data)
    assert prepared.scaling.mode == "pooled"
    recipe = recipe_of(prepared, tmp_path / "recipe")
    assert differences(elsewhere(recipe, tmp_path).arrays, here(prepared).arrays) == []
    assert content_of(data) != content_of(dataclasses.replace(data, scaling=None))


def test_a_network_object_cannot_be_rebuilt_and_is_refused() -> None:
    prepared = prepare(resolved(), network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ConfigError, match="no other can rebuild: expected a network by its name"):
        recipe_of(prepared, Path("nowhere"))


def test_a_recipe_that_leads_to_another_job_is_refused(tmp_path: Path) -> None:
    data = own_data()
    prepared = prepare(resolved(data="ours", split="iid", clients=4), data=data)
    recipe = recipe_of(prepared, tmp_path)
    save(Dataset("ours", Examples(data.train.x, data.train.y.flip(0)), data.test, 3), Path(recipe.data))
    with pytest.raises(ConfigError, match="leads to another job here, in its data, labels"):
        recipe.prepare()


@pytest.mark.parametrize("content", [None, b"", b"not a file of ours", b"\x08\0\0\0\0\0\0\0{}      "])
def test_bad_data_files_are_refused_with_a_sentence(content: bytes | None, tmp_path: Path) -> None:
    recipe = recipe_of(prepare(resolved(data="ours", split="iid", clients=4), data=own_data()), tmp_path)
    file = Path(recipe.data)
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(DataError, match="data"):
        recipe.prepare()


def test_a_damaged_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="a recipe is damaged"):
        Recipe.from_json({"config": {}})
    with pytest.raises(ConfigError, match="recorded configuration is damaged"):
        Recipe.from_json({"config": {"method": "fedavg"}, "inputs": {}, "data": ""}).prepare()


def test_a_recipe_names_only_what_json_can_say() -> None:
    recipe = recipe_of(prepare(resolved("flea")), Path("nowhere"))
    assert Recipe.from_json(json.loads(json.dumps(recipe.as_json()))) == Recipe(
        json.loads(json.dumps(dict(recipe.config))), recipe.inputs
    )
    assert Experiment(**recipe.config["experiment"]) == small(split="qua:2")
