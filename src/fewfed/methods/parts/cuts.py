"""Where methods that share rows cut the network: behind a stage, or before the first."""

from __future__ import annotations

from fewfed.errors import ConfigError
from fewfed.method import Context, Setup
from fewfed.phase import Role

INPUT = "input"
"""The cut before the first stage: what is shared is then the rows themselves. Never anybody's default."""
MIDDLE = "middle"
"""The cut half-way through the network, or where it is cut anyway if that comes later."""
_MOST_NAMED = 5


def position(known: Setup | Context, cut: str) -> int:
    """Stages before a cut, or before the network's own where none is named; none before the inputs themselves. `middle`
    is half-way, unless a stage has that name."""
    net = known.net
    if cut == MIDDLE and MIDDLE not in net.stages:
        return max(net.middle, position(known, ""))
    if cut != INPUT:
        chosen = cut or net.cut_for(known.shape)
        if chosen is None:
            raise ConfigError(
                f"network '{net.name}' has no stage before its last whose output is not an affine function of the "
                "input, and so as good as the rows themselves: expected a nonlinearity before the last stage, or a cut "
                "by name, with rows_public = true where rows are shared that everybody may see",
                key="cut",
            )
        return net.position(chosen)
    if INPUT in net.stages:
        raise ConfigError(
            f"cut '{INPUT}' means the inputs themselves, but network '{net.name}' has a stage of that name: expected "
            f"a count of stages for that one (cut = {net.stages.index(INPUT) + 1}), or another name for it",
            key="cut",
            value=cut,
        )
    return 0


def check(setup: Setup, cut: str, method: str, *, shares: bool = True) -> None:
    """Raise `ConfigError` where a method cannot cut the network there, or may not share rows from there."""
    if cut != INPUT:
        setup.net.require_stages(f"method '{method}'")
    stop = position(setup, cut)
    if shares:
        refuse_affine(setup, stop, method)


def refuse_affine(setup: Setup, stop: int, method: str) -> None:
    """Raise `ConfigError` where rows shared behind so many stages are as good as the inputs, which nobody allowed."""
    net = setup.net
    if setup.rows_public or not net.is_affine(stop, setup.shape):
        return
    shared = "the rows themselves (cut = input)"
    if stop:
        shared = (
            f"what comes out of stage '{net.stages[stop - 1]}' of network '{net.name}', which is an affine function of "
            "the input, as good as the rows themselves"
        )
    good = [net.stages[k - 1] for k in range(1, len(net.stages)) if not net.is_affine(k, setup.shape)]
    others = f"a cut behind a nonlinearity ({', '.join(good[:_MOST_NAMED])})" if good else "a network with such a cut"
    raise ConfigError(
        f"method '{method}' would share {shared}: expected {others}, or rows_public = true where everybody may see the "
        "rows",
        key="cut",
    )


def role_at(cut: str) -> Role:
    """What rows shared at a cut are."""
    return Role.INPUTS if cut == INPUT else Role.FEATURES
