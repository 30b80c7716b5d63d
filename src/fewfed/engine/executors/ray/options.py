"""How a Ray cluster is used."""

from __future__ import annotations

from dataclasses import dataclass

from fewfed.settings import setting


@dataclass(frozen=True)
class Options:
    """Options of the executor `ray`."""

    address: str = setting(
        "", "host:port of a running cluster, auto = the one of this machine; empty = start one for this run alone"
    )
    actors: int = setting(
        0, "processes that compute, each on one core; 0 = one for every core that is free", ge=0, le=4096
    )
    restarts: int = setting(-1, "how often an actor that died is started again over the run; -1 = always", ge=-1)
    deadline: float = setting(
        0.0,
        "seconds after which a turn's actor counts as stuck and is started again; 0 = 20 times the slowest turn so "
        "far, at least a minute; -1 = never",
        ge=-1,
        le=1e9,
    )

    def exact(self) -> Options:
        """The same: nothing is chosen by timing, and clients are always run one by one on one thread."""
        return self
