"""A lane: memory at fixed addresses for one client or one stack, and the recorded step that works on it.

A CUDA graph keeps raw pointers, so everything a step reads or writes must stay where it is: parameters, optimiser
memory, the batches and draws of all steps (a counter on the device picks the current one), the broadcast, and the
client's own values. To run a client, its values are copied in, the step is replayed, and the results are copied out;
the host never waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.executors.cuda.compiled import Compiler, Function
from fewfed.engine.executors.cuda.norms import Norms
from fewfed.engine.executors.cuda.options import Precision
from fewfed.engine.executors.cuda.packed import Packed
from fewfed.engine.executors.cuda.watch import CannotCapture, watched
from fewfed.engine.job import Job
from fewfed.engine.lending import Glance
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.engine.step import Step
from fewfed.fusion import Fusion
from fewfed.method import Batch, Context
from fewfed.torch_private import foreach_copy_, foreach_norm, foreach_zero_
from fewfed.training import Training
from fewfed.tree import Tree


@dataclass(frozen=True)
class ReadyTurn:
    """A client that is ready to train: where it starts, its rows and what it draws for every step."""

    index: int
    ctx: Context
    work: Tree
    x: Tensor
    """The table its rows are numbered in."""
    y: Tensor
    rows: Tensor
    """(steps, batch) row numbers, on the host."""
    drawn: Packed

    @property
    def steps(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Trained:
    """The results of the turns that a lane has run."""

    turns: tuple[ReadyTurn, ...]
    work: Tree
    """Stacked unless the width is 1."""
    own: Tree
    """What else is the clients' own (`personal`, `state`, `counts`), stacked; empty if the width is 1."""
    sums: Tensor
    """(turns, loss terms and norm): terms summed over the steps; the norm is finite only if all parameters are."""
    names: tuple[str, ...]
    width: int

    def works(self) -> Iterator[tuple[ReadyTurn, Tree]]:
        """Every turn with its own work tree."""
        if self.width == 1:
            yield self.turns[0], self.work
            return
        yield from zip(self.turns, tree.unstack(self.work, len(self.turns)), strict=True)


