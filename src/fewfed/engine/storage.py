"""Trees on disk as safetensors, never pickle. A file carries a digest of its content, and nothing else is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fewfed import tree
from fewfed.engine.own_folder import MOST_BYTES, File
from fewfed.errors import RunError
from fewfed.tree import Tree

_LENGTH = 8
"""Bytes at the beginning of a safetensors file that give the length of its header."""
_MOST_HEADER = 100_000_000
_DIGEST_BYTES = 16


class Damaged(RunError):
    """A file is not as it was written."""


def save(
    place: Path | File, arrays: Mapping[str, Any], facts: Mapping[str, Any] | None = None, durable: bool = True
) -> str:
    """Write a tree, and JSON-able facts beside it, atomically; the digest of both. `durable`: as in `OwnFolder`."""
    from safetensors.torch import save as to_bytes

    file = _file(place)
    flat = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in tree.leaves(arrays)}
    header = {
        "facts": json.dumps(dict(facts or {})),
        "empty": json.dumps(list(tree.hollows(arrays))),
        # safetensors sorts tensors by name, but sums over leaves must be taken in the original order.
        "order": json.dumps(list(flat)),
    }
    digest = _digest(header, flat)
    file.folder.write(file.name, to_bytes(flat, metadata={**header, "digest": digest}), durable)
    return digest


def load(place: Path | File, expected: str = "", most: int = MOST_BYTES) -> tuple[Tree, dict[str, Any]]:
    """The tree and the facts of a file that `save` wrote; `Damaged` where it is not as it was written.

    `expected`: the digest it must have, where another file names it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    file = _file(place)
    content = file.folder.read(file.name, most)
    header = _header(content, file)
    try:
        facts, empty, order = (json.loads(header[name]) for name in ("facts", "empty", "order"))
        found = from_bytes(content)
        # Copied to where torch puts arrays: in the file they are not aligned, and some sums would round differently.
        flat: dict[str, Tensor] = {name: found[name].clone() for name in order}
        digest = _digest(header, flat)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        # A RuntimeError is also what Python says of JSON that is nested too deeply.
        raise _damaged(file, type(error).__name__) from error
    if len(flat) != len(found) or header.get("digest") != digest:
        raise _damaged(file, "its content does not fit its digest")
    if expected and digest != expected:
        raise _damaged(file, "it is not the file that the checkpoint names")
    try:
        return tree.from_leaves(flat, empty), facts
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, type(error).__name__) from error


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    file = File.at(path)
    file.folder.write(file.name, content)


def digest_of(content: bytes | Sequence[bytes]) -> str:
    """A short digest of some bytes."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in [content] if isinstance(content, bytes) else content:
        found.update(part)
    return found.hexdigest()


def _header(content: bytes, file: File) -> dict[str, str]:
    """The facts in a file's header. What it claims is compared with what is there before anything is built."""
    length = int.from_bytes(content[:_LENGTH], "little")
    if len(content) < _LENGTH or length > min(_MOST_HEADER, len(content) - _LENGTH):
        raise _damaged(file, f"a header of {length} bytes in {len(content)}")
    try:
        header = json.loads(content[_LENGTH : _LENGTH + length])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, type(error).__name__) from error
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise _damaged(file, "an odd header")
    return header


def _digest(header: Mapping[str, str], flat: Mapping[str, Tensor]) -> str:
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in ("facts", "empty", "order"):
        found.update(f"{len(header[name])} {header[name]}".encode())
    for name, leaf in flat.items():
        found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(tree.content(leaf))
    return found.hexdigest()


def _damaged(file: File, why: str) -> Damaged:
    return Damaged(f"'{file.path}' is damaged ({why}): expected a file as this program wrote it")


def _file(place: Path | File) -> File:
    return place if isinstance(place, File) else File.at(place)
