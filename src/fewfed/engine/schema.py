"""What a packet of a phase must look like. A schema is not written by hand: it follows from method, network and task.

A blank client, with rows of zeros, begins and ends the phase without a step. Its upload has the names, types and
shapes that every client's upload must have. How many rows and how much weight a client may send is declared by the
phase.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.blank import blank_report
from fewfed.engine.job import Job, is_inside
from fewfed.engine.packet import STEPS, BadPacket, Packet, refuse_odd_tree
from fewfed.errors import told
from fewfed.phase import Clock, Phase, Role
from fewfed.torch_private import foreach_norm
from fewfed.training import Weighting
from fewfed.tree import Tree

LARGEST = 1e18
"""Numbers of this size come from no training that works, and their products overflow."""
_MOST_STEPS = 1 << 31


@dataclass(frozen=True)
class Leaf:
    """One array of a packet."""

    role: Role
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Without the first dimension where that counts rows."""
    counts_rows: bool

    def accepts(self, value: Tensor) -> bool:
        shape = tuple(value.shape)
        return value.dtype == self.dtype and (
            len(shape) == len(self.shape) + 1 and shape[1:] == self.shape if self.counts_rows else shape == self.shape
        )

    def __str__(self) -> str:
        shown = ("rows", *self.shape) if self.counts_rows else self.shape
        return f"{self.dtype} ({', '.join(str(length) for length in shown)})"


