"""What of a federation's cost is not Flower's: the same as `benchmarks/federation.py` with sites in this process.

    python benchmarks/federation_share.py

Letters are made, signed, checked, answered and written down as between machines; only nothing is sent. What the other
benchmark takes longer is Flower's, the network's and the processes'. Sites answer one after another here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "deploy"))
from federation import NAMES, Federation, write_digits

from fewfed.data.readers.options import DataOptions
from fewfed.deploy.coordinator.opening import Opening
from fewfed.deploy.coordinator.post import Patience, Post
from fewfed.deploy.model import network_of
from fewfed.deploy.security.names import COORDINATOR
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import weights_of


def empty_phases(folder: Path) -> float:
    """Seconds of a phase in which five sites have next to nothing to do."""
    write_digits(folder)
    federation = Federation(folder, rounds=1)
    coordinator = federation.coordinator()
    offer, patience = coordinator.config.offer(), Patience(quorum=5, pace=0.001)
    post = Post(federation.transport, "run-1", federation.keys[COORDINATOR], coordinator.sites, 0, patience)
    opening = Opening(post, offer, weights_of(network_of(coordinator.config.resolved.experiment, offer)))
    opening.wait(5, 0)
    seconds = []
    for _ in range(10):  # Three phases each.
        began = time.perf_counter()
        opening.measure(DataOptions())
        seconds.append((time.perf_counter() - began) / 3)
    return statistics.median(seconds)


def large_rounds(folder: Path) -> tuple[float, float]:
    """Megabytes of the model, and seconds of a round without the first."""
    random = np.random.default_rng(0)
    for name in NAMES:
        x = random.normal(size=(8, 1, 32, 32)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(8), held=np.arange(8) >= 4)
    more = 'evaluate_every = 100\nnormalise = "none"'
    federation = Federation(folder, rounds=6, more=more)
    path = folder / "serve.toml"
    text = path.read_text().replace('"mlp"', '"mcmahan-cnn"').replace("[64]", "[1, 32, 32]")
    path.write_text(text.replace("epochs = 2", "epochs = 1").replace("batch = 8", "batch = 4"))
    records = RunFolder(Path(federation.run().folder)).metrics()[1:]
    size = records[0]["bytes"]["up"] / len(NAMES) / 1e6
    return size, statistics.median(record["train_seconds"] for record in records)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print(f"an empty phase, five sites in one process: {empty_phases(Path(folder)):.3f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        size, seconds = large_rounds(Path(folder))
        print(f"a round with a model of {size:.1f} MB, five sites in one process: {seconds:.2f} s")


if __name__ == "__main__":
    main()
