"""A lane: memory at fixed addresses for one client or one stack, and the recorded steps that work on it.

A CUDA graph keeps raw pointers, so everything a step reads or writes must stay where it is: parameters, optimiser
memory, the batches and draws of all steps, the broadcast, and the client's own values. To run a client, its values are
copied in, the step is replayed, and the results are copied out; the host never waits. A step is recorded for one size
of batches and draws: batches of several sizes need a recording of each (`Feed`).
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
from fewfed.engine.executors.cuda.feed import Feed
from fewfed.engine.executors.cuda.norms import Norms
from fewfed.engine.executors.cuda.options import Precision
from fewfed.engine.executors.cuda.ready import ReadyTurn
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


class ReadsPadding(Exception):
    """A loss became NaN because it read the spare rows of a buffer with room to grow."""


class Lane:
    """Static memory for `width` clients like the example, on one stream."""

    def __init__(
        self,
        job: Job,
        example: ReadyTurn,
        shared: Tree,
        *,
        width: int,
        masked: bool,
        precision: Precision,
        kind: object = None,
        compiler: Compiler | None = None,
        fusion: Fusion,
        norms: Norms | None = None,
    ) -> None:
        self._device = device = example.x.device
        self.width, self._masked, self._precision = width, masked, precision
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
        # Fused kernels on a GPU accept the learning rate in single precision only.
        wide = bool(self._params) and device.type == "cpu"
        self._lr = torch.zeros((), dtype=self._params[0].dtype if wide else torch.float32, device=device)
        self._sums: dict[str, Tensor] = {}
        self._ctx = example.ctx
        self._one = Step(job.method.observed, self._autocast, recorded=True)
        self.seen: set[str] = set()
        """What the step read of the clock."""
        self.round = example.ctx.clock.round
        self._feeds: dict[tuple[object, ...], Feed] = {}
        self._loaded: list[Feed] = []
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        """Memory for what recorded steps compute on the way: they run one after another and share it."""
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

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
        self._lr.fill_(self._training.lr_at(turns[0].ctx.clock.round))
        if self._sums:
            foreach_zero_(list(self._sums.values()))
        self._loaded = [self._feeds[self._key(turns, part)] for part in range(len(turns[0].parts))]
        for part, feed in enumerate(self._loaded):
            feed.load(turns, part)

    def run(self, turns: Sequence[ReadyTurn]) -> None:
        """Take all steps of loaded turns."""
        for part in max((turn.order for turn in turns), key=len):
            feed = self._loaded[part]
            if feed.graph is not None:
                feed.graph.replay()
            else:
                self._step(feed)

    def record(self, turns: Sequence[ReadyTurn], *, padded: bool) -> None:
        """Record a step of every size the turns have and earlier ones had not; they are not loaded afterwards.

        `padded`: spare rows of the broadcast hold NaN, and a step that reads them raises `ReadsPadding`.
        """
        fresh = []
        for part, steps in enumerate(turns[0].parts):
            key = self._key(turns, part)
            if key not in self._feeds:
                self._feeds[key] = Feed(
                    turns[0],
                    steps,
                    width=self.width,
                    capacity=_capacity(turns, part),
                    masked=self._masked,
                    channels_last=self._precision.channels_last,
                )
                fresh.append(key)
        try:
            for key in fresh:
                self._record(self._feeds[key], turns, padded)
        except BaseException:
            for key in fresh:
                del self._feeds[key]
            raise

    def _record(self, feed: Feed, turns: Sequence[ReadyTurn], padded: bool) -> None:
        for _ in range(2):
            self.load(turns)
            glance = Glance(self._own)
            self._step(feed)
            if not glance.unchanged():
                raise CannotCapture("its steps change what a client was given")
        if padded and not all(bool(torch.isfinite(value).all()) for value in self._sums.values()):
            raise ReadsPadding
        if self._stream is None:
            return
        self.load(turns)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._step(feed)
        feed.graph = graph

    def result(self, turns: Sequence[ReadyTurn]) -> Trained:
        """Copies of the work trees and of the summed terms of the turns just run."""
        names = tuple(dict.fromkeys(name for feed in self._loaded for name in feed.terms))
        columns = [self._sums[name].float().reshape(self.width) for name in names]
        sums = torch.stack([*columns, self._lengths()], 1)
        own = tree.clone(self._own) if self.width > 1 else {}
        return Trained(tuple(turns), tree.clone(self.work), own, sums[: len(turns)], names, self.width)

    def _lengths(self) -> Tensor:
        with torch.no_grad():
            if not self._params:
                return torch.zeros(self.width, device=self._device)
            if self.width == 1:
                return torch.stack(foreach_norm(self._params)).sum().reshape(1)
            norms = [torch.linalg.vector_norm(p.flatten(1), dim=1) for p in self._params]
            return torch.stack(norms).sum(0)

    def _step(self, feed: Feed) -> None:
        batch, active = feed.now()
        gradient, terms = self._gradient(batch, active)
        self._optimizer.step([gradient[name] for name in self.work["params"]], self._lr, active)
        with torch.no_grad():
            for name, value in terms.items():
                if name not in self._sums:
                    self._sums[name] = torch.zeros_like(value)
                self._sums[name].add_(value if active is None else torch.where(active, value, 0.0))
            feed.advance()
        feed.terms = tuple(terms)

    def _key(self, turns: Sequence[ReadyTurn], part: int) -> tuple[object, ...]:
        return (*turns[0].parts[part].size, _capacity(turns, part))

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
        return torch.autocast(self._device.type, dtype=self._precision.autocast)

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


def _capacity(turns: Sequence[ReadyTurn], part: int) -> int:
    """Room for steps: a power of two, so that turns of similar lengths use the same recording."""
    return power_of_two(max(len(turn.parts[part]) for turn in turns))


def power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << (number - 1).bit_length()