@dataclass(frozen=True)
class Schema:
    """What is accepted from a client in one phase of one round."""

    round: int
    phase: Phase
    classes: int
    most_rows: int | None
    """How many rows of data the largest client has; unknown where clients are made on demand."""
    leaves: Mapping[str, Leaf] | None
    """By path; None where the method fails on a blank client: then the first accepted packet sets it."""
    empty: frozenset[str] = frozenset()
    form: Mapping[str, Any] | None = None
    """The leaves as the tree they make."""
    weighting: Weighting = "samples"
    """What clients weigh: under `uniform` each counts as one row, however many it has."""

    def check(self, packet: Packet, sender: int) -> None:
        """Raise `BadPacket` with the first thing that is wrong. Nothing is allocated or combined before."""
        self.check_head(packet, sender)
        self.check_numbers(packet)

    def check_head(self, packet: Packet, sender: int) -> None:
        """Everything but the numbers in the arrays."""
        if (packet.round, packet.phase, packet.sender) != (self.round, self.phase.name, sender):
            raise BadPacket(
                f"it is of client {packet.sender}, round {packet.round + 1}, phase '{packet.phase}': expected "
                f"client {sender}, round {self.round + 1}, phase '{self.phase.name}'"
            )
        self._check_weight(packet.weight)
        for name, value in packet.metrics.items():
            if not math.isfinite(value):
                raise BadPacket(f"its metric '{name}' is {value}: expected a finite number")
        steps = packet.metrics.get(STEPS, 0.0)
        if not (0 <= steps <= _MOST_STEPS and steps == int(steps)):
            raise BadPacket(f"its metric '{STEPS}' is {steps}: expected a whole number from 0 to {_MOST_STEPS}")
        if not _fits(self.form, packet.arrays):
            # Seldom: rows of data, whose number varies, or something wrong, which is looked for name by name.
            refuse_odd_tree(packet.arrays, "upload")
            self._check_names(packet.arrays)
            self._check_leaves(packet.arrays)

    def check_numbers(self, packet: Packet) -> None:
        """The numbers in the arrays."""
        if not is_sound([leaf for _, leaf in tree.leaves(packet.arrays)]):
            _refuse_unsound(packet.arrays)
        self.check_ranges(packet)

    def check_ranges(self, packet: Packet) -> None:
        """Raise where a label or a count cannot be one."""
        for name, upload in self.phase.uploads.items():
            if upload.role in (Role.LABELS, Role.COUNTS):
                for _, leaf in tree.leaves({name: packet.arrays[name]}):
                    self._check_range(name, upload.role, leaf)

    def learned(self, packet: Packet) -> Schema:
        """The same schema with the names, types and shapes of a packet."""
        leaves = {path: _leaf(self.phase, path, value) for path, value in tree.leaves(packet.arrays)}
        form = _form(leaves, packet.arrays)
        return dataclasses.replace(self, leaves=leaves, empty=frozenset(tree.hollows(packet.arrays)), form=form)

    def _check_weight(self, weight: float) -> None:
        uniform = self.weighting == "uniform"
        rows = 1 if uniform else self.most_rows
        most = math.inf if rows is None else self.phase.weight.most(rows)
        if not (math.isfinite(weight) and 0 < weight <= most):
            why = ", since weighting = uniform (a method reports ctx.weight)" if uniform else ""
            raise BadPacket(f"its weight is {weight}: expected a number above 0 and at most {most:g}{why}")

    def _check_names(self, arrays: Tree) -> None:
        declared = self.phase.uploads
        if arrays.keys() != declared.keys():
            unknown, missing = sorted(arrays.keys() - declared.keys()), sorted(declared.keys() - arrays.keys())
            found = f"upload '{unknown[0]:.60}' is not declared" if unknown else f"upload '{missing[0]}' is missing"
            raise BadPacket(f"its {found}: expected {', '.join(sorted(declared)) or 'nothing'}")

    def _check_leaves(self, arrays: Tree) -> None:
        found = dict(tree.leaves(arrays))
        if self.leaves is not None:
            if found.keys() != self.leaves.keys() or frozenset(tree.hollows(arrays)) != self.empty:
                odd = sorted((found.keys() ^ self.leaves.keys()) | (frozenset(tree.hollows(arrays)) ^ self.empty))
                raise BadPacket(f"its upload '{odd[0]:.100}' is unknown or missing: expected {len(self.leaves)} arrays")
            for path, leaf in self.leaves.items():
                if not leaf.accepts(found[path]):
                    raise BadPacket(
                        f"its upload '{path}' is {found[path].dtype} {tuple(found[path].shape)}: expected {leaf}"
                    )
        self._check_rows(found)

    def _check_rows(self, found: Mapping[str, Tensor]) -> None:
        counts: dict[str, int] = {}
        for path, value in found.items():
            upload = self.phase.uploads[path.split("/")[0]]
            if not upload.rows:
                continue
            if not value.dim():
                raise BadPacket(f"its upload '{path}' is one number: expected rows")
            counts[path] = len(value)
            most = None if self.most_rows is None else max(1, math.ceil(upload.rows * self.most_rows))
            if most is not None and len(value) > most:
                raise BadPacket(f"its upload '{path}' has {len(value)} rows: expected at most {most}")
        if len(set(counts.values())) > 1:
            raise BadPacket(f"its uploads have different numbers of rows: {counts}")

    def _check_range(self, name: str, role: Role, leaf: Tensor) -> None:
        if not leaf.numel() or (role is Role.LABELS and not self.classes):
            return  # Where labels are no classes they may be any number.
        lowest, highest = (float(bound) for bound in leaf.detach().aminmax())
        if lowest < 0:
            raise BadPacket(f"its {role} '{name}' go down to {lowest:g}: expected none below 0")
        if role is Role.LABELS and not leaf.is_floating_point() and highest >= self.classes:
            raise BadPacket(f"its {role} '{name}' go up to {highest:g}: expected 0 to {self.classes - 1}")
        if role is Role.LABELS and leaf.is_floating_point() and highest > 1 + 1e-4:
            raise BadPacket(f"its {role} '{name}' go up to {highest:g}: expected shares of at most 1")


