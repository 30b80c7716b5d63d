"""A network made of ordered, named stages, so that it can be cut and tapped anywhere.

A `Network` owns no weights that training changes: it is applied to a *model*, the tree `{"params", "buffers"}`, and the
same network serves the local model, a frozen teacher and every client of a run.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fewfed.errors import ConfigError, did_you_mean
from fewfed.torch_private import BatchNorm, Dropout, foreach_copy_, is_transformed, places_of, transforming
from fewfed.tree import Tree

Activation = Any
"""What passes between stages: a tensor, or a tuple whose first element is the main path and the rest are skips."""

Tap = Callable[[str, Tensor], Tensor]
"""Called with a stage's name and its main output; what it returns is passed on."""


class Network:
    """Stages in order. `cut` is where feature-sharing methods split it unless they are told otherwise."""

    def __init__(self, name: str, stages: Mapping[str, nn.Module], cut: str | None = None) -> None:
        if not stages:
            raise ConfigError(f"network '{name}' has no stages: expected at least one named module")
        self.name = name
        self.stages: tuple[str, ...] = tuple(stages)
        self._modules = {stage: _without_counters(module) for stage, module in stages.items()}
        self._slots = {stage: _slots(stage, module) for stage, module in self._modules.items()}
        kinds = (Dropout, nn.RReLU, nn.MultiheadAttention)
        parts = [part for module in self._modules.values() for part in module.modules()]
        self._flat = [part for part in parts if isinstance(part, (*kinds, nn.Flatten))]
        self.is_random = any(isinstance(part, kinds) for part in parts)
        """Whether a pass in train mode draws random numbers itself, as dropout does."""
        weights = (p.dtype for module in self._modules.values() for p in module.parameters() if p.is_floating_point())
        self.dtype: torch.dtype = next(weights, torch.get_default_dtype())
        """The type of its weights, which everything a run computes with follows."""
        self.cut = cut if cut is not None else self.stages[0]
        self._training_tap: Tap | None = None
        self.position(self.cut)

    @classmethod
    def of(cls, module: nn.Module, name: str = "custom", cut: str | None = None) -> Network:
        """A user's own module: an `nn.Sequential`, or one with an attribute `stages` naming its children in order."""
        if isinstance(module, Network):
            return module
        declared: Sequence[str] | None = getattr(module, "stages", None)
        if declared is not None:
            children = dict(module.named_children())
            unknown = [stage for stage in declared if stage not in children]
            if unknown:
                raise ConfigError(did_you_mean(f"stage of {type(module).__name__}", unknown[0], children))
            return cls(name, {stage: children[stage] for stage in declared}, cut)
        if isinstance(module, nn.Sequential):
            # Unnamed children are called "0", "1", ...: a name that is a number would be taken for a count of stages.
            named = {f"layer{int(n) + 1}" if n.isdigit() else n: child for n, child in module.named_children()}
            return cls(name, named, cut)
        raise ConfigError(
            f"{type(module).__name__} cannot be cut: expected an nn.Sequential, or a module with an attribute "
            "'stages' that lists the names of its children in the order they are applied"
        )

    def model(self) -> Tree:
        """A copy of the weights the modules were made with: the model a run starts from."""
        params: Tree = {}
        buffers: Tree = {}
        for stage, module in self._modules.items():
            params |= {f"{stage}.{key}": value.detach().clone() for key, value in module.named_parameters()}
            buffers |= {f"{stage}.{key}": value.detach().clone() for key, value in module.named_buffers()}
        return {"params": params, "buffers": buffers}

    def starting_from(self, model: Tree) -> Network:
        """The same network with other weights to start from, of a model like its own."""
        modules = {stage: copy.deepcopy(module) for stage, module in self._modules.items()}
        values = {**model["params"], **model["buffers"]}
        with torch.no_grad():
            for stage, module in modules.items():
                for key, own in (*module.named_parameters(), *module.named_buffers()):
                    own.copy_(values[f"{stage}.{key}"])
        return Network(self.name, modules, self.cut)

    def to(self, dtype: torch.dtype) -> Network:
        """The same network with weights of another type."""
        if dtype == self.dtype:
            return self
        modules = {stage: copy.deepcopy(module).to(dtype) for stage, module in self._modules.items()}
        return Network(self.name, modules, self.cut)

    def module_with(self, model: Tree) -> nn.Module:
        """The stages one after another as one module, with the weights of a model, in eval mode."""
        made = nn.Sequential(OrderedDict(self.starting_from(model)._modules)).eval()
        for part in made.modules():
            if isinstance(part, BatchNorm) and part.track_running_stats and part.num_batches_tracked is None:
                part.num_batches_tracked = torch.tensor(0)  # Torch expects one where it loads weights.
        return made

    def state_dict(self, model: Tree) -> dict[str, Tensor]:
        """A model as torch keeps it."""
        return dict(self.module_with(model).state_dict())

    def module(self, stage: str) -> nn.Module:
        return self._modules[stage]

    def position(self, cut: str | int) -> int:
        """Number of stages before a cut: after the stage of that name, or after that many stages."""
        if isinstance(cut, int) or cut.lstrip("-").isdigit():
            count = int(cut)
            if not 0 < count <= len(self.stages):
                raise ConfigError(
                    f"cut {count} is outside network '{self.name}': expected 1 to {len(self.stages)} "
                    f"or one of {', '.join(self.stages)}",
                    key="cut",
                    value=cut,
                )
            return count
        if cut not in self.stages:
            raise ConfigError(did_you_mean(f"stage of network '{self.name}'", cut, self.stages), key="cut", value=cut)
        return self.stages.index(cut) + 1

    @property
    def penultimate(self) -> int:
        """The cut before the last stage, which is the classifier."""
        return len(self.stages) - 1

    def apply(
        self,
        model: Mapping[str, Any],
        x: Activation,
        *,
        start: int = 0,
        stop: int | None = None,
        tap: Tap | None = None,
        train: bool = True,
    ) -> Activation:
        """Run the stages from `start` up to, not including, `stop` with the weights of `model`.

        With `train`, BatchNorm uses batch statistics and updates the model's running buffers in place.
        """
        stages = self.stages[start:stop]
        params, buffers = model["params"], model["buffers"]
        if _autocasting():
            params = cast_weights(params, (slot.key for name in stages for slot in self._slots[name] if slot.trained))
        for stage in stages:
            module = self._modules[stage]
            if module.training != train:
                module.train(train)
            x = _applied(module, self._slots[stage], params, buffers, x)
            for each in (self._training_tap if train else None, tap):
                if each is not None:
                    x = (each(stage, x[0]), *x[1:]) if isinstance(x, tuple) else each(stage, x)
        return x

    def tapped(self, tap: Tap) -> Network:
        """The same network with a tap on every train-mode pass: how a wrapper augments the features of any method."""
        before = self._training_tap
        twin = copy.copy(self)
        twin._training_tap = tap if before is None else lambda stage, x: tap(stage, before(stage, x))
        return twin

    @contextmanager
    def channels_last(self) -> Iterator[None]:
        """For passes with kernels that lie channels last: layers that draw or flatten see features in reading order.

        Torch draws in the order of memory, and what is dropped must not depend on how features lie there.
        """
        with ExitStack() as hooks:
            for part in self._flat:
                hooks.enter_context(part.register_forward_pre_hook(_in_reading_order))
            yield

    def parameter_count(self, stages: Iterable[str] | None = None) -> int:
        chosen = self.stages if stages is None else stages
        return sum(p.numel() for stage in chosen for p in self._modules[stage].parameters())


