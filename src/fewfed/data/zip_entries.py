"""What an entry of a .zip file must not be, wherever such a file is read."""

from __future__ import annotations

import zipfile

ENCRYPTED = 0x1
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What everybody writes. Others may ask for any amount of memory before the first byte is there."""


def refused_entry(entry: zipfile.ZipInfo) -> str:
    """Why an entry is not read, or nothing."""
    if entry.flag_bits & ENCRYPTED:
        return "is encrypted: expected one without a password"
    if entry.compress_type not in METHODS:
        return f"is packed in an unknown way (method {entry.compress_type}): expected deflate, or not packed at all"
    return ""
