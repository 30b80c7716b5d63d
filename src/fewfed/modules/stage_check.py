"""Whether stages, run one after another, do what a module does: same output, buffers, random draws and gradients."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fewfed.errors import ConfigError, told
from fewfed.torch_private import Dropout, changes_of

_ROWS = 4
"""Rows of an example: BatchNorm in train mode needs several."""


@dataclass(frozen=True)
class Stage:
    """A part of a module, by its place there."""

    name: str
    place: str = ""
    joint: nn.Module | None = None
    """What the module does between two of its parts, where this stage is that."""

    def of(self, module: nn.Module) -> nn.Module:
        return self.joint if self.joint is not None else module.get_submodule(self.place)


class NoStages(Exception):
    """Why some stages are not a module's."""


class Pass(NamedTuple):
    """Everything that running a module shows."""

    output: Any
    buffers: Mapping[str, Tensor]
    gradients: tuple[Tensor | None, ...]
    drew: bool
    """Whether it drew random numbers."""

    def equals(self, other: Pass) -> bool:
        return (
            _alike(self.output, other.output)
            and self.drew == other.drew
            and all(_alike(value, other.buffers[name]) for name, value in self.buffers.items())
            # Sums of gradients may run in another order.
            and all(_close(ours, theirs) for ours, theirs in zip(self.gradients, other.gradients, strict=True))
        )


class Probe:
    """What a module does with an example in eval and in train mode. Works on copies: the module stays as it is."""

    def __init__(self, module: nn.Module, itself: Sequence[Stage] | None, name: str, example: Tensor) -> None:
        """`itself`: stages that stand for the module where it has no `forward`; `name`: the network's, for errors."""
        self.module = module
        self._itself = itself
        self._name = name
        rows = few_rows(example)
        evaluated, trained = (self._first(rows, train) for train in (False, True))
        self._refuse_odd(evaluated, trained)
        self.is_random = trained.drew
        """Whether a pass in train mode draws random numbers."""
        self._seen = [(rows, False, evaluated), (rows, True, trained), *self._with_noise(rows)]

    def agreeing(self, stages: Sequence[Stage]) -> tuple[Stage, ...]:
        """These stages, where need be with a joint between two of them; raise where they are not the module's."""
        why = self._disagreement(stages)
        if not why:
            return tuple(stages)
        for joined in self._joined(stages):
            if not self._disagreement(joined):
                return tuple(joined)
        raise NoStages(why)

    def _first(self, rows: Tensor, train: bool) -> Pass:
        try:
            return _passed(self.module, self._itself, rows, train)
        except Exception as error:  # A user's module may raise anything.
            mode = " in train mode" if train else ""
            raise ConfigError(
                f"network '{self._name}' cannot take inputs of shape {tuple(rows.shape[1:])} and type "
                f"{rows.dtype}{mode}: {told(error)}"
            ) from error

    def _refuse_odd(self, evaluated: Pass, trained: Pass) -> None:
        for mode, seen in (("eval", evaluated), ("train", trained)):
            if not isinstance(seen.output, Tensor):
                raise ConfigError(
                    f"network '{self._name}' answers with a {type(seen.output).__name__} in {mode} mode: expected one "
                    "tensor, the scores (auxiliary outputs switched off)"
                )
        if evaluated.output.shape != trained.output.shape:
            raise ConfigError(
                f"network '{self._name}' answers with {tuple(evaluated.output.shape)} in eval mode and with "
                f"{tuple(trained.output.shape)} in train mode: expected the same"
            )
        if evaluated.drew:
            raise ConfigError(
                f"network '{self._name}' draws random numbers in eval mode too, so that no score could be had again: "
                "expected draws in train mode only, as with F.dropout(x, training=self.training)"
            )

    def _with_noise(self, rows: Tensor) -> Iterator[tuple[Tensor, bool, Pass]]:
        """Rows may be blank, or all positive: noise shows more, where the module takes it."""
        drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows.dtype)
        drawn[1::2] *= 10
        for train in (False, True):
            try:
                seen = _passed(self.module, self._itself, drawn, train)
            except Exception:  # Rows may be numbers of words, say: then noise means nothing to it.
                return
            yield drawn, train, seen

    def _disagreement(self, stages: Sequence[Stage]) -> str:
        for x, train, seen in self._seen:
            try:
                equal = _passed(self.module, stages, x, train).equals(seen)
            except NoStages as reason:
                return str(reason)
            except Exception:  # Children that do not fit together fail in any way.
                equal = False
            if not equal:
                return "its children, run one after another, do not give what the module itself gives"
        return ""

    def _joined(self, stages: Sequence[Stage]) -> Iterator[list[Stage]]:
        """The same with what many modules do in `forward` before their classifier: flatten, or pool and flatten."""
        jam = self._jam(stages)
        if not jam:
            return
        places = [jam]
        if isinstance(stages[jam - 1].of(self.module), Dropout):  # Takes any shape, and mostly comes after the joint.
            places.insert(0, jam - 1)
        for place, (name, joint) in itertools.product(places, _JOINTS.items()):
            yield [*stages[:place], Stage(unique(name, stages), joint=joint()), *stages[place:]]

    def _jam(self, stages: Sequence[Stage]) -> int:
        """Number of the first stage that may want its input flat and does not get it so; 0 where there is none."""
        twin = copy.deepcopy(self.module).eval()
        x: Any = self._seen[0][0]
        with torch.no_grad():
            for number, stage in enumerate(stages):
                part = stage.of(twin)
                wide = isinstance(x, Tensor) and x.dim() > 2
                if wide and isinstance(part, nn.Linear):
                    return number
                try:
                    x = part(x)
                except Exception:  # As above.
                    return number if wide else 0
        return 0


_JOINTS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"flatten": nn.Flatten, "pool": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())}
)


def few_rows(example: Tensor) -> Tensor:
    """The first rows of an example, or the same again where it has too few."""
    return example[torch.arange(_ROWS) % len(example)].detach()


def unique(name: str, stages: Sequence[Stage]) -> str:
    """A name that none of the stages has."""
    taken = {stage.name for stage in stages}
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def _passed(module: nn.Module, stages: Sequence[Stage] | None, x: Tensor, train: bool) -> Pass:
    """Run a copy of a module, or its stages one after another, with the same random numbers each time."""
    twin = copy.deepcopy(module).train(train)
    x = x.clone()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(train):
        torch.default_generator.manual_seed(0)
        before = torch.default_generator.get_state()
        output = twin(x) if stages is None else _in_order(twin, stages, x)
        drew = not torch.equal(before, torch.default_generator.get_state())
    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    gradients: tuple[Tensor | None, ...] = (None,) * len(trained)
    if trained and isinstance(output, Tensor) and output.requires_grad:
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
        gradients = torch.autograd.grad((output * weights).sum(), trained, allow_unused=True)
    return Pass(output, dict(twin.named_buffers()), gradients, drew)


def _in_order(module: nn.Module, stages: Sequence[Stage], x: Any) -> Any:
    for stage in stages:
        before, changes = x, changes_of(x)
        x = stage.of(module)(x)
        if changes_of(before) != changes:
            raise NoStages(f"'{stage.name}' changes its input in place, where others may have to read it")
    return x


def _alike(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _close(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(a.abs().max()), equal_nan=True)