def _without_counters(module: nn.Module) -> nn.Module:
    """A copy whose BatchNorm layers count no batches.

    The count is used by nothing when the momentum is fixed, cannot be averaged, costs an operation a layer and step,
    and is an in-place change that function transforms refuse.
    """
    module = copy.deepcopy(module)
    for part in module.modules():
        if isinstance(part, BatchNorm) and part.momentum is not None:
            part.num_batches_tracked = None
    return module


def _in_reading_order(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in inputs:
        if isinstance(value, Tensor) and value.dim() == 4 and value.requires_grad and not is_transformed(value):
            # Their gradients come back in reading order, and pooling would reorder its much larger input for them.
            value.register_hook(_channels_last)  # type: ignore[no-untyped-call]
    return tuple(value.contiguous() if isinstance(value, Tensor) else value for value in inputs)


def _channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


class _Slot(NamedTuple):
    """A place in a module that a tensor of the model is put into while the module runs."""

    place: dict[str, Any]
    name: str
    key: str
    trained: bool
    own: Tensor


def _slots(stage: str, module: nn.Module) -> tuple[_Slot, ...]:
    """Every parameter and buffer of a stage; a tensor used in several places has one key and several slots."""
    keys = {id(value): f"{stage}.{key}" for key, value in (*module.named_parameters(), *module.named_buffers())}
    return tuple(
        _Slot(place, name, keys[id(value)], trained, value)
        for part in module.modules()
        for place, trained in zip(places_of(part), (True, False), strict=True)
        for name, value in place.items()
        if value is not None
    )


def _applied(
    module: nn.Module, slots: tuple[_Slot, ...], params: Mapping[str, Any], buffers: Mapping[str, Any], x: Activation
) -> Activation:
    """Run a module with other tensors in its slots: `torch.func.functional_call` without its cost a call, which is a
    tenth of a step of the smallest networks. The module is the network's own copy, so nobody else sees it meanwhile."""
    for place, name, key, trained, _ in slots:
        place[name] = params[key] if trained else buffers[key]
    try:
        return module(x)
    finally:
        for place, name, _, _, own in slots:
            place[name] = own


def _autocasting() -> bool:
    """Whether anything may have to be cast: cheap to ask on every pass."""
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def cast_weights(params: Mapping[str, Tensor], keys: Iterable[str]) -> Mapping[str, Tensor]:
    """The named parameters as autocast would cast them: matrices and kernels in its type, vectors left as they are.

    Without autocast, and inside function transforms (which know no operations on lists), nothing is changed.
    """
    chosen = [key for key in dict.fromkeys(keys) if params[key].dim() > 1]
    first = params[chosen[0]] if chosen else None
    if first is None or not torch.is_autocast_enabled(first.device.type) or transforming():
        return params
    dtype = torch.get_autocast_dtype(first.device.type)
    cast = _CastTogether.apply(dtype, *(params[key] for key in chosen))  # type: ignore[no-untyped-call]
    return {**params, **dict(zip(chosen, cast, strict=True))}


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.types = [weight.dtype for weight in weights]
        return tuple(_copies(weights, [dtype] * len(weights)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_copies(grads, ctx.types)


def _copies(values: tuple[Tensor, ...], types: list[torch.dtype]) -> list[Tensor]:
    made = [torch.empty_like(value, dtype=dtype) for value, dtype in zip(values, types, strict=True)]
    foreach_copy_(made, list(values))
    return made
