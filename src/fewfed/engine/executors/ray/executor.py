"""The executor `ray`: actors on a cluster, each of which runs clients one by one and combines what they send.

Clients are divided into the 16 shards of `fewfed.engine.combine`. An order is the members of one shard, and its answer
one partial combination, so that the bits are those of `sequential` whoever computed it. Shards belong to actors; one
without work takes a shard of another's. So few pieces cannot be divided evenly among many actors: then an order is a
part of a shard, and its answer the packets themselves, which are combined here.

What clients remember is in files of the run. This process has the list of them: it says with every order what each
client remembers, and takes new files over when the answer is there. An actor can therefore die at any moment.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fewfed.data.federation import HeldOut
from fewfed.engine.combine import Combiner, shard_of
from fewfed.engine.events import Event
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.ray import briefing as briefings
from fewfed.engine.executors.ray.actor import Actor, read
from fewfed.engine.executors.ray.cargo import packed
from fewfed.engine.executors.ray.cluster import Cluster
from fewfed.engine.executors.ray.crew import Answered as Reply
from fewfed.engine.executors.ray.crew import Crew
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.executors.ray.orders import Order
from fewfed.engine.executors.workers.deadline import Deadline
from fewfed.engine.executors.workers.executor import cores
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.engine.outcomes import Done, Failed, Outcome, Partial
from fewfed.engine.packet import BadPacket, Packet
from fewfed.engine.remake import outline
from fewfed.engine.schema import Schema
from fewfed.engine.scoring import Answered, evaluation_rows, rows_of
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError, RunError, in_one_line
from fewfed.task import Score
from fewfed.tree import Tree

_ACTORS_FOR_SHARDS = 4
"""So many actors can divide 16 shards evenly: at a hundred members the slowest has 1 or 2 % more than its share. With 8
it would have a fifth more, with 16 half as much again."""


class RayExecutor:
    """Actors on a Ray cluster."""

    def __init__(self, job: Job, homes: SimulatedHomes, options: Options) -> None:
        remake = job.remake
        if remake is None or remake.why_not:
            why = "expected a run folder, as 'fewfed run' makes one" if remake is None else remake.why_not
            raise ConfigError(f"executor 'ray' cannot compute this run: {why}", key="executor")
        self._job, self._homes = job, homes
        self._broadcasts = itertools.count()
        remake.write(remake.folder)
        place = (remake.function, str(remake.folder.path.absolute()), outline(job))
        paths = (*place, str(homes.store.folder.path.absolute()), os.getcwd())
        self._cluster = Cluster(options.address, options.actors or cores())
        ray = self._cluster.ray
        crew: Crew | None = None
        try:
            count = options.actors or max(1, self._cluster.free_cores())
            remote = ray.remote(num_cpus=1, max_restarts=options.restarts, max_task_retries=0)(Actor)
            crew = Crew(ray, lambda: remote.remote(*paths), count, Deadline(job, options.deadline))
            crew.wait_for_one()
        except BaseException:
            if crew is not None:
                crew.close()
            self._cluster.close()
            raise
        self._crew = crew
        self._parts_of_shard = -(-count // _ACTORS_FOR_SHARDS)

    @property
    def homes(self) -> SimulatedHomes:
        return self._homes

    def place(self, server: Tree) -> Tree:
        return server

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        schema = briefing.schema
        with one_thread():
            common = self._common(briefing.shared)
        shards = itertools.groupby(members, key=lambda member: shard_of(member.client, len(self._job.federation)))
        groups = (part for _, group in shards for part in self._parts(list(group)))
        # While nobody knows the shapes, the first packet that is accepted sets them for all that come after it.
        while schema.leaves is None and (group := next(groups, None)) is not None:
            for reply in self._crew.work(self._turns(briefing, schema, iter([group]), common)):
                outcomes, schema = self._outcomes(briefing, schema, reply)
                yield from outcomes
        for reply in self._crew.work(self._turns(briefing, schema, groups, common)):
            outcomes, _ = self._outcomes(briefing, schema, reply)
            yield from outcomes

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        scores: list[Score] = []
        for reply in self._crew.work(self._scoring("evaluate", models, on)):
            message, _ = read(_content(reply))
            (score,) = (self._job.task.score_type.from_json(each) for each in message["scores"])
            if reply.order.message["first"] == 0:
                scores.append(score)
            else:
                scores[-1] = scores[-1] + score
        return scores

    def evaluate_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> list[Score]:
        return [
            self._job.task.score_type.from_json(each)
            for reply in self._crew.work(self._own_scoring("evaluate", server, clients, on))
            for each in read(_content(reply))[0]["scores"]
        ]

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        number = -1
        for reply in self._crew.work(self._scoring("answer", models, on)):
            message, arrays = read(_content(reply))
            number += reply.order.message["first"] == 0
            yield from _parts(number, message, arrays)

    def answers_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> Iterator[Answered]:
        for reply in self._crew.work(self._own_scoring("answer", server, clients, on)):
            yield from _parts(reply.order.index, *read(_content(reply)))

    def events(self) -> list[Event]:
        events, self._crew.events = self._crew.events, []
        return events

    def close(self) -> None:
        try:
            self._crew.close()
        finally:
            self._cluster.close()
            self._homes.store.sweep()

    def _common(self, arrays: Tree) -> tuple[int, Any]:
        """What is the same for many orders: a number to call it by, and its place in Ray's store."""
        content = packed({}, arrays)
        try:
            return next(self._broadcasts), self._cluster.ray.put(content)
        except self._cluster.ray.exceptions.RayError as error:
            size = -(-len(content) // (1 << 20))
            raise RunError(
                f"Ray's store has no room for the {size} MiB that all clients receive ({in_one_line(error)}): give the "
                "cluster a larger object store, or free space where it keeps temporary files"
            ) from error

    def _turns(
        self, briefing: Briefing, schema: Schema, groups: Iterator[list[Invited]], common: tuple[int, Any]
    ) -> Iterator[Order]:
        """One order for each shard."""
        told, clients_in_all = briefings.written(briefing, schema), len(self._job.federation)
        about = {name: told[name] for name in ("round", "rounds", "epochs", "phase")}
        for index, group in enumerate(groups):
            clients = [member.client for member in group]
            message = {
                **self._order("turns", clients, common),
                "briefing": told,
                "shown": sorted(briefing.shown.intersection(clients)),
                "whole": briefing.apart or self._parts_of_shard > 1,
                "about": {"kind": "bundle", "clients": clients, **about},
            }
            personal = {str(member.client): member.personal for member in group if member.personal}
            yield Order(
                index,
                message,
                {"personal": personal} if personal else {},
                common[1],
                shard_of(clients[0], clients_in_all),
                sum(map(self._rows, clients)),
                self._homes.store.next_block,
            )

    def _parts(self, shard: list[Invited]) -> Iterator[list[Invited]]:
        """The members of a shard, in as many parts as are needed to divide the work evenly."""
        size = -(-len(shard) // self._parts_of_shard)
        return (shard[first : first + size] for first in range(0, len(shard), size))

    def _outcomes(self, briefing: Briefing, schema: Schema, reply: Reply) -> tuple[list[Outcome], Schema]:
        """What became of a shard's members, in their order, and the schema with what was learned from them."""
        if reply.content is None:
            return self._single_outcomes(briefing, schema, reply)
        message, arrays = read(reply.content)
        outcomes: list[Outcome] = [Failed(**each) for each in message["failed"]]
        self._adopt(message)
        heads, kept = message["packets"], arrays["kept"]
        whole = [Packet(arrays=kept[sender], **head) for head in heads if (sender := str(head["sender"])) in kept]
        if reply.order.message["whole"]:
            outcomes += map(Done, whole)
        elif heads:
            clients = len(self._job.federation)
            combined = Combiner.read(briefing.phase, clients, message["facts"], arrays["combined"])
            packets = tuple(Packet(arrays={}, **head) for head in heads)
            outcomes.append(Partial(combined, packets, tuple(whole)))
        learned = schema if schema.leaves is not None else briefings.with_leaves(schema, *message["learned"])
        return outcomes, learned

    def _single_outcomes(self, briefing: Briefing, schema: Schema, reply: Reply) -> tuple[list[Outcome], Schema]:
        """The same where members had to be run one by one, because actors died with all of them."""
        outcomes: list[Outcome] = []
        for client, found in sorted(reply.singles.items()):
            if isinstance(found, str):
                outcomes.append(Failed(client, briefing.phase.name, found, "worker"))
                continue
            message, arrays = read(found)
            refused = [Failed(**each) for each in message["failed"]]
            packets = [Packet(arrays=arrays["kept"].get(str(client), {}), **head) for head in message["packets"]]
            try:
                for packet in packets:  # Each was checked without knowing what the others send.
                    schema.check(packet, client)
                    schema = schema.learned(packet) if schema.leaves is None else schema
            except BadPacket as error:
                outcomes.append(Failed(client, briefing.phase.name, f"its packet was refused: {error}", "packet"))
            else:
                self._adopt(message)
                outcomes += [*refused, *(Done(packet) for packet in packets)]
        return outcomes, schema

    def _adopt(self, message: dict[str, Any]) -> None:
        self._homes.adopt({int(client): (name, digest) for client, (name, digest) in message["files"].items()})

    def _scoring(self, kind: str, models: Iterable[Tree], on: HeldOut) -> Iterator[Order]:
        """Each model's scoring in the parts that `evaluate` adds up, so that actors share the rows of one model."""
        rows, at_once = len(rows_of(self._job, on)), evaluation_rows(self._job)
        index = itertools.count()
        for model in models:
            common = self._common({"model": model})
            for part, first in enumerate(range(0, rows, at_once)):
                last = min(first + at_once, rows)
                yield self._score(next(index), kind, [], common, on, (first, last), part)

    def _own_scoring(self, kind: str, server: Tree, clients: Sequence[int], on: HeldOut) -> Iterator[Order]:
        """The scoring of clients' own models, each where the client's state is."""
        rows, in_all = len(rows_of(self._job, on)), len(self._job.federation)
        common = self._common({"server": server})
        for index, client in enumerate(clients):
            yield self._score(index, kind, [client], common, on, (0, rows), shard_of(client, in_all))

    def _score(
        self,
        index: int,
        kind: str,
        clients: list[int],
        common: tuple[int, Any],
        on: HeldOut,
        rows: tuple[int, int],
        home: int,
    ) -> Order:
        place = {"first": rows[0], "last": rows[1]}
        message = {**self._order(kind, clients, common), "on": on, **place, "about": {"kind": "evaluate", **place}}
        return Order(index, message, {}, common[1], home, rows[1] - rows[0])

    def _order(self, kind: str, clients: list[int], common: tuple[int, Any]) -> dict[str, Any]:
        files = {str(client): list(file) for client, file in self._homes.store.files_of(clients).items()}
        return {"kind": kind, "clients": clients, "files": files, "common": common[0]}

    def _rows(self, client: int) -> int:
        """How many rows a client has; 1 where that cannot be told, which its turn will."""
        try:
            return 1 if client == PSEUDO_CLIENT else self._job.federation.size(client)
        except Exception:
            return 1


def _content(reply: Reply) -> bytes:
    assert reply.content is not None  # Only orders for clients' turns are split up.
    return reply.content


def _parts(number: int, message: dict[str, Any], arrays: Tree) -> Iterator[Answered]:
    for place, first in enumerate(message["firsts"]):
        yield Answered(number, first, arrays[str(place)])
