"""Two peers import torchvision without using its compiled operators.

A torchvision wheel built for CUDA cannot load them beside a CPU build of torch, and then fails to import because it
describes some of them to torch. Importing this module first declares those operators where they are missing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch


def _loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    library = Path(spec.origin).parent / "_C.so"
    try:
        torch.ops.load_library(str(library))
    except OSError:
        return False
    return True


if not _loads():
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
