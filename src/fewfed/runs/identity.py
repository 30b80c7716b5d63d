"""What makes two runs the same: their data and first weights, their network, their machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfed import tree
from fewfed.data.examples import Dataset
from fewfed.data.fingerprint import digest_file, fingerprint
from fewfed.data.limits import Limits
from fewfed.data.readers.opening import size_of
from fewfed.data.splits import parse_rule
from fewfed.errors import RunError, concerning
from fewfed.network import Network
from fewfed.runs.experiment import AUTO, Resolved
from fewfed.runs.folder import CONFIG, RunFolder
from fewfed.runs.user_code import code_of, network_file


def sources_of(resolved: Resolved, own_data: str | None = None) -> dict[str, Any]:
    """What identifies the files a run is made from, without reading data: they are hashed once and then remembered.

    `own_data`: the digest of the user's own object, where the data are no file.
    """
    data = fingerprint(resolved.experiment.data, resolved.options) if own_data is None else own_data
    found = {"data": data, "code": code_of(resolved.spec)}
    own_network = network_file(resolved.experiment.network)
    if own_network is not None:
        found["network"] = own_network
    with concerning("split", resolved.experiment.split):
        rule = resolved.experiment.split
        split = None if rule == AUTO else parse_rule(rule).path
        if split is not None:
            size_of(split, Limits())  # Refuses what is no file, before its digest is taken.
            found["split"] = digest_file(split)
    return found


def inputs_of(dataset: Dataset, net: Network, sources: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the data, the user's code and the first weights."""
    labels = torch.cat([dataset.train.y, dataset.test.y]).numpy().tobytes()
    return {
        **sources,
        "shape": list(dataset.shape),
        "labels": hashlib.sha256(labels).hexdigest(),
        "weights": weights_of(net),
    }


def weights_of(net: Network) -> str:
    """A digest of the weights that a run starts from."""
    found = hashlib.sha256()
    for name, leaf in tree.leaves(net.model()):
        found.update(name.encode())
        found.update(tree.content(leaf))
    return found.hexdigest()


def content_of(dataset: Dataset) -> str:
    """A digest of the user's own data."""
    found = hashlib.blake2b(digest_size=16)
    for part in (dataset.train.x, dataset.train.y, dataset.test.x, dataset.test.y):
        found.update(f"{part.dtype} {tuple(part.shape)}".encode())
        found.update(tree.content(part))
    for groups in (dataset.groups, dataset.test_groups):
        for name, ids in sorted(groups.items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(ids).tobytes())
    if dataset.scaling is not None:  # Inputs may be scaled by what their reader found out.
        found.update(json.dumps([dataset.scaling.as_json(), dataset.is_scaled]).encode())
    return found.hexdigest()


def signature(net: Network) -> str:
    """A digest of what a network computes, whatever its weights are."""
    parts = [f"{stage}: {net.module(stage)!r}" for stage in net.stages]
    leaves = [f"{path} {leaf.dtype} {tuple(leaf.shape)}" for path, leaf in tree.leaves(net.model())]
    return hashlib.sha256("\n".join([*parts, *leaves]).encode()).hexdigest()


def refuse_other_run(path: Path, resolved: Resolved, inputs: Mapping[str, Any]) -> None:
    """Raise where a folder holds another run than this one: other settings or other inputs (`refuse_other_inputs`)."""
    folder, config = RunFolder.open(path)
    if Resolved.from_json(config).identity != resolved.identity:
        raise RunError(f"'{path}' holds a run with other settings: choose another --out or remove it")
    refuse_other_inputs(inputs, folder, config)


def refuse_other_runs(runs: Iterable[tuple[Path, Resolved]], own_data: str | None = None) -> None:
    """The same for those of many runs that have been started. Files that they share are looked at once.

    `own_data`: the digest of the user's own object, where the data are no file.
    """
    known: dict[str, dict[str, Any]] = {}
    for path, resolved in runs:
        if (path / CONFIG).exists():
            experiment = resolved.experiment
            key = f"{experiment.data} {experiment.split} {experiment.network} {resolved.options} {resolved.spec}"
            if key not in known:
                known[key] = sources_of(resolved, own_data)
            refuse_other_run(path, resolved, known[key])


def refuse_other_inputs(found: Mapping[str, Any], folder: RunFolder, config: Mapping[str, Any]) -> None:
    """A run is only continued, and its result only believed, with the inputs it was started with.

    `found` may be a part of the inputs, such as `sources_of` gives.
    """
    recorded = config.get("inputs")
    recorded = recorded if isinstance(recorded, dict) else {}
    differ = [name for name, value in found.items() if recorded.get(name) != value]
    if differ:
        changed = next(what for name, what in _INPUTS.items() if name in differ)
        raise RunError(
            f"'{folder.path}' was started with {changed}: put it back as it was (own objects are given in Python as "
            f"data= and network=), or start anew with another --out"
        )


_INPUTS = {
    "code": "another version of the method's file",
    "network": "other code of the network",
    "split": "another split (the content of its file has changed)",
    "data": "other data (the content of its files has changed)",
    "labels": "other data",
    "shape": "other data",
    "weights": "another network",
}
"""What is said where a part of the inputs differs; the first that does is named."""
