"""Digests in the JSON files of a run folder, so that damage is noticed: one in each file and in each line of metrics.

A line's digest includes that of the line before, and the first that of the configuration: a line that is changed,
missing or out of place breaks the chain. This finds accidents and careless edits. It is no signature: whoever forges a
file on purpose can compute a digest as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fewfed.engine.own_folder import File
from fewfed.engine.storage import Damaged, digest_of

DIGEST, CHAIN = "digest", "chain"

MOST_BYTES = 1 << 28
"""The largest JSON file that is read."""


def sealed(content: Mapping[str, Any]) -> tuple[bytes, str]:
    """A JSON file with its digest, and the digest."""
    digest = digest_of(_canonical(content))
    return (json.dumps({**content, DIGEST: digest}, indent=1) + "\n").encode(), digest


def write_sealed(file: File, content: Mapping[str, Any]) -> str:
    """Write a JSON file with its digest; the digest."""
    written, digest = sealed(content)
    file.folder.write(file.name, written)
    return digest


def read_sealed(file: File) -> tuple[dict[str, Any], str]:
    """The content of a file that `write_sealed` wrote, and its digest; `Damaged` where it is not as it was written."""
    content = parsed(file.folder.read(file.name, MOST_BYTES), file)
    digest = content.pop(DIGEST, None)
    if digest != digest_of(_ordered(content)):
        raise Damaged(f"'{file.path}' is damaged: its content does not fit its digest")
    return content, str(digest)


def parsed(text: bytes, file: File) -> dict[str, Any]:
    """A JSON object, or `Damaged`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"'{file.path}' is damaged: expected JSON as this program wrote it") from error
    if not isinstance(content, dict):
        raise Damaged(f"'{file.path}' is damaged: expected a JSON object")
    return content


def linked(record: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A line of metrics that follows one with the digest `before`, and its own digest."""
    digest = digest_of([before.encode(), _canonical(record)])
    return (json.dumps({**record, CHAIN: digest}) + "\n").encode(), digest


def unlinked(line: bytes, before: str, file: File) -> tuple[dict[str, Any], str]:
    """The record in a line, and its digest; `Damaged` where it does not follow the line before."""
    record = parsed(line, file)
    found = record.pop(CHAIN, None)
    if found != digest_of([before.encode(), _ordered(record)]):
        raise Damaged(f"'{file.path}' is damaged from round {record.get('round')!r:.20} on: its digests do not fit")
    return record, str(found)


def _canonical(content: Mapping[str, Any]) -> bytes:
    # As it will be read back: keys are text then, and tuples are lists.
    return _ordered(json.loads(json.dumps(content)))


def _ordered(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
