"""Packets whose change is too long are refused, whatever rule combines the others."""

from __future__ import annotations

from dataclasses import dataclass

from fewfed.engine.robust.bound import Bound
from fewfed.engine.robust.parts import Gathered, is_measured
from fewfed.phase import Upload


@dataclass(frozen=True)
class NormBound:
    """How long the change of every part of a client's uploads may be."""

    bound: Bound

    def covers(self, upload: Upload) -> bool:
        return is_measured(upload)

    def refused(self, gathered: Gathered) -> dict[int, str]:
        """By client, why its packet is refused."""
        names = [name for name, upload in gathered.phase.uploads.items() if self.covers(upload)]
        leaves, found = gathered.leaves(), dict[int, str]()
        for part in gathered.parts(names):
            if not part.has_length:
                continue
            lengths = [part.length(each) for each in leaves]
            most = self.bound.of(lengths)
            if not most:  # Most changed nothing, so that there is no usual length.
                continue
            for packet, length in zip(gathered.packets, lengths, strict=True):
                if length > most:
                    found.setdefault(
                        packet.sender,
                        f"its packet was refused: it changes '{part.upload}' by {length:.4g}: expected at most "
                        f"{most:.4g} (norm_bound, {self.bound})",
                    )
        return found
