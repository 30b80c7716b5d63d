"""How worker processes are used."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fewfed.engine.layout import Layout
from fewfed.errors import ConfigError
from fewfed.settings import setting


@dataclass(frozen=True)
class Options:
    """Options of the executor `workers`."""

    processes: int = setting(0, "worker processes; 0 = one a core", ge=0)
    stack: int = setting(0, "clients side by side in a process; 0 = by timing, 1 = one by one", ge=0)
    layout: Layout = setting("auto", "memory order of convolutions' kernels while a client trains; auto = by timing")

    deadline: float = setting(
        0.0,
        "seconds after which a turn's worker counts as stuck and is replaced; 0 = 20 times the slowest turn so far, at "
        "least a minute; -1 = never",
        ge=-1,
        le=1e9,
    )

    def exact(self) -> Options:
        """The same without choices by timing, which change how numbers round."""
        if self.stack > 1 or self.layout == "channels_last":
            raise ConfigError(
                f"workers.stack = {self.stack}, workers.layout = {self.layout} change how numbers round: expected "
                "neither where a run must be exact"
            )
        return dataclasses.replace(self, stack=1, layout="plain")


EXACT = Options(stack=1, layout="plain")
