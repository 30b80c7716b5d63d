"""Messages between the driver and its actors as plain bytes: JSON and arrays in the format of safetensors.

Ray moves arguments and results between processes in a format of its own. Bytes pass through it as they are, so that
nothing of ours is pickled.
"""

from __future__ import annotations

import json
from typing import Any

from fewfed import tree
from fewfed.engine.packet import TYPES
from fewfed.errors import RunError
from fewfed.tree import Tree

_LENGTH = 8


def packed(message: dict[str, Any], arrays: Tree | None = None) -> bytes:
    """A JSON-able message and a tree of arrays."""
    from safetensors.torch import save

    leaves = [(path, leaf.detach().cpu()) for path, leaf in tree.leaves(arrays or {})]
    for path, leaf in leaves:
        if str(leaf.dtype) not in TYPES:
            raise RunError(f"'{path}' is of {leaf.dtype}: expected one of {', '.join(TYPES)}")
    head = {"message": message, "paths": [path for path, _ in leaves], "empty": list(tree.hollows(arrays or {}))}
    written = json.dumps(head).encode()
    # Numbered, because safetensors reserves some names, and copied, because it refuses tensors that share memory.
    body = save({str(number): leaf.contiguous().clone() for number, (_, leaf) in enumerate(leaves)}) if leaves else b""
    return b"".join((len(written).to_bytes(_LENGTH, "little"), written, body))


def unpacked(content: bytes) -> tuple[dict[str, Any], Tree]:
    """The inverse of `packed`. The arrays are the receiver's own."""
    from safetensors.torch import load

    start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    head = json.loads(content[_LENGTH:start])
    found = load(content[start:]) if head["paths"] else {}
    # Copied to where torch puts arrays: elsewhere they are not aligned, and some sums would round differently.
    flat = {path: found[str(number)].clone() for number, path in enumerate(head["paths"])}
    return head["message"], tree.from_leaves(flat, head["empty"])
