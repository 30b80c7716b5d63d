"""A run's job for processes that are not forked from its own: written into its folder once, and made again from there.

The rows, as they are split and scaled, the first weights and the sites' policy are written down, so that everybody has
the same ones whatever happens to the user's files meanwhile. Code is looked up by name, as when a run is resumed, and
must be what it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import SplitFederation
from fewfed.data.splits import Split
from fewfed.engine import mapped, storage
from fewfed.engine.job import Job
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.records import PhaseRecord, Traffic
from fewfed.engine.remake import Remake
from fewfed.errors import RunError
from fewfed.runs.experiment import Resolved
from fewfed.runs.prepare import Prepared, federation_of, made_from
from fewfed.runs.scaling import InputScaling
from fewfed.runs.seals import read_sealed, write_sealed
from fewfed.runs.user_code import code_of, network_file
from fewfed.version import __version__

FOLDER = "job"
"""In a run folder while the run goes on."""
_FACTS, _MODEL, _POLICY = "job.json", "model.safetensors", "policy.toml"
_PLACES = "places"


@contextmanager
def remakeable(prepared: Prepared, place: OwnFolder) -> Iterator[Job]:
    """The job of a run, which other processes can make too for as long as this lasts. Files are written only if an
    executor asks for them."""
    _clear(place)  # A run that was killed left them.
    folder = place.below(FOLDER)
    why_not = (
        "a network that is an object of a program cannot be made again in another process: name it as a file, "
        "as in network='net.py:build', or use another executor"
        if prepared.own_network
        else ""
    )
    remake = Remake("fewfed.runs.remaking:job_in", folder, lambda to: write(prepared, to), why_not)
    try:
        yield dataclasses.replace(prepared.job, remake=remake)
    finally:
        with contextlib.suppress(RunError, OSError):  # What is left is cleared when the run is resumed.
            _clear(place)


def write(prepared: Prepared, folder: OwnFolder) -> None:
    """Write what `job_in` reads."""
    resolved, job = prepared.resolved, prepared.job
    federation = job.federation
    assert isinstance(federation, SplitFederation)
    dataset, split, held_back = federation.dataset, federation.split, federation.held_back
    folder.make()
    arrays = {
        **{f"{part}.{name}": getattr(getattr(dataset, part), name) for part in ("train", "test") for name in "xy"},
        **{f"groups.{number}": _whole(ids) for number, ids in enumerate(dataset.groups.values())},
        **{f"test_groups.{number}": _whole(ids) for number, ids in enumerate(dataset.test_groups.values())},
        **{f"split.{name}": _whole(getattr(split, name)) for name in ("order", "offsets")},
        **{f"held_back.{name}": _whole(getattr(held_back, name)) for name in ("order", "offsets")},
        **({} if dataset.places is None else {_PLACES: _whole(dataset.places)}),
    }
    if resolved.experiment.policy:
        folder.write(_POLICY, _content(Path(resolved.experiment.policy)))
    facts = {
        "fewfed": __version__,
        "torch": torch.__version__,
        "config": resolved.as_json(),
        "code": _code(resolved),
        "data": {name: getattr(dataset, name) for name in ("name", "class_names", "note", "task")},
        "classes": int(dataset.classes),
        "groups": [*dataset.groups],
        "test_groups": [*dataset.test_groups],
        "group_names": dict(dataset.group_names),
        "split": [split.name, held_back.name],
        "scaling": prepared.scaling.as_json(),
        "measured": [*prepared.scaling.exchange],
        "model": storage.save(folder / _MODEL, job.net.model()),
        "arrays": {name: mapped.save(folder / f"{name}.npy", array) for name, array in arrays.items()},
    }
    write_sealed(folder / _FACTS, facts)


def job_in(path: Path) -> Job:
    """The job that was written into a folder."""
    folder = OwnFolder(path)
    if not folder.exists():
        raise RunError(
            f"this machine does not see the run's folder '{path.parent}': expected --out on storage that all machines "
            "of the cluster share under the same path"
        )
    facts, _ = read_sealed(folder / _FACTS)
    for name, here in (("fewfed", __version__), ("torch", torch.__version__)):
        if facts[name] != here:
            raise RunError(f"this machine has {name} {here}, the run's {facts[name]}: install the same everywhere")
    resolved = Resolved.from_json(facts["config"])
    if _code(resolved) != facts["code"]:
        raise RunError("the file of the method or of the network has changed since the run began: put it back")
    policy = str(path / _POLICY) if resolved.experiment.policy else ""
    experiment = dataclasses.replace(resolved.experiment, policy=policy, start_from="")
    resolved = dataclasses.replace(resolved, experiment=experiment)
    arrays = {name: mapped.load(folder / f"{name}.npy", about) for name, about in facts["arrays"].items()}
    dataset = _dataset(facts, arrays)
    split, held_back = (
        Split(rule, arrays[f"{part}.order"].numpy(), arrays[f"{part}.offsets"].numpy())
        for rule, part in zip(facts["split"], ("split", "held_back"), strict=True)
    )
    # A ledger asks only what was measured, not how much that took.
    exchange = {phase: PhaseRecord(Traffic(), 0, 0, {}, {}, {}) for phase in facts["measured"]}
    scaling = dataclasses.replace(InputScaling.from_json(facts["scaling"]), exchange=exchange)
    job = made_from(resolved, dataset, federation_of(resolved, dataset, split, held_back), scaling).job
    model, _ = storage.load(folder / _MODEL, facts["model"])
    return dataclasses.replace(job, net=job.net.starting_from(model))


def _dataset(facts: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Dataset:
    train, test = (Examples(arrays[f"{part}.x"], arrays[f"{part}.y"]) for part in ("train", "test"))
    about = {**facts["data"], "classes": facts["classes"], "class_names": tuple(facts["data"]["class_names"])}
    groups, test_groups = (
        {name: arrays[f"{kind}.{number}"].numpy() for number, name in enumerate(facts[kind])}
        for kind in ("groups", "test_groups")
    )
    names = {grouping: tuple(found) for grouping, found in facts["group_names"].items()}
    places = arrays[_PLACES].numpy() if _PLACES in arrays else None
    return Dataset(
        train=train, test=test, groups=groups, group_names=names, test_groups=test_groups, places=places, **about
    )


def _content(policy: Path) -> bytes:
    try:
        return policy.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read the policy '{policy}' any more: {error.strerror or error}") from error


def _whole(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


def _code(resolved: Resolved) -> list[Any]:
    return [code_of(resolved.spec), network_file(resolved.experiment.network)]


def _clear(place: OwnFolder) -> None:
    folder = place.below(FOLDER)
    if folder.exists():
        for name in folder.names():
            folder.remove(name)
        folder.path.rmdir()
