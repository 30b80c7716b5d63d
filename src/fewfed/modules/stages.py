"""Taking a user's own module apart into stages, without changing what it computes.

A module says what its stages are (`nn.Sequential`, an attribute `stages`), or its children are tried in the order of
their definition. On an example they must do what the module itself does; else it stays in one piece.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewfed.errors import ConfigError, did_you_mean, told
from fewfed.modules.stage_check import NoStages, Probe, Stage, unique
from fewfed.torch_private import children_of, has_forward, is_watched, sequence_of

WHOLE = "whole"
"""The only stage of a module in one piece."""


@dataclass(frozen=True)
class Source:
    """The user's module that a network was made of, and what its parts are called there."""

    module: nn.Module
    places: Mapping[str, str]
    """Where stages lie in the module: `layer1` of an unnamed `nn.Sequential` is "0", a module in one piece is ""."""
    one_piece: str = ""
    """Why it could not be taken apart; empty where it could."""
    is_random: bool = False
    """Whether a pass in train mode was seen to draw random numbers, or nobody looked."""


Taken = tuple[dict[str, nn.Module], Source]
"""Stages in order, and what they were taken from."""


def take_apart(module: nn.Module, name: str, example: Tensor | None) -> Taken:
    """The stages of a copy of a module, as part of network `name`.

    `example`: a few inputs. Without any, what a module says of itself is believed, and one that says nothing stays in
    one piece.
    """
    own = _own_copy(module, name)
    stated = _stated(own, name)
    if example is None:
        if stated is None:
            return _in_one_piece(own, "no example of its inputs was given to find stages with", is_random=True)
        return _in_stages(own, stated)
    itself = None if has_forward(own) else stated
    probe = Probe(own, itself, name, example)
    try:
        stages = itself or probe.agreeing(_found(own) if stated is None else stated)
    except NoStages as reason:
        if stated is not None and not _is_plain(own):
            raise ConfigError(
                f"{type(own).__name__}.stages of network '{name}' are not the module: {reason}; expected children that "
                "are applied in this order with nothing between them, or no 'stages', for methods that do not cut"
            ) from None
        return _in_one_piece(own, str(reason), probe.is_random)
    return _in_stages(own, stages, probe.is_random)


def _in_stages(module: nn.Module, stages: Sequence[Stage], is_random: bool = False) -> Taken:
    parts = {stage.name: stage.of(module) for stage in stages}
    if not has_forward(module):  # Its stages are all it says, and a module that can be called is made of them.
        return parts, Source(sequence_of(parts), {name: name for name in parts}, is_random=is_random)
    places = {stage.name: stage.place for stage in stages if stage.joint is None}
    return parts, Source(module, places, is_random=is_random)


def _in_one_piece(module: nn.Module, why: str, is_random: bool) -> Taken:
    return {WHOLE: module}, Source(module, {WHOLE: ""}, why, is_random)


def _own_copy(module: Any, name: str) -> nn.Module:
    """A copy to work with: on the CPU, and all of it in train mode, whatever it was used for before."""
    if isinstance(module, type):
        raise ConfigError(f"network '{name}' is the class {module.__name__}: expected an object of it")
    if not isinstance(module, nn.Module):
        raise ConfigError(f"network '{name}' is a {type(module).__name__}: expected an nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(f"network '{name}' is compiled to TorchScript: expected the nn.Module it was made of")
    if any(nn.parameter.is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        raise ConfigError(
            f"network '{name}' has lazy layers whose sizes are not known yet: expected a module that has been called "
            "on an input once"
        )
    try:
        own = copy.deepcopy(module).cpu().train()
    except Exception as error:  # What a user's object holds may refuse to be copied in any way.
        raise ConfigError(f"network '{name}' cannot be copied: {told(error)}") from error
    for part in own.modules():
        if getattr(part, "inplace", False) is True:
            # The same numbers, and what goes in can still be looked at afterwards.
            part.inplace = False  # type: ignore[assignment]
    return own


def _stated(module: nn.Module, name: str) -> tuple[Stage, ...] | None:
    """The stages a module says it has; None where it says nothing."""
    declared: Any = getattr(module, "stages", None)
    if isinstance(declared, (str, list, tuple)):  # Some modules have a child of that name, or a number.
        return _declared(module, declared, name)
    return _named(place for place, _ in children_of(module)) if _is_plain(module) else None


def _declared(module: nn.Module, declared: str | Sequence[Any], name: str) -> tuple[Stage, ...]:
    whose = f"{type(module).__name__}.stages of network '{name}'"
    if isinstance(declared, str):
        raise ConfigError(f"{whose} is a text: expected a list of the names of its children")
    known = {place: part for place, part in module.named_modules(remove_duplicate=False) if place}
    places = []
    for entry in declared:
        if isinstance(entry, nn.Module):
            place = next((place for place, part in known.items() if part is entry), None)
            if place is None:
                raise ConfigError(
                    f"{whose} has a {type(entry).__name__} that is no part of the module: expected the names of its "
                    "children, each of which is an attribute of the module"
                )
            places.append(place)
        elif not isinstance(entry, str):
            raise ConfigError(f"{whose} has {entry!r:.60}: expected the names of its children in the order of use")
        elif entry not in known:
            children = [child for child, _ in children_of(module)]
            raise ConfigError(did_you_mean(f"stage of {type(module).__name__}", entry, children))
        else:
            places.append(entry)
    return _named(places)


def _named(places: Iterable[str]) -> tuple[Stage, ...]:
    """Stages called as in the module, each by a name of its own."""
    stages: list[Stage] = []
    for place in places:
        # Unnamed children are called "0", "1", ...: a name that is a number would be taken for a count of stages.
        name = f"layer{int(place) + 1}" if place.isdigit() else place
        stages.append(Stage(unique(name, stages), place))
    return tuple(stages)


def _found(module: nn.Module) -> tuple[Stage, ...]:
    """The children in the order of their definition. A module around a single other one is as good as that one."""
    places = list(_opened(module, ""))
    while len(places) == 1 and next(children_of(module.get_submodule(places[0])), None):
        places = list(_opened(module.get_submodule(places[0]), places[0]))
    if not places:
        raise NoStages("it has no children that could be run one after another")
    return _named(places)


def _opened(module: nn.Module, place: str) -> Iterator[str]:
    """Places of a module's children; in place of a list or a plain sequence, those of its children."""
    for name, child in children_of(module):
        inside = f"{place}.{name}" if place else name
        if _is_plain(child) or isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _opened(child, inside)
        else:
            yield inside


def _is_plain(module: nn.Module) -> bool:
    """Whether a module only runs its children one after another."""
    sequence = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return sequence and not is_watched(module)
