"""How a device is used."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from fewfed.engine.layout import Layout
from fewfed.errors import ConfigError
from fewfed.settings import setting

Mode = Literal["auto", "graphs", "stacked", "eager"]
PrecisionName = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class Precision:
    """Arithmetic of a step; parameters and optimiser memory keep their type."""

    autocast: torch.dtype | None = None
    channels_last: bool = False


_PRECISIONS = {
    "float32": Precision(),
    "tf32": Precision(channels_last=True),
    "bf16": Precision(autocast=torch.bfloat16, channels_last=True),
}


@dataclass(frozen=True)
class Options:
    """Options of the executor `cuda`."""

    mode: Mode = setting(
        "auto", "one recorded step a client and stream, clients stacked, or step by step; auto = by timing"
    )
    precision: PrecisionName = setting("float32", "arithmetic of local steps", essential=True)
    streams: int = setting(8, "clients at once in mode graphs", ge=1)
    stack: int = setting(64, "clients side by side in mode stacked", ge=2)
    compiled: Literal["auto", "none", "parts", "steps"] = setting(
        "auto", "torch's compiler fuses nothing, formulas of small operations (auto: in long runs), or whole steps"
    )
    layout: Layout = setting(
        "auto", "memory order of convolutions' kernels; auto = channels last, in float32 by timing in long runs"
    )
    kernels: bool = setting(True, "BatchNorm by fewfed's own kernels where features lie channels last")
    deterministic: bool = setting(
        True, "only algorithms that give the same bits each time; false = faster convolutions"
    )
    device: str = setting("cuda", "the device; cpu runs the same code without recording, for tests")

    def exact(self) -> Options:
        """The same without choices by timing, which change how numbers round."""
        if self.mode == "stacked" or self.compiled in ("parts", "steps"):
            raise ConfigError(
                f"cuda.mode = {self.mode}, cuda.compiled = {self.compiled} change how numbers round: expected neither "
                "stacks nor compiled parts where a run must be exact"
            )
        mode: Mode = "graphs" if self.mode == "auto" else self.mode
        layout: Layout = "plain" if self.layout == "auto" and self.precision == "float32" else self.layout
        return dataclasses.replace(self, mode=mode, compiled="none", layout=layout, deterministic=True)

    def arithmetic(self) -> Precision:
        """What the name of the precision and the layout mean."""
        precision = _PRECISIONS[self.precision]
        if self.layout == "auto":
            return precision
        return dataclasses.replace(precision, channels_last=self.layout == "channels_last")
