"""Pictures as PNG files, without a library."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

_SMALLEST = 64
"""Pixels that a picture's longer side is brought to by repeating pixels: digits of 8x8 could not be seen."""
_BETWEEN = 2


def grid(rows: Tensor, least: float, most: float) -> bytes:
    """Rows of pictures, (rows, pictures, channels, height, width), as one PNG file. Three channels are colours; of any
    other number the first is shown."""
    values = ((rows.detach().float().cpu() - least) / max(most - least, 1e-12)).clamp(0, 1)
    values = values if values.shape[2] == 3 else values[:, :, :1].expand(-1, -1, 3, -1, -1)
    times = max(1, _SMALLEST // max(values.shape[3:]))
    pixels = (255 * values).round().to(torch.uint8).repeat_interleave(times, 3).repeat_interleave(times, 4)
    count, across, _, height, width = pixels.shape
    page = torch.full(
        (3, count * (height + _BETWEEN) + _BETWEEN, across * (width + _BETWEEN) + _BETWEEN), 255, dtype=torch.uint8
    )
    for down in range(count):
        for right in range(across):
            top, left = _BETWEEN + down * (height + _BETWEEN), _BETWEEN + right * (width + _BETWEEN)
            page[:, top : top + height, left : left + width] = pixels[down, right]
    return png(page)


def png(page: Tensor) -> bytes:
    """A picture of whole numbers from 0 to 255, (3, height, width), as a PNG file."""
    _, height, width = page.shape
    lines = page.permute(1, 2, 0).reshape(height, 3 * width)
    # Each line begins with the number of its filter, 0 for none.
    content = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), lines], 1).contiguous().numpy().tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(content, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
