"""What all members of a phase are told, as JSON: the actor finds phase and clock in its own copy of the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fewfed import tree
from fewfed.engine.executor import Briefing
from fewfed.engine.job import Job
from fewfed.engine.packet import TYPES
from fewfed.engine.schema import Leaf, Schema
from fewfed.phase import Clock, Role
from fewfed.tree import Tree


def written(briefing: Briefing, schema: Schema) -> dict[str, Any]:
    """All but what is broadcast and who is shown. `schema`: the briefing's, with the shapes that were learned since."""
    clock = briefing.clock
    return {
        "round": clock.round,
        "rounds": clock.rounds,
        "epochs": clock.epochs,
        "phase": briefing.phase.name,
        "classes": schema.classes,
        "most_rows": schema.most_rows,
        "weighting": schema.weighting,
        "leaves": written_leaves(schema),
        "empty": sorted(schema.empty),
    }


def read(job: Job, told: Mapping[str, Any], shared: Tree, shown: frozenset[int]) -> Briefing:
    """The inverse of `written`."""
    clock = Clock(told["round"], told["rounds"], told["epochs"])
    phase = job.phase(told["phase"], clock)
    schema = Schema(clock.round, phase, told["classes"], told["most_rows"], None, weighting=told["weighting"])
    return Briefing(phase, clock, shared, with_leaves(schema, told["leaves"], told["empty"]), shown)


def written_leaves(schema: Schema) -> dict[str, Any] | None:
    """The names, types and shapes of a schema; None where nobody knows them yet."""
    if schema.leaves is None:
        return None
    return {
        path: [leaf.role.value, str(leaf.dtype), list(leaf.shape), leaf.counts_rows]
        for path, leaf in schema.leaves.items()
    }


def with_leaves(schema: Schema, leaves: Mapping[str, Any] | None, empty: list[str]) -> Schema:
    """A schema with these names, types and shapes."""
    if leaves is None:
        return schema
    known = {
        path: Leaf(Role(role), TYPES[dtype], tuple(shape), rows) for path, (role, dtype, shape, rows) in leaves.items()
    }
    form: Any = tree.from_leaves(known, empty)  # type: ignore[arg-type]
    return dataclasses.replace(schema, leaves=known, empty=frozenset(empty), form=form)
