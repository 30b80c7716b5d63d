"""Helpers for tests of federations: five sites of digits, together in one file and each in its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from in_process import InProcess

from fewfed.data.examples import Dataset
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.deploy.coordinator.run import Coordinator
from fewfed.deploy.coordinator.settings import read_config
from fewfed.deploy.security.keys import SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.site.site import Settings, Site

NAMES = ("amber", "birch", "cedar", "delta", "ember")
ROWS, TESTS = (24, 18, 30, 12, 21), 15
"""Training rows of each site, and test rows of every one."""


def write_digits(folder: Path, names: tuple[str, ...] = NAMES, rows: tuple[int, ...] = ROWS) -> Path:
    """A file with all rows and a column of sites, and a file for each site; the first of them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(5).permutation(len(digits.target))
    parts, start = [], 0
    for number, (name, count) in enumerate(zip(names, rows, strict=True)):
        # Sites have different digits more often than not, and different brightness.
        chosen = order[start : start + count + TESTS]
        start += count + TESTS
        x = digits.data[chosen].astype(np.float32) * (1 + 0.1 * number)
        marks = np.arange(len(chosen)) >= count
        part = {"x": x, "y": digits.target[chosen], "held": marks}
        np.savez(folder / f"{name}.npz", **part)
        parts.append({**part, "site": np.full(len(chosen), name)})
    np.savez(folder / "all.npz", **{key: np.concatenate([part[key] for part in parts]) for key in parts[0]})
    return folder / "all.npz"


CONFIG = """
method = "{method}"
rounds = {rounds}
network = "mlp"
seed = 3
{more}
[training]
epochs = 2
batch = 8
lr = 0.05
[federation]
shape = [64]
classes = 10
wait = 0
quorum = {quorum}
deadline = {deadline}
pace = 0.001
{federation}
"""


@dataclass
class Federation:
    """A coordinator and its sites in one process."""

    folder: Path
    method: str = "fedavg"
    rounds: int = 5
    more: str = ""
    federation: str = ""
    quorum: int = 5
    deadline: float = 20.0
    names: tuple[str, ...] = NAMES
    policies: dict[str, str] = field(default_factory=dict)
    out: str = "run"
    keys: dict[str, SigningKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.keys:
            self.keys = {name: SigningKey.new() for name in (COORDINATOR, *self.names)}
        (self.folder / "serve.toml").write_text(
            CONFIG.format(
                method=self.method,
                rounds=self.rounds,
                more=self.more,
                federation=self.federation,
                quorum=self.quorum,
                deadline=self.deadline,
            )
        )
        self.transport = InProcess({name: self.site(name).answer for name in self.names})

    def site(self, name: str, data: Dataset | None = None) -> Site:
        policy = None
        if name in self.policies:
            policy = self.folder / f"{name}.toml"
            policy.write_text(self.policies[name])
        return Site(
            Settings(
                name=name,
                key=self.keys[name],
                coordinator={COORDINATOR: self.keys[COORDINATOR].public},
                dataset=site_data(self.folder / f"{name}.npz") if data is None else data,
                folder=self.folder / f"state-{self.out}-{name}",
                policy=policy,
                peers={name: key.public for name, key in self.keys.items() if name != COORDINATOR},
            )
        )

    def coordinator(self) -> Coordinator:
        config = read_config(self.folder / "serve.toml", lambda _: self.names)
        keys = {name: self.keys[name].public for name in self.names}
        return Coordinator(config, self.keys[COORDINATOR], keys, self.folder / self.out)

    def run(self, **options: Any) -> Any:
        return self.coordinator().run(self.transport, **options)


def site_data(path: Path) -> Dataset:
    return load(str(path), options=DataOptions(test_column="held", normalise="none"), seed=0)


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two trees, relative to the largest number of each leaf."""
    if isinstance(ours, torch.Tensor):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if not ours.numel():
            return 0.0
        scale = max(1.0, float(theirs.double().abs().max()))
        return float((ours.double() - theirs.double()).abs().max()) / scale
    assert ours.keys() == theirs.keys()
    return max((difference(ours[name], theirs[name]) for name in ours), default=0.0)
