"""The parts that the Ray executor is made of, without a cluster: messages, files of clients' states, who takes what."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from fewfed import tree
from fewfed.engine import mapped
from fewfed.engine.client_store import ClientStore
from fewfed.engine.combine import SHARDS, Combiner, shard_of
from fewfed.engine.executor import Briefing
from fewfed.engine.executors.ray import briefing as briefings
from fewfed.engine.executors.ray import scratch
from fewfed.engine.executors.ray.actor import read
from fewfed.engine.executors.ray.cargo import packed, unpacked
from fewfed.engine.executors.ray.orders import Order, next_for
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import TYPES, Packet
from fewfed.engine.remake import outline, remade
from fewfed.engine.schema import Schemas
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError
from fewfed.method import Combined
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Combine, Phase, Role, Upload
from fewfed.runs import remaking
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import Prepared, prepare
from fewfed.tree import Tree
from support import same


def test_messages_come_out_as_they_went_in_whatever_their_type() -> None:
    arrays: Tree = {
        **{kind: {"some": torch.arange(6).to(dtype).reshape(2, 3)} for kind, dtype in TYPES.items()},
        "number": torch.tensor(0.1, dtype=torch.float64),
        "none": torch.empty(0, 3),
        "hollow": {"deep": {}},
        "__metadata__": torch.ones(1),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    said, found = unpacked(packed({"weights": [0.1, 1e-300], "text": "ü/∞"}, arrays))
    assert said == {"weights": [0.1, 1e-300], "text": "ü/∞"}
    assert same(found, arrays)
    assert [path for path, _ in tree.leaves(found)] == [path for path, _ in tree.leaves(arrays)]
    assert all(leaf.data_ptr() % 64 == 0 for _, leaf in tree.leaves(found) if leaf.numel())
    found["number"].add_(1)  # The receiver's own.
    assert unpacked(packed({})) == ({}, {})


def test_an_error_of_an_actor_is_an_error_here() -> None:
    with pytest.raises(RunError, match="no such row"):
        read(packed({"error": "no such row"}))


UPLOADS = {
    "model": Upload(Combine.MEAN, Role.MODEL),
    "total": Upload(Combine.SUM, Role.STATISTICS),
    "rows": Upload(Combine.CONCAT, Role.FEATURES, 1.0),
    "own": Upload(Combine.KEEP, Role.CONTROL),
}


def sent(client: int) -> Packet:
    draw = torch.Generator().manual_seed(client)
    arrays = {
        "model": {"w": torch.randn(7, 3, generator=draw), "count": torch.tensor(client), "empty": {}},
        "total": torch.randn(2, generator=draw).double(),
        "rows": torch.randn(1 + client % 3, 4, generator=draw),
        "own": {"c": torch.randn(5, generator=draw)},
    }
    return Packet(0, "train", client, 0.1 + client, arrays)


@hypothesis.given(st.sets(st.integers(0, 39), min_size=1))
@hypothesis.settings(max_examples=40)
def test_shards_combined_elsewhere_and_sent_as_bytes_have_the_bits_of_packets_one_by_one(
    members: set[int],
) -> None:
    phase = Phase("train", FedAvg(), 1, UPLOADS, relayed=frozenset({"own"}))
    alone, merged = Combiner(phase, 40), Combiner(phase, 40)
    shards: dict[int, Combiner] = {}
    for client in sorted(members):
        alone.add(sent(client))
        shards.setdefault(shard_of(client, 40), Combiner(phase, 40)).add(sent(client))
    for shard in sorted(shards):
        facts, arrays = shards[shard].written()
        said, travelled = unpacked(packed({"facts": facts}, arrays))
        merged.merge(Combiner.read(phase, 40, said["facts"], travelled))
    assert_same_combined(merged.finish(), alone.finish())
    assert (merged.bytes, merged.relayed, merged.rows()) == (alone.bytes, alone.relayed, alone.rows())
    assert merged.sent_rows() == alone.sent_rows()


def assert_same_combined(ours: Combined, theirs: Combined) -> None:
    assert (ours.clients, ours.weights) == (theirs.clients, theirs.weights)
    assert same(ours.values, theirs.values)


def state(number: float) -> Tree:
    return {"kept": torch.full((3,), number), "none": {}}


class Pair:
    """The store that has the list, and one of another process that is told and tells."""

    def __init__(self, folder: Path, memory: int = 1 << 20) -> None:
        self.folder = folder
        self.list = ClientStore(OwnFolder(folder), memory_bytes=0)
        self.elsewhere = ClientStore(OwnFolder(folder), memory, durable=False)

    def order(self, **new: float) -> dict[int, Any]:
        """Have states written elsewhere; what is told of them."""
        clients = [int(name.removeprefix("c")) for name in new]
        self.elsewhere.follow(self.list.files_of(clients), clients, self.list.next_block())
        for client, value in zip(clients, new.values(), strict=True):
            self.elsewhere.put(client, state(value - 100))  # Twice, as a home does with state and moments.
            self.elsewhere.put(client, state(value))
        return self.elsewhere.hand_over()

    def adopt(self, told: dict[int, Any]) -> None:
        for client, file in told.items():
            self.list.adopt(client, file)

    def names(self) -> set[str]:
        return {file.name for file in self.folder.iterdir()} if self.folder.exists() else set()


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_what_is_not_taken_over_never_was(tmp_path: Path, memory: int) -> None:
    pair = Pair(tmp_path, memory)
    pair.adopt(pair.order(c1=1.0, c2=2.0))
    pair.list.finish_round()
    lost = pair.order(c1=10.0)  # Its process dies before anybody hears of it.
    assert lost[1] != pair.list.files_of([1])[1]
    assert same(pair.list.get(1) or {}, state(1.0))
    again = pair.order(c1=11.0, c3=3.0)
    assert {name for name, _ in again.values()}.isdisjoint({lost[1][0]})
    pair.adopt(again)
    assert same(pair.list.get(1) or {}, state(11.0))
    assert same(pair.list.get(3) or {}, state(3.0))
    pair.list.finish_round()
    committed = pair.list.commit()
    pair.list.forget_obsolete()
    pair.list.sweep()
    assert pair.names() == {name for name, _ in committed.values()}
    fresh = ClientStore(OwnFolder(tmp_path))
    fresh.check(committed)
    fresh.restore(committed)
    assert [float(found["kept"][0]) for client in (1, 2, 3) if (found := fresh.get(client))] == [11.0, 2.0, 3.0]


def test_an_undone_round_leaves_the_states_before_it_also_elsewhere(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.adopt(pair.order(c1=1.0))
    pair.list.finish_round()
    committed = pair.list.commit()
    pair.adopt(pair.order(c1=2.0, c4=4.0))
    pair.adopt(pair.order(c1=3.0))  # A second phase of the round.
    pair.list.undo_round()
    assert pair.list.commit() == committed
    assert pair.names() == {name for name, _ in committed.values()}
    pair.elsewhere.follow(pair.list.files_of([1, 4]), [1, 4], pair.list.next_block())
    assert same(pair.elsewhere.get(1) or {}, state(1.0))
    assert pair.elsewhere.get(4) is None


def test_a_file_that_leads_elsewhere_is_not_taken_over(tmp_path: Path) -> None:
    for name in ("../1-1.safetensors", "2-1.safetensors", "1-1.npy"):
        with pytest.raises(Damaged):
            Pair(tmp_path).list.adopt(1, (name, ""))


def order(index: int, home: int, weight: float) -> Order:
    return Order(index, {"clients": [index], "kind": "turns"}, {}, None, home, weight)


def test_an_actor_takes_its_own_heaviest_order_first_and_then_helps_the_busiest() -> None:
    waiting = [order(0, 0, 1.0), order(1, 2, 5.0), order(2, 1, 3.0), order(3, 1, 4.0), order(4, 5, 2.0)]
    assert next_for(0, 2, waiting).index == 1  # Of two actors, shard 2 is the first one's too.
    assert next_for(1, 2, waiting).index == 3
    assert next_for(0, 2, [each for each in waiting if each.home % 2]).index == 3


@hypothesis.given(st.lists(st.floats(0.5, 4.0), min_size=SHARDS, max_size=SHARDS), st.integers(1, 4))
def test_no_actor_waits_while_there_is_work_and_the_last_order_decides(weights: list[float], actors: int) -> None:
    """Carried out in model time: the end is at most one order behind what any division could reach."""
    waiting = [order(shard, shard, weight) for shard, weight in enumerate(weights)]
    free = [0.0] * actors
    while waiting:
        actor = min(range(actors), key=lambda number: free[number])
        taken = next_for(actor, actors, waiting)
        waiting.remove(taken)
        free[actor] += taken.weight
    assert max(free) <= sum(weights) / actors + max(weights) + 1e-9


def test_an_order_for_many_is_split_into_orders_for_each() -> None:
    personal = {"personal": {"3": {"w": torch.ones(1)}}}
    many = Order(7, {"clients": [2, 3], "kind": "turns", "whole": False}, personal, None, 1, 6.0, lambda: 5)
    first, second = many.singles()
    assert (first.clients, first.arrays, first.index, first.weight) == ([2], {}, 7, 3.0)
    assert same(second.arrays, personal)
    assert first.message["whole"]
    assert second.whole is many
    assert unpacked(second.content())[0]["after"] == 5


@pytest.fixture(scope="module")
def ready() -> Prepared:
    return prepare(resolve("flea", {"network": "small-cnn", "clients": 6, "cohort": 3, "validation": 0.3}))


def test_a_briefing_is_told_in_full(ready: Prepared) -> None:
    job, clock = ready.job, Clock(3, 7, 2)
    server = job.method.server_init(job.setup)
    schemas = Schemas(job)
    for phase in job.method.phases(clock):
        schema = schemas.of(phase, clock, phase.does.broadcast(server), {}, 0)
        told = unpacked(packed(briefings.written(Briefing(phase, clock, {}, schema), schema)))[0]
        found = briefings.read(job, told, {}, frozenset({2}))
        assert (found.phase.name, found.clock, found.shown) == (phase.name, clock, frozenset({2}))
        assert replace(found.schema, phase=phase) == schema


def test_a_job_is_made_again_from_its_folder(ready: Prepared, tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path / "job")
    remaking.write(ready, folder)
    job = remade("fewfed.runs.remaking:job_in", folder.path, outline(ready.job))
    for client in range(6):
        ours, theirs = job.federation.examples(client), ready.job.federation.examples(client)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
    for on in ("test", "validation"):
        assert torch.equal(getattr(job.federation, on).x, getattr(ready.job.federation, on).x)
    assert same(job.net.model(), ready.job.net.model())
    with pytest.raises(RunError, match="not the one it was written for"):
        remade("fewfed.runs.remaking:job_in", folder.path, outline(replace(ready.job, rows_public=True)))


def test_a_damaged_or_missing_folder_is_told(ready: Prepared, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not see the run's folder"):
        remaking.job_in(tmp_path / "job")
    folder = OwnFolder(tmp_path / "job")
    remaking.write(ready, folder)
    for name in ("train.x.npy", "split.order.npy", "model.safetensors", "job.json"):
        content = (folder.path / name).read_bytes()
        (folder.path / name).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(RunError, match="damaged"):
            remaking.job_in(folder.path)
        (folder.path / name).write_bytes(content)
    remaking.job_in(folder.path)


def test_a_method_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "from dataclasses import dataclass\nfrom fewfed.methods.fedavg import FedAvg\n\n\n"
    file.write_text(text + '@dataclass(frozen=True)\nclass Mine(FedAvg):\n    name = "mine"\n')
    remaking.write(prepare(resolve(str(file), {"network": "mlp"})), OwnFolder(tmp_path / "job"))
    remaking.job_in(tmp_path / "job")
    file.write_text(file.read_text() + "\n# Changed.\n")
    with pytest.raises(RunError, match="has changed since the run began"):
        remaking.job_in(tmp_path / "job")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_mapped_arrays_keep_their_numbers_and_their_memory_order(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path)
    plain = torch.arange(2 * 3 * 4 * 5).reshape(2, 4, 5, 3).to(dtype)
    for name, array in {"plain": plain, "turned": plain.permute(0, 3, 1, 2), "none": plain[:0]}.items():
        found = mapped.load(folder / name, mapped.save(folder / name, array))
        assert torch.equal(found, array)
        assert found.stride() == array.stride() or not array.numel()
        assert found.data_ptr() % 64 == 0
    changed = mapped.load(folder / "plain", about := mapped.save(folder / "plain", plain))
    changed[0, 0, 0, 0] = 1
    assert torch.equal(mapped.load(folder / "plain", about), plain)  # A change stays in the process that made it.


def test_scratch_folders_of_killed_programs_are_removed_and_those_of_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as above:
        monkeypatch.setattr(tempfile, "tempdir", above)
        held = scratch.Scratch()
        abandoned = Path(tempfile.mkdtemp(prefix="fewfed-ray-"))
        (abandoned / "owner").touch()
        foreign = Path(tempfile.mkdtemp(prefix="other-"))
        second = scratch.Scratch()
        assert {entry.name for entry in Path(above).iterdir()} == {held.path.name, foreign.name, second.path.name}
        for each in (held, second):
            lock = os.open(each.path / "owner", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(lock)
            each.remove()
        assert {entry.name for entry in Path(above).iterdir()} == {foreign.name}


def test_a_folder_too_deep_for_sockets_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made = scratch.Scratch()
    assert len(str(made.path)) < 41
    made.remove()
