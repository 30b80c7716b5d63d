"""The lines of metrics of a run, from which a checkpoint takes along those of its rounds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Packed:
    """The lines of the first rounds, compressed."""

    rounds: int
    chain: str
    """The digest of the last line."""
    compressed: bytes
    compressor: Any
    """Goes on where they end."""


class RoundLines:
    """One line a finished round. An interrupt may come between any two statements: what was added stays consistent."""

    def __init__(self, chain: str = "", lines: Sequence[bytes] = ()) -> None:
        """`chain`: the digest of the last line, or where there is none, of what comes before the first."""
        compressor = zlib.compressobj()
        self._packed = _Packed(len(lines), chain, compressor.compress(b"".join(lines)), compressor)
        self._waiting: list[tuple[bytes, str]] = []

    @property
    def chain(self) -> str:
        return self._waiting[-1][1] if self._waiting else self._packed.chain

    def add(self, line: bytes, chain: str) -> None:
        self._waiting.append((line, chain))

    def until(self, rounds: int) -> tuple[bytes, str]:
        """The lines of the first rounds, compressed, and the digest of the last. Never fewer than were asked before."""
        fresh = self._waiting[: rounds - self._packed.rounds]
        if fresh:
            compressor = self._packed.compressor.copy()
            compressed = self._packed.compressed + compressor.compress(b"".join(line for line, _ in fresh))
            packed = _Packed(self._packed.rounds + len(fresh), fresh[-1][1], compressed, compressor)
            self._packed, self._waiting = packed, self._waiting[len(fresh) :]
        return self._packed.compressed + self._packed.compressor.copy().flush(), self._packed.chain
