"""Where methods that share rows cut the network: behind a stage, or before the first."""

from __future__ import annotations

from fewfed.errors import ConfigError
from fewfed.network import Network
from fewfed.phase import Role

INPUT = "input"
"""The cut before the first stage: what is shared is then the rows themselves. Never anybody's default."""


def position(net: Network, cut: str) -> int:
    """Stages before a cut, or before the network's own where none is named; none before the inputs themselves."""
    if cut != INPUT:
        return net.position(cut or net.cut)
    if INPUT in net.stages:
        raise ConfigError(
            f"cut '{INPUT}' means the inputs themselves, but network '{net.name}' has a stage of that name: expected "
            f"a count of stages for that one (cut = {net.stages.index(INPUT) + 1}), or another name for it",
            key="cut",
            value=cut,
        )
    return 0


def check(net: Network, cut: str, method: str) -> None:
    """Raise `ConfigError` where a method cannot cut the network there."""
    if cut != INPUT:
        net.require_stages(f"method '{method}'")
    position(net, cut)


def role_at(cut: str) -> Role:
    """What rows shared at a cut are."""
    return Role.INPUTS if cut == INPUT else Role.FEATURES
