"""What makes two runs the same: their data and first weights, their network, their machine."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import torch

from fewfed import tree
from fewfed.data.examples import Dataset
from fewfed.errors import RunError
from fewfed.network import Network
from fewfed.runs.folder import RunFolder
from fewfed.version import __version__


def inputs_of(dataset: Dataset, net: Network) -> dict[str, Any]:
    """What identifies the data and the first weights."""
    weights = hashlib.sha256()
    for name, leaf in tree.leaves(net.model()):
        weights.update(name.encode() + leaf.contiguous().numpy().tobytes())
    labels = torch.cat([dataset.train.y, dataset.test.y]).numpy().tobytes()
    return {
        "shape": list(dataset.shape),
        "labels": hashlib.sha256(labels).hexdigest(),
        "weights": weights.hexdigest(),
    }


def signature(net: Network) -> str:
    """A digest of what a network computes, whatever its weights are."""
    parts = [f"{stage}: {net.module(stage)!r}" for stage in net.stages]
    leaves = [f"{path} {leaf.dtype} {tuple(leaf.shape)}" for path, leaf in tree.leaves(net.model())]
    return hashlib.sha256("\n".join([*parts, *leaves]).encode()).hexdigest()


def refuse_other_inputs(found: dict[str, Any], folder: RunFolder, config: dict[str, Any]) -> None:
    """A run is only continued with the data and the network it was started with."""
    recorded = config.get("inputs")
    if recorded == found:
        return
    same_weights = isinstance(recorded, dict) and recorded.get("weights") == found["weights"]
    what = "other data" if same_weights else "another network or other data"
    raise RunError(f"'{folder.path}' was started with {what}: give it the same again, in Python as data= and network=")


def machine() -> dict[str, Any]:
    """What decides which way of computing is fastest here, and how numbers round."""
    return {
        "fewfed": __version__,
        "torch": torch.__version__,
        "processor": _processor(),
        "kernels": [torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
