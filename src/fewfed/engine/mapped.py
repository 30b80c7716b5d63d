"""Large arrays in files that several processes of a machine look at without copies of their own.

A file is NumPy's format, whose numbers begin where torch would put them in memory, so that sums round alike. The memory
order of an array is kept: convolutions compute in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.engine.own_folder import File
from fewfed.engine.packet import TYPES
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError


def save(file: File, array: Tensor) -> dict[str, Any]:
    """Write an array; what `load` must be told of it."""
    strides = array.stride()
    order = sorted(range(array.dim()), key=lambda axis: -strides[axis])
    stored = array.detach().permute(order).contiguous()
    try:
        with file.folder.descriptor_of(file.name) as descriptor, os.fdopen(os.dup(descriptor), "wb") as out:
            out.truncate(0)
            np.lib.format.write_array(out, _bytes(stored), allow_pickle=False)
    except OSError as error:
        raise RunError(f"cannot write '{file.path}': {error.strerror or error}; choose another --out") from error
    return {"type": str(array.dtype), "shape": list(stored.shape), "order": order, "digest": _digest(stored)}


def load(file: File, about: Mapping[str, Any]) -> Tensor:
    """The array of a file; `Damaged` where it is not as it was written. Changes stay in this process."""
    try:
        if 0 in about["shape"]:  # Nothing can be mapped.
            stored = torch.empty(about["shape"], dtype=TYPES[about["type"]])
        else:
            flat = torch.from_numpy(np.load(file.path, mmap_mode="c", allow_pickle=False))
            stored = flat.view(TYPES[about["type"]]).reshape(about["shape"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise Damaged(f"'{file.path}' is missing or damaged ({type(error).__name__}): start the run again") from error
    if _digest(stored) != about["digest"]:
        raise Damaged(f"'{file.path}' is damaged: its content does not fit its digest; start the run again")
    return stored.permute([about["order"].index(axis) for axis in range(stored.dim())])


def _digest(stored: Tensor) -> str:
    return hashlib.blake2b(_bytes(stored).data, digest_size=16).hexdigest()


def _bytes(stored: Tensor) -> np.ndarray:
    flat: np.ndarray = stored.reshape(-1).view(torch.uint8).numpy() if stored.numel() else np.empty(0, np.uint8)
    return flat
