"""What a federation costs beside the training: an empty phase, and rounds with an 8 MB model, five sites on loopback.

python benchmarks/federation.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "deploy"))
from federation import NAMES
from real import Real

from fewfed.data.readers.options import DataOptions
from fewfed.deploy.coordinator.opening import Opening
from fewfed.deploy.coordinator.post import Patience, Post
from fewfed.deploy.coordinator.settings import read_config
from fewfed.deploy.flower.hub import FlowerHub
from fewfed.deploy.flower.superlink import SuperLink, Tls
from fewfed.deploy.model import network_of
from fewfed.deploy.security.key_folder import KeyFolder
from fewfed.runs.identity import weights_of

LARGE = """
method = "fedavg"
rounds = 6
network = "mcmahan-cnn"
evaluate_every = 100
normalise = "none"
[training]
epochs = 1
batch = 4
[federation]
address = "127.0.0.1:{port}"
shape = [1, 32, 32]
classes = 10
quorum = 5
wait = 0
"""


def empty_phases(real: Real) -> tuple[float, float]:
    """Seconds of one phase in which five sites have next to nothing to do: the median, and the longest of 30."""
    real.configure("empty", "fedavg", 1)
    config = read_config(real.folder / "empty.toml", lambda keys: KeyFolder(keys).roster().sites)
    keys = KeyFolder(config.keys)
    roster = keys.roster()
    tls = Tls(*(config.keys / name for name in ("ca.crt", "server.crt", "server.key")))
    hub = FlowerHub(
        SuperLink(config.federation.address, tls, real.folder / "flower"),
        {name: member.node for name, member in roster.sites.items()},
    )
    try:
        offer = config.offer()
        post = Post(hub, "run-empty", keys.coordinator_key(), roster.keys, 0, Patience(quorum=5, pace=0.02))
        opening = Opening(post, offer, weights_of(network_of(config.resolved.experiment, offer)))
        opening.wait(5, 0)
        seconds = []
        for _ in range(10):  # Three phases each.
            began = time.perf_counter()
            opening.measure(DataOptions())
            seconds.append((time.perf_counter() - began) / 3)
        return statistics.median(seconds), max(seconds)
    finally:
        hub.close()


def large_rounds(real: Real) -> tuple[float, float, float]:
    """Megabytes of the model; seconds of a round without the first: the median, and the longest."""
    random = np.random.default_rng(0)
    for name in NAMES:
        held = np.arange(8) >= 4
        x = random.normal(size=(8, 1, 32, 32)).astype(np.float32)
        np.savez(real.folder / f"{name}.npz", x=x, y=np.arange(8), held=held)
    (real.folder / "large.toml").write_text(LARGE.format(port=real.port))
    real.start_sites()
    real.start("large", "serve", "large.toml", "--out", "large")
    out = real.finished("large", 300)
    rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = [each["train_seconds"] for each in rounds[1:]]
    size = rounds[1]["bytes"]["up"] / len(NAMES) / 1e6
    return size, statistics.median(seconds), max(seconds)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        real = Real(Path(folder))
        try:
            real.start_sites()
            median, longest = empty_phases(real)
            print(f"an empty phase, five sites: median {median:.3f} s, longest {longest:.3f} s", flush=True)
        finally:
            real.close()
    with tempfile.TemporaryDirectory() as folder:
        real = Real(Path(folder))
        try:
            size, median, longest = large_rounds(real)
            print(f"a round with a model of {size:.1f} MB, five sites: median {median:.2f} s, longest {longest:.2f} s")
        except (AssertionError, subprocess.TimeoutExpired):
            print(real.log("large"), real.log(NAMES[0]))
            raise
        finally:
            real.close()


if __name__ == "__main__":
    main()
