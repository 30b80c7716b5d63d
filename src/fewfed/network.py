"""A network made of ordered, named stages, so that it can be cut and tapped anywhere.

A `Network` owns no weights that training changes: it is applied to a *model*, the tree `{"params", "buffers"}`, and the
same network serves the local model, a frozen teacher and every client of a run.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fewfed.errors import ConfigError, did_you_mean, told
from fewfed.modules.affine import default_cut, is_affine_at
from fewfed.modules.stages import Source, take_apart
from fewfed.modules.weight_check import refuse_hidden_weights
from fewfed.torch_private import BatchNorm, Dropout, foreach_copy_, is_transformed, places_of, sequence_of, transforming
from fewfed.tree import Tree

Activation = Any
"""What passes between stages: a tensor, or a tuple whose first element is the main path and the rest are skips."""

Tap = Callable[[str, Tensor], Tensor]
"""Called with a stage's name and its main output; what it returns is passed on."""


OWN = "custom"
"""What a user's own module is called that has no other name."""


class Network:
    """Stages in order. `cut` is where feature-sharing methods split it unless they are told otherwise; without one the
    place is found out for the inputs at hand (`cut_for`)."""

    def __init__(
        self, name: str, stages: Mapping[str, nn.Module], cut: str | None = None, source: Source | None = None
    ) -> None:
        """`source`: the user's module that the stages were taken from, where there is one."""
        if not stages:
            raise ConfigError(f"network '{name}' has no stages: expected at least one named module")
        self.name = name
        self.stages: tuple[str, ...] = tuple(stages)
        self._source = source if source is not None else _joined(stages)
        self._modules = _without_counters(stages)
        self._leaves = tuple(_leaves(self._modules, self._source))
        keys = {id(leaf.own): leaf.key for leaf in self._leaves}
        self._slots = {stage: _slots(module, keys) for stage, module in self._modules.items()}
        kinds = (Dropout, nn.RReLU, nn.MultiheadAttention)
        parts = [part for module in self._modules.values() for part in module.modules()]
        self._flat = [part for part in parts if isinstance(part, (*kinds, nn.Flatten))]
        self.is_random = self._source.is_random or any(isinstance(part, kinds) for part in parts)
        """Whether a pass in train mode draws random numbers itself, as dropout does."""
        weights = (p.dtype for module in self._modules.values() for p in module.parameters() if p.is_floating_point())
        self.dtype: torch.dtype = next(weights, torch.get_default_dtype())
        """The type of its weights, which everything a run computes with follows."""
        self.cut = cut
        self._cuts: dict[tuple[int, ...], str | None] = {}
        self._affine: dict[tuple[int, tuple[int, ...]], bool] = {}
        self._training_tap: Tap | None = None
        if cut is not None:
            self.position(cut)

    @classmethod
    def of(cls, module: nn.Module, name: str = OWN, cut: str | None = None, example: Tensor | None = None) -> Network:
        """A user's own module: an `nn.Sequential`, one with an attribute `stages` that names its children in order, or
        any other, whose stages are found with an `example` of its inputs, if it has any (`fewfed.modules.stages`)."""
        if isinstance(module, Network):
            return module
        stages, source = take_apart(module, name, example)
        made = cls(name, stages, cut, source)
        if not any(leaf.trained for leaf in made._leaves):
            raise ConfigError(f"network '{name}' has nothing to train: expected parameters that are not all frozen")
        if example is not None:
            refuse_hidden_weights(made, example)
        return made

    @property
    def one_piece(self) -> str:
        """Why this network has no stages that could be told apart; empty where it has."""
        return self._source.one_piece

    @property
    def has_batchnorm(self) -> bool:
        """Whether rows of a batch are normalised together somewhere in it."""
        return any(isinstance(part, BatchNorm) for module in self._modules.values() for part in module.modules())

    def require_stages(self, who: str) -> None:
        """Raise where the network is in one piece, and nobody can look inside."""
        if self.one_piece:
            raise ConfigError(
                f"{who} needs stages, but network '{self.name}' is in one piece, since {self.one_piece}: expected an "
                "nn.Sequential, or a module with a list 'stages' of the names of its children in the order they are "
                "applied, with nothing between them (docs/networks.md)"
            )

    def model(self) -> Tree:
        """A copy of the weights the modules were made with: the model a run starts from."""
        params = {leaf.key: leaf.own.detach().clone() for leaf in self._leaves if leaf.trained}
        buffers = {leaf.key: leaf.own.detach().clone() for leaf in self._leaves if not leaf.trained}
        return {"params": params, "buffers": buffers}

    def starting_from(self, model: Tree) -> Network:
        """The same network with other weights to start from, of a model like its own."""
        twin = self._with(self._modules, self._source)
        values = {**model["params"], **model["buffers"]}
        with torch.no_grad():
            for leaf in twin._leaves:
                leaf.own.copy_(values[leaf.key])
        return twin

    def to(self, dtype: torch.dtype) -> Network:
        """The same network with weights of another type."""
        if dtype == self.dtype:
            return self
        modules = {stage: module.to(dtype) for stage, module in copy.deepcopy(self._modules).items()}
        whole = copy.deepcopy(self._source.module).to(dtype)
        return self._with(modules, dataclasses.replace(self._source, module=whole))

    def _with(self, modules: Mapping[str, nn.Module], source: Source) -> Network:
        twin = Network(self.name, modules, None if self.one_piece else self.cut, source)
        twin._cuts, twin._affine = self._cuts, self._affine  # Found out once: a cut does not move with the weights.
        return twin

    @property
    def original_names(self) -> Mapping[str, str]:
        """What each entry of a model is called in the module the network was made of, which is mostly the same."""
        return MappingProxyType({leaf.key: leaf.original for leaf in self._leaves})

    def module_with(self, model: Tree) -> nn.Module:
        """The module the network was made of with the weights of a model, in eval mode; for a network of this package
        an `nn.Sequential` of its stages."""
        module = copy.deepcopy(self._source.module)
        places = dict(_tensors(module, remove_duplicate=False))
        values = {**model["params"], **model["buffers"]}
        with torch.no_grad():
            for leaf in self._leaves:
                if leaf.key not in values:
                    raise ConfigError(f"a model has no '{leaf.key}': expected one of network '{self.name}'")
                places[leaf.original].copy_(values[leaf.key])
        return module.eval()

    def state_dict(self, model: Tree) -> dict[str, Tensor]:
        """A model as torch keeps it, under the names of the module the network was made of."""
        state: dict[str, Tensor] = self.module_with(model).state_dict()
        return state

    def from_state_dict(self, state: Mapping[str, Tensor]) -> Tree:
        """The inverse of `state_dict`. Counts of batches, which no model here has, may be left out."""
        module = copy.deepcopy(self._source.module)
        try:
            missing, unknown = module.load_state_dict(state, strict=False)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise ConfigError(f"weights do not fit network '{self.name}': {told(error)}") from error
        wrong = [name for name in missing if not name.endswith("num_batches_tracked")] or unknown
        if wrong:
            is_missing = wrong is not unknown
            raise ConfigError(
                f"weights do not fit network '{self.name}': '{wrong[0]}' is {'missing' if is_missing else 'unknown'}; "
                "expected what its state_dict has"
            )
        return self._model_of(module)

    def _model_of(self, module: nn.Module) -> Tree:
        values = dict(_tensors(module, remove_duplicate=False))
        model: Tree = {"params": {}, "buffers": {}}
        for leaf in self._leaves:
            model["params" if leaf.trained else "buffers"][leaf.key] = values[leaf.original].detach().clone()
        return model

    def key(self, stage: str, name: str) -> str:
        """What an entry of a stage's module is called in a model."""
        return _key(stage, name, self._source)

    def module(self, stage: str) -> nn.Module:
        return self._modules[stage]

    def position(self, cut: str | int) -> int:
        """Number of stages before a cut: after the stage of that name, after the last one inside a part of that name
        (`layer1` has `layer1.0` and `layer1.1`), or after that many stages."""
        self.require_stages("a method that cuts")
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
        inside = [number for number, stage in enumerate(self.stages, 1) if stage.startswith(f"{cut}.")]
        if cut not in self.stages and inside:
            return inside[-1]
        if cut not in self.stages:
            raise ConfigError(did_you_mean(f"stage of network '{self.name}'", cut, self.stages), key="cut", value=cut)
        return self.stages.index(cut) + 1

    def stage_at(self, cut: str | int) -> str:
        """The name of the stage before a cut."""
        return self.stages[self.position(cut) - 1]

    def keys_of(self, stages: Iterable[str]) -> set[str]:
        """The names in a model, of parameters and buffers, that some of its stages compute with."""
        return {slot.key for stage in stages for slot in self._slots[stage]}

    @property
    def middle(self) -> int:
        """The cut behind half of the stages that have weights, the last of them, which is the classifier, not counted;
        rounded up."""
        self.require_stages("a method that cuts")
        weighty = [number for number, stage in enumerate(self.stages, 1) if self._slots[stage]]
        before = weighty[:-1] or weighty or [1]
        return before[(len(before) + 1) // 2 - 1]

    def cut_for(self, shape: tuple[int, ...]) -> str | None:
        """Where it is cut for inputs of a shape: its own cut, else the first stage that narrows and is not affine
        (`fewfed.modules.affine`), found out once; None where no stage will do."""
        if self.cut is not None:
            return self.cut
        self.require_stages("a method that cuts")
        if shape not in self._cuts:
            self._cuts[shape] = default_cut(self, shape)
        return self._cuts[shape]

    def is_affine(self, stop: int, shape: tuple[int, ...]) -> bool:
        """Whether what its first stages give out is an affine function of the input, and so as good as the input."""
        if (stop, shape) not in self._affine:
            self._affine[stop, shape] = is_affine_at(self, stop, shape)
        return self._affine[stop, shape]

    @property
    def penultimate(self) -> int:
        """The cut before the last stage, which is the classifier."""
        self.require_stages("a method that cuts")
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
        counted = {id(p): p.numel() for stage in chosen for p in self._modules[stage].parameters()}
        return sum(counted.values())


def _joined(stages: Mapping[str, nn.Module]) -> Source:
    """Stages without a module around them, as one module."""
    return Source(sequence_of(stages), {stage: stage for stage in stages})


def _without_counters(stages: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Copies whose BatchNorm layers count no batches. What stages share they still do.

    The count is used by nothing when the momentum is fixed, cannot be averaged, costs an operation a layer and step,
    and is an in-place change that function transforms refuse.
    """
    copies = copy.deepcopy(dict(stages))
    for module in copies.values():
        for part in module.modules():
            if isinstance(part, BatchNorm) and part.momentum is not None:
                part.num_batches_tracked = None
    return copies


class _Leaf(NamedTuple):
    """A tensor of a network's own modules, and its names in a model and in the user's module."""

    key: str
    original: str
    own: Tensor
    trained: bool


def _leaves(modules: Mapping[str, nn.Module], source: Source) -> Iterator[_Leaf]:
    """Every parameter and buffer once, also one that several stages share. Parameters that ask for no gradient are
    frozen: they go with the buffers."""
    seen: set[int] = set()
    for stage, module in modules.items():
        place = source.places.get(stage, stage)
        for name, own in _tensors(module):
            if id(own) not in seen:
                seen.add(id(own))
                trained = isinstance(own, nn.Parameter) and own.requires_grad
                yield _Leaf(_key(stage, name, source), f"{place}.{name}" if place else name, own, trained)


def _key(stage: str, name: str, source: Source) -> str:
    return name if source.one_piece else f"{stage}.{name}"


def _tensors(module: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=remove_duplicate)
    yield from module.named_buffers(remove_duplicate=remove_duplicate)


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


def _slots(module: nn.Module, keys: Mapping[int, str]) -> tuple[_Slot, ...]:
    """Every parameter and buffer of a stage; a tensor used in several places has one key and several slots."""
    return tuple(
        _Slot(place, name, keys[id(value)], may_train and value.requires_grad, value)
        for part in module.modules()
        for place, may_train in zip(places_of(part), (True, False), strict=True)
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
