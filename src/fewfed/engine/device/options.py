"""How a device is used."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from fewfed.engine.device.lane import Precision
from fewfed.engine.layout import Layout
from fewfed.errors import ConfigError

PlanName = Literal["auto", "graphs", "stacked", "eager"]
Compiled = Literal["auto", "none", "parts", "steps"]
_PRECISIONS = {
    "float32": Precision(),
    "tf32": Precision(channels_last=True),
    "bf16": Precision(autocast=torch.bfloat16, channels_last=True),
}


@dataclass(frozen=True)
class DeviceOptions:
    """How the device is used."""

    device: str = "cuda"
    plan: PlanName = "auto"
    precision: str = "float32"
    streams: int = 8
    width: int = 32
    """Clients of one stack."""
    compiled: Compiled = "auto"
    """What torch's compiler fuses before steps are captured: nothing, marked functions (`graphs` only), whole steps;
    `auto` is marked functions in long runs, if timing says so."""
    layout: Layout = "auto"
    """How kernels of convolutions lie in the `graphs` plan; `auto` is channels last in tf32 and bf16, and in float32 in
    long runs, if timing says so."""
    kernels: bool = True
    """BatchNorm by kernels of our own in the `graphs` plan, where features lie channels last."""

    def arithmetic(self) -> Precision:
        """What the name of the precision and the layout mean."""
        if self.precision not in _PRECISIONS:
            raise ConfigError(f"precision '{self.precision}': expected one of {', '.join(_PRECISIONS)}")
        precision = _PRECISIONS[self.precision]
        if self.layout == "auto":
            return precision
        return dataclasses.replace(precision, channels_last=self.layout == "channels_last")