class Lane:
    """Static memory for `width` clients like the example, on one stream."""

    def __init__(
        self,
        job: Job,
        example: ReadyTurn,
        shared: Tree,
        *,
        width: int,
        steps: int,
        masked: bool,
        precision: Precision,
        kind: object = None,
        compiler: Compiler | None = None,
        fusion: Fusion,
        norms: Norms | None = None,
    ) -> None:
        device = example.x.device
        self.width, self.capacity, self._masked, self._precision = width, steps, masked, precision
        self._kind, self._compiler, self._fusion, self._norms = kind, compiler, fusion, norms
        self._training: Training = job.training_of(example.ctx.phase)
        self.shared = shared
        self.work = self._static(example.work)
        self._own = self._static(
            {"personal": example.ctx.personal, "state": example.ctx.state, "counts": example.ctx.counts}
        )
        self._starts = self._client_views(self.work)
        self._owns = self._client_views(self._own)
        params: Tree = self.work["params"]
        for leaf in params.values():
            leaf.requires_grad_(width == 1 and compiler is None)
        self._params = list(params.values())
        self._optimizer = LocalOptimizer(self._training, self._params, width)
        batch = example.rows.shape[1]
        lead = (steps, batch) if width == 1 else (steps, width, batch)
        self._x = torch.zeros((*lead, *example.x.shape[1:]), dtype=example.x.dtype, device=device)
        if precision.channels_last and self._x.dim() == len(lead) + 3 and width == 1:
            flat = self._x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            self._x = flat.view(*lead, *flat.shape[1:])
        self._y = torch.zeros((*lead, *example.y.shape[1:]), dtype=example.y.dtype, device=device)
        self._places = example.drawn.places
        self._drawn = self._places.blank((steps,) if width == 1 else (steps, width), device)
        self._active = torch.ones((steps, width), dtype=torch.bool, device=device)
        self._counter = torch.zeros(1, dtype=torch.long, device=device)
        # Fused kernels on a GPU accept the learning rate in single precision only.
        wide = bool(self._params) and device.type == "cpu"
        self._lr = torch.zeros((), dtype=self._params[0].dtype if wide else torch.float32, device=device)
        self._sums: dict[str, Tensor] = {}
        self._ctx = example.ctx
        self._one = Step(job.method.observed, self._autocast)
        self.seen: set[str] = set()
        """What the step read of the clock."""
        self.round = example.ctx.clock.round
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def queue(self) -> contextlib.AbstractContextManager[Any]:
        """Operations inside are queued on the lane's own stream."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def follow(self) -> None:
        """Make later work of the lane wait for everything queued on the current stream so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def join(self) -> None:
        """Make later work of the current stream wait for the lane."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def load(self, turns: Sequence[ReadyTurn]) -> None:
        """Copy the turns in: start, rows, draws. Everything is queued on the lane's stream."""
        together = self.width > 1 and all(turn.work is turns[0].work for turn in turns)
        if together:
            _copy_to_all(self.work, turns[0].work)
        for turn, start, own in zip(turns, self._starts, self._owns, strict=False):
            if not together:
                _copy_leaves(start, turn.work)
            _copy_leaves(own, {"personal": turn.ctx.personal, "state": turn.ctx.state, "counts": turn.ctx.counts})
        self._optimizer.reset()
        self._counter.zero_()
        self._lr.fill_(self._training.lr_at(turns[0].ctx.clock.round))
        if self._sums:
            foreach_zero_(list(self._sums.values()))
        self._load_batches(turns)

    def run(self, steps: int) -> None:
        """Take `steps` steps."""
        for _ in range(steps):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._step()

    def capture(self, turns: Sequence[ReadyTurn]) -> None:
        """Record one step. Needs loaded turns; they must be loaded again afterwards."""
        for _ in range(2):
            self.load(turns)
            glance = Glance(self._own)
            self._step()
            if not glance.unchanged():
                raise CannotCapture("its steps change what a client was given")
        if self._stream is None:
            return
        self.load(turns)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, stream=self._stream):
            self._step()
        self._graph = graph

    def finite(self) -> bool:
        """Whether the last steps' terms are numbers. Waits for the device."""
        return all(bool(torch.isfinite(value).all()) for value in self._sums.values())

    def result(self, turns: Sequence[ReadyTurn]) -> Trained:
        """Copies of the work trees and of the summed terms of the turns just run."""
        columns = [value.float().reshape(self.width) for value in self._sums.values()]
        sums = torch.stack([*columns, self._lengths()], 1)
        own = tree.clone(self._own) if self.width > 1 else {}
        return Trained(tuple(turns), tree.clone(self.work), own, sums[: len(turns)], tuple(self._sums), self.width)

    def _lengths(self) -> Tensor:
        with torch.no_grad():
            if not self._params:
                return torch.zeros(self.width, device=self._x.device)
            if self.width == 1:
                return torch.stack(foreach_norm(self._params)).sum().reshape(1)
            norms = [torch.linalg.vector_norm(p.flatten(1), dim=1) for p in self._params]
            return torch.stack(norms).sum(0)

    def _step(self) -> None:
        pick = self._counter
        batch = Batch(
            self._x.index_select(0, pick).squeeze(0),
            self._y.index_select(0, pick).squeeze(0),
            self._places.unpack({kind: d.index_select(0, pick).squeeze(0) for kind, d in self._drawn.items()}),
        )
        active = self._active.index_select(0, pick).squeeze(0) if self._masked else None
        gradient, terms = self._gradient(batch, active)
        self._optimizer.step([gradient[name] for name in self.work["params"]], self._lr, active)
        with torch.no_grad():
            for name, value in terms.items():
                if name not in self._sums:
                    self._sums[name] = torch.zeros_like(value)
                self._sums[name].add_(value if active is None else torch.where(active, value, 0.0))
            self._counter.add_(1)

    def _gradient(self, batch: Batch, active: Tensor | None) -> tuple[Tree, Tree]:
        if self.width == 1 and self._compiler is None:
            with self._fusion.asked(), self._normalising():
                return self._one.by_tape(self.work, self._context(self._own, self.shared), batch)
        rest = {name: value for name, value in self.work.items() if name != "params"}
        # Running statistics of a client that has finished must not change any more.
        kept = tree.clone(rest) if active is not None else {}
        inputs = {"work": self.work, "own": self._own, "shared": self.shared, "batch": batch._asdict()}
        with torch.no_grad():  # The transform computes gradients itself; a tape would only cost time.
            function: Function = self._pure
            if self._compiler is not None:
                function = self._compiler.of(self._kind, self._pure, inputs)
            result = function(inputs)
            if active is not None:
                for (_, now), (_, old) in zip(tree.leaves(rest), tree.leaves(kept), strict=True):
                    now.copy_(torch.where(active.reshape(-1, *([1] * (now.dim() - 1))), now, old))
        return result["gradient"], result["terms"]

    def _normalising(self) -> contextlib.AbstractContextManager[None]:
        return self._norms.asked() if self._norms else contextlib.nullcontext()

    def _pure(self, inputs: Tree) -> Tree:
        def gradient(work: Tree, own: Tree, shared: Tree, batch: Batch) -> tuple[Tree, Tree]:
            return self._one.by_transform(work, self._context(own, shared), batch)

        if self.width > 1:
            gradient = torch.func.vmap(gradient, in_dims=(0, 0, None, 0), randomness="different")
        with self._normalising():
            found, terms = gradient(inputs["work"], inputs["own"], inputs["shared"], Batch(**inputs["batch"]))
        return {"gradient": found, "terms": terms}

    def _context(self, own: Tree, shared: Tree) -> Context:
        """The context of a recorded step: tensors at fixed addresses, and no Python number of a single client."""
        ctx = dataclasses.replace(
            self._ctx, shared=shared, personal=own["personal"], state=own["state"], counts=own["counts"]
        )
        return watched(ctx, self.seen)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._precision.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._x.device.type, dtype=self._precision.autocast)

    def _static(self, example: Tree) -> Tree:
        def make(leaf: Tensor) -> Tensor:
            shape = leaf.shape if self.width == 1 else (self.width, *leaf.shape)
            last = self._precision.channels_last and self.width == 1 and leaf.dim() == 4
            # Created in that order, not converted to it: a kernel of one channel would not be converted.
            order = torch.channels_last if last else torch.contiguous_format
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device, memory_format=order).zero_()

        return tree.map(make, example)

    def _client_views(self, stack: Tree) -> list[list[Tensor]]:
        """The leaves of every client of the lane, as views."""
        leaves = [leaf for _, leaf in tree.leaves(stack)]
        return [leaves] if self.width == 1 else [[leaf[k] for leaf in leaves] for k in range(self.width)]

    def _load_batches(self, turns: Sequence[ReadyTurn]) -> None:
        device = self._x.device
        steps = max(turn.steps for turn in turns)
        rows = [_padded(turn.rows, steps) for turn in turns]
        rows += [rows[0]] * (self.width - len(rows))
        numbers = _to_device(rows[0] if self.width == 1 else torch.stack(rows, 1), device)
        table_x, table_y = turns[0].x, turns[0].y
        if any(turn.x is not table_x for turn in turns):
            # Clients with tables of their own: put them one after another and shift the numbers.
            parts = [*turns, *[turns[0]] * (self.width - len(turns))]
            table_x, table_y = torch.cat([t.x for t in parts]), torch.cat([t.y for t in parts])
            offsets = torch.tensor([0, *(len(t.x) for t in parts[:-1])]).cumsum(0)
            numbers = numbers + _to_device(offsets.reshape(1, -1, 1), device)
        self._x[:steps].copy_(table_x[numbers])
        self._y[:steps].copy_(table_y[numbers])
        for kind, static in self._drawn.items():
            for position, turn in enumerate([*turns, *[turns[0]] * (self.width - len(turns))]):
                target = static if self.width == 1 else static[:, position]
                target[: turn.steps].copy_(turn.drawn.matrices[kind], non_blocking=True)
                if turn.steps < steps:  # A finished client computes on without effect, but its inputs must be numbers.
                    target[turn.steps : steps].copy_(turn.drawn.matrices[kind][:1], non_blocking=True)
        if self._masked:
            lengths = torch.tensor([turn.steps for turn in turns] + [0] * (self.width - len(turns)))
            self._active[:steps].copy_(_to_device(torch.arange(steps).unsqueeze(1) < lengths, device))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Old graphs that the garbage collector finds are destroyed at once, and that spoils a recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _copy_leaves(targets: list[Tensor], values: Tree) -> None:
    if targets:
        with torch.no_grad():
            foreach_copy_(targets, [leaf for _, leaf in tree.leaves(values)])


def _copy_to_all(stack: Tree, value: Tree) -> None:
    with torch.no_grad():
        for (_, rows), (_, leaf) in zip(tree.leaves(stack), tree.leaves(value), strict=True):
            rows.copy_(leaf.expand_as(rows))


def _padded(value: Tensor, steps: int) -> Tensor:
    return value if len(value) == steps else torch.cat([value, value[:1].expand(steps - len(value), *value.shape[1:])])


def _to_device(value: Tensor, device: torch.device) -> Tensor:
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value
