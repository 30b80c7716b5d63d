"""Few bits for shared rows."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from fewfed.method import Combined, Context
from fewfed.methods.parts.codes import decode, encode
from fewfed.methods.parts.protection import Protected, Protection
from fewfed.phase import Combine, Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Quantised(Protection):
    """Rows are sent with 8, 4 or 2 bits a number, and of each only its strongest channels.

    Each row has its own 2^bits equal steps from its smallest to its largest number, so no number moves by more than
    half a step; several share a byte. With `keep` below 1 the channels of a row with the smallest L2 norm are not sent
    and count as 0; of a feature vector, and of a table's row, every number is a channel. The server unpacks what it
    receives: the inner method, and what it broadcasts, has ordinary numbers. No bound on what can be reconstructed
    follows from this: it is the cheapest defence and a weak one.
    """

    name = "quantised"
    paper = (
        "Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, \
CVPR 2018"
    )
    neutral = MappingProxyType({"bits": 0, "keep": 1.0})

    bits: Literal[0, 2, 4, 8] = setting(8, "bits a number; 0 = numbers as they are")
    keep: float = setting(1.0, "part of the channels that are sent, the strongest of each row", gt=0, le=1)

    @property
    def coded(self) -> bool:  # type: ignore[override]
        return self.acts

    @property
    def acts(self) -> bool:
        return bool(self.bits) or self.keep < 1

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Packed(self, phase))


class Packed(Protected[Quantised]):
    """Rows leave as codes, and come back as numbers at the server."""

    @property
    def copies(self) -> int:
        return 0

    def shielded(self, rows: Tree, ctx: Context) -> Tree:
        return {name: encode(value, self.wrapper.bits, self.wrapper.keep) for name, value in rows.items()}

    def decoded(self, arrays: Tree) -> Tree:
        rows = {name: decode(arrays[name], self.wrapper.bits) for name in self.phase.row_uploads if name in arrays}
        return super().decoded({**arrays, **rows})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        values = {name: self._read(name, value) for name, value in combined.values.items()}
        return super().absorb(server, combined._replace(values=values))

    def _read(self, name: str, value: Any) -> Any:
        if name not in self.phase.row_uploads:
            return value
        if self.phase.uploads[name].combine is Combine.KEEP:
            return {client: decode(each, self.wrapper.bits) for client, each in value.items()}
        return decode(value, self.wrapper.bits)
