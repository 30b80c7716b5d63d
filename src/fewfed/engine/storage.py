"""Trees on disk as safetensors, never pickle. A file appears whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fewfed import tree
from fewfed.errors import RunError
from fewfed.tree import Tree


def save(path: Path, arrays: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> None:
    """Write a tree, and JSON-able facts beside it, atomically: a crash or a full disk leaves the old file as it was."""
    from safetensors.torch import save as to_bytes

    flat = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in tree.leaves(arrays)}
    write(
        path,
        to_bytes(
            flat,
            metadata={
                "facts": json.dumps(dict(facts or {})),
                "empty": json.dumps(list(tree.hollows(arrays))),
                # safetensors sorts tensors by name, but sums over leaves must be taken in the original order.
                "order": json.dumps(list(flat)),
            },
        ),
    )


def load(path: Path) -> tuple[Tree, dict[str, Any]]:
    """The tree and the facts of a file that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            facts, empty = json.loads(header.get("facts", "{}")), json.loads(header.get("empty", "[]"))
            order = json.loads(header["order"]) if "order" in header else file.keys()
            flat: dict[str, torch.Tensor] = {name: file.get_tensor(name).clone() for name in order}
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"cannot read '{path.name}': {error}; expected a file written by this program") from error
    return tree.from_leaves(flat, empty), facts


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(
            f"cannot write '{path}': {error.strerror or error}; what was there before is unchanged"
        ) from error
