"""From a run folder to a case for attacks: the job is prepared again, and must be what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fewfed.engine.packet import Packet
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.record import Exchanged, Record
from fewfed.runs.experiment import Resolved
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import refuse_other_inputs
from fewfed.runs.own import Own
from fewfed.runs.prepare import prepare
from fewfed.runs.user_code import refuse_unknown, remember_named


@dataclass(frozen=True)
class Effort:
    """How hard a run is attacked, and with what."""

    effort: float = 1.0
    seed: int = 0
    rounds: tuple[int, ...] = ()
    """Recorded rounds that are looked at, from 1; all where none is named."""
    device: str = ""
    """As torch names it; empty = the GPU if there is one."""

    def __post_init__(self) -> None:
        if not 0 < self.effort <= 1000:
            raise ConfigError(f"effort = {self.effort:g}: expected a number above 0, 1 being the usual", key="effort")
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}: expected 0 or more", key="seed")

    def chosen_device(self) -> torch.device:
        from fewfed.engine.executors.cuda.plugin import has_gpu

        if self.device.startswith("cuda") and not has_gpu():
            raise ConfigError(f"device = '{self.device}': found no CUDA device", key="device")
        try:
            found = torch.device(self.device or ("cuda" if has_gpu() else "cpu"))
        except RuntimeError as error:
            raise ConfigError(f"device = '{self.device:.40}': expected cpu, cuda or cuda:0", key="device") from error
        if found.type not in ("cpu", "cuda") or (found.index or 0) >= max(1, torch.cuda.device_count()):
            raise ConfigError(f"device = '{self.device:.40}' is not here: expected cpu, cuda or cuda:0", key="device")
        return found


def open_case(folder: Path, wanted: Effort, own: Own, *, method: str = "", network: str = "") -> Case:
    """The case of a recorded run. `own`: the data and the network, where they were objects of the user's program."""
    device = wanted.chosen_device()
    opened, config = RunFolder.open(folder)
    record = Record.open(folder)
    # Whoever reads that an attack found nothing must not have to ask whether it saw what was sent.
    if damaged := [why for _, why in record.problems() if why]:
        raise RunError(f"{damaged[0]}; {len(damaged)} packets are so: an attack on the others would find less")
    resolved = Resolved.from_json(config)
    resolved = resolved.named(method) if method else resolved
    resolved = resolved.with_network(network) if network else resolved
    refuse_unknown(resolved, folder, [kind for kind, said in (("method", method), ("network", network)) if said])
    try:
        prepared = prepare(resolved, data=own.data, network=own.network)
    except (ConfigError, DataError) as error:
        raise RunError(
            f"the run in '{folder}' cannot be prepared again: {error}. Where its data or its network were objects of "
            "your own program, attack it from there: fewfed.attack(folder, data=..., network=...)"
        ) from error
    refuse_other_inputs(prepared.inputs, opened, config)
    remember_named(resolved)
    rounds, adversary = prepared.resolved.experiment.rounds, prepared.job.adversary
    # What a simulated attacker hands over says nothing of its rows: whoever is attacked is honest.
    dishonest = frozenset[int]() if adversary is None else frozenset(adversary.clients)
    seen = _Some(record, _only(record, wanted.rounds), dishonest)
    return Case(prepared.job, rounds, seen, device, wanted.seed, wanted.effort)


@dataclass(frozen=True)
class _Some:
    """Some rounds of a record, without what some clients handed over."""

    whole: Record
    rounds: tuple[int, ...]
    without: frozenset[int]

    def exchanges(self, round: int) -> tuple[Exchanged, ...]:
        return tuple(replace(one, packets=self._kept(one.packets)) for one in self.whole.exchanges(round))

    def _kept(self, packets: Mapping[int, Packet]) -> dict[int, Packet]:
        return {client: packet for client, packet in packets.items() if client not in self.without}


def _only(record: Record, rounds: Sequence[int]) -> tuple[int, ...]:
    if not rounds:
        return record.rounds
    missing = [round for round in rounds if round not in record.rounds]
    if missing:
        there = ", ".join(str(round) for round in record.rounds) or "none"
        raise RunError(f"round {missing[0]} was not recorded: expected some of {there}")
    return tuple(sorted(set(rounds)))