class Schemas:
    """The schemas of a run, each derived when its phase first comes up."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[str, tuple[Any, Schema]] = {}
        self._pools: set[str] = set()
        self._state: Tree | None = None
        self.unknown: dict[str, str] = {}
        """Phases whose functions fail on a blank client, and why."""

    def of(self, phase: Phase, clock: Clock, shared: Tree, personal: Tree, client: int) -> Schema:
        """The schema of a phase about to begin; `personal` is what `client`, one of its members, receives."""
        self._pools |= {name for name, upload in phase.uploads.items() if upload.rows}
        outline = (phase.uploads, phase.weight, [self._outlined(path, leaf) for path, leaf in tree.leaves(shared)])
        known = self._known.get(phase.name)
        if known is None or known[0] != outline:
            known = (outline, self._derived(phase, clock, shared, personal, client))
            self._known[phase.name] = known
        return dataclasses.replace(known[1], round=clock.round, phase=phase)

    def _outlined(self, path: str, leaf: Tensor) -> tuple[Any, ...]:
        """What the shapes of uploads may depend on: everything but the number of rows in a pool of rows."""
        return (path, leaf.dtype, tuple(leaf.shape[1:] if path.split("/")[0] in self._pools else leaf.shape))

    def _derived(self, phase: Phase, clock: Clock, shared: Tree, personal: Tree, client: int) -> Schema:
        job = self._job
        # A phase inside the server works on rows that are not a client's, so their number is not bounded.
        most = None if is_inside(phase) else job.federation.most_rows
        schema = Schema(clock.round, phase, job.task.outputs, most, None, weighting=job.training_of(phase).weighting)
        try:
            if self._state is None:
                self._state = job.method.client_init(job.setup)
            here = tree.to(shared, "cpu")
            report = blank_report(job, phase, clock, here, tree.to(personal, "cpu"), client, self._state)
            refuse_odd_tree(report.upload, "upload")
            schema._check_names(report.upload)
            learned = schema.learned(Packet(clock.round, phase.name, client, 1.0, report.upload))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # The method needs real rows: the first accepted packet will set the shapes.
            self.unknown[phase.name] = told(error)
            return schema
        if phase.keeps_state:
            self._state = report.state
        return learned


def _leaf(phase: Phase, path: str, value: Tensor) -> Leaf:
    upload = phase.uploads.get(path.split("/")[0])
    if upload is None:
        raise BadPacket(f"upload '{path}' is not declared: expected {', '.join(phase.uploads) or 'nothing'}")
    rows = upload.rows > 0 and value.dim() > 0
    return Leaf(upload.role, value.dtype, tuple(value.shape[1:] if rows else value.shape), rows)


def _form(leaves: Mapping[str, Leaf], arrays: Tree, prefix: str = "") -> dict[str, Any]:
    return {
        name: leaves[f"{prefix}{name}"] if isinstance(part, Tensor) else _form(leaves, part, f"{prefix}{name}/")
        for name, part in arrays.items()
    }


def _fits(form: Mapping[str, Any] | None, arrays: Any) -> bool:
    """Whether a tree is exactly as expected. Quick, since every packet of a run is looked at."""
    if form is None or type(arrays) is not dict or len(arrays) != len(form):
        return False
    for name, expected in form.items():
        found = arrays.get(name)
        if type(expected) is not Leaf:
            if not _fits(expected, found):
                return False
        elif type(found) is not Tensor or not (
            found.shape == expected.shape
            and found.dtype is expected.dtype
            and not expected.counts_rows
            and found.layout is torch.strided
            and not found.is_meta
        ):
            return False
    return True


def is_sound(leaves: Iterable[Tensor]) -> bool:
    """Whether all numbers are finite and of a size that training can reach. One look at each."""
    numbers: dict[torch.device, list[Tensor]] = {}
    for leaf in leaves:
        if leaf.is_floating_point() and leaf.numel():
            numbers.setdefault(leaf.device, []).append(leaf)
    # What is not finite, or overflows on the way, makes the norm infinite or NaN.
    with torch.no_grad():
        norms = ([norm.double() for norm in foreach_norm(here)] for here in numbers.values())
        return all(float(torch.stack(found).max()) <= LARGEST for found in norms)


def _refuse_unsound(arrays: Tree) -> None:
    for path, leaf in tree.leaves(tree.detach(arrays)):
        if not leaf.is_floating_point():
            continue
        if not bool(torch.isfinite(leaf).all()):
            raise BadPacket(f"its upload '{path}' holds NaN or infinity: expected finite numbers")
        if leaf.numel() and float(leaf.double().norm()) > LARGEST:
            highest = float(leaf.abs().max())
            raise BadPacket(f"its upload '{path}' has numbers of {highest:g}: expected none of {LARGEST:g} or more")
