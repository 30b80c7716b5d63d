"""A job is made again from its folder, in a process that shares nothing with this one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewfed.conformance.differences import differences
from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import SplitFederation
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.engine.outcomes import Finished
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import Packet, decode
from fewfed.engine.turn import Member, run_turn
from fewfed.phase import Clock
from fewfed.runs.experiment import Resolved, layered
from fewfed.runs.identity import content_of
from fewfed.runs.prepare import Prepared, prepare
from fewfed.runs.remaking import job_in, write
from run_support import small

ELSEWHERE = """
import sys
from pathlib import Path
from fewfed.engine.packet import encode
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.phase import Clock
from fewfed.runs.remaking import job_in

job = job_in(Path(sys.argv[1]))
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


def elsewhere(prepared: Prepared, folder: Path) -> Packet:
    """A client's turn in a fresh interpreter, whose folder is another one."""
    job = OwnFolder(folder / "job")
    write(prepared, job)
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(job.path)], capture_output=True, cwd=folder)
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
def test_a_client_trains_the_same_in_another_process(method: str, tmp_path: Path) -> None:
    prepared = prepare(resolved(method))
    ours, theirs = here(prepared), elsewhere(prepared, tmp_path)
    assert differences(theirs.arrays, ours.arrays) == []
    assert (theirs.round, theirs.sender, theirs.weight, theirs.metrics) == (0, 2, ours.weight, ours.metrics)


def test_the_users_own_data_are_the_same_there(tmp_path: Path) -> None:
    prepared = prepare(resolved(data="ours", split="iid", clients=4), data=own_data())
    assert differences(elsewhere(prepared, tmp_path).arrays, here(prepared).arrays) == []


def test_data_that_a_reader_read_are_scaled_elsewhere_as_they_are_here(tmp_path: Path) -> None:
    """A data set handed over as an object knows constants; without them another process would train on raw pixels."""
    data = load("digits")
    prepared = prepare(resolved(data="digits", split="iid", clients=4), data=data)
    assert prepared.scaling.mode == "pooled"
    assert differences(elsewhere(prepared, tmp_path).arrays, here(prepared).arrays) == []
    assert content_of(data) != content_of(dataclasses.replace(data, scaling=None))


def test_the_rows_come_back_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    before = own_data()
    write(prepare(resolved(data="ours", split="iid", clients=4), data=before), OwnFolder(tmp_path / "job"))
    federation = job_in(tmp_path / "job").federation
    assert isinstance(federation, SplitFederation)
    after = federation.dataset
    assert (after.name, after.classes, after.class_names, after.task) == ("ours", 3, ("a", "b", "c"), "classification")
    assert after.group_names == before.group_names
    assert after.groups.keys() == before.groups.keys()
    assert all(np.array_equal(after.groups[name], before.groups[name]) for name in after.groups)
