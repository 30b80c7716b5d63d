"""Client states: what is put in comes out bit for bit, whatever went to disk in between."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.engine.client_store import ClientStore
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError
from fewfed.tree import Tree


def state_of(client: int, version: int = 0) -> Tree:
    generator = torch.Generator().manual_seed(100 * client + version)
    return {
        "model": {
            "params": {"w": torch.randn(64, generator=generator), "b": torch.randn((), generator=generator)},
            "buffers": {},
        },
        "counts": torch.randint(0, 9, (3,), generator=generator),
        "half": torch.randn(4, generator=generator).to(torch.bfloat16),
        "none": torch.empty(0, 5),
    }


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[ClientStore]:
    """A store with memory for about two states."""
    store = ClientStore(tmp_path, memory_bytes=600)
    yield store
    store.close()


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def named(index: Mapping[str, Any]) -> set[str]:
    """The files that an index names."""
    return {name for name, _ in index.values()}


def test_a_client_that_never_took_part_has_no_state(tiny: ClientStore) -> None:
    assert tiny.get(3) is None
    assert len(tiny) == 0


def test_states_beyond_the_memory_budget_go_to_disk_and_come_back_bit_for_bit(
    tiny: ClientStore, tmp_path: Path
) -> None:
    for client in range(9):
        tiny.put(client, state_of(client))
    assert len(tiny) == 9
    assert len(files(tmp_path)) >= 6
    for client in (4, 0, 8, 1, 0, 7):
        assert not differences(tiny.get(client) or {}, state_of(client))


def test_leaves_come_back_from_disk_in_the_order_they_had(tiny: ClientStore) -> None:
    """Sums over a tree run in the order of its leaves: another order is another rounding."""
    for client in range(4):
        tiny.put(client, state_of(client))
    restored = tiny.get(0)
    assert restored is not None
    assert list(restored) == list(state_of(0))
    assert list(restored["model"]["params"]) == ["w", "b"]


def test_leaves_come_back_from_disk_as_aligned_as_torch_makes_them(tiny: ClientStore) -> None:
    """Vectorised kernels sum in another order off a 64-byte boundary, and a resumed run would then differ."""
    for client in range(4):
        tiny.put(client, state_of(client))
    restored = tiny.get(0)
    assert restored is not None
    assert {path: leaf.data_ptr() % 64 for path, leaf in tree.leaves(restored) if leaf.numel()} == {
        path: 0 for path, leaf in tree.leaves(restored) if leaf.numel()
    }


def test_memory_alone_needs_no_disk(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "states")
    store.put(1, state_of(1))
    assert not differences(store.get(1) or {}, state_of(1))
    assert not (tmp_path / "states").exists()


def test_a_state_is_a_copy_of_what_was_put_in(tiny: ClientStore) -> None:
    state = state_of(1)
    tiny.put(1, state)
    state["model"]["params"]["w"].zero_()
    assert not differences(tiny.get(1) or {}, state_of(1))


def test_the_last_state_put_in_wins_wherever_the_first_one_is(tiny: ClientStore) -> None:
    for client in range(5):
        tiny.put(client, state_of(client))
    for client in range(5):
        tiny.put(client, state_of(client, version=1))
    for client in range(5):
        assert not differences(tiny.get(client) or {}, state_of(client, version=1))
    assert len(tiny) == 5


def test_a_new_store_takes_up_the_states_of_a_checkpoint(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for client in (2, 5):
        store.put(client, state_of(client))
    index = store.commit()
    assert set(index) == {"2", "5"}
    again = ClientStore(tmp_path)
    again.restore(index)
    assert len(again) == 2
    for client in (2, 5):
        assert not differences(again.get(client) or {}, state_of(client))
    assert again.get(3) is None


def test_a_kill_after_the_checkpoint_loses_only_what_came_after_it(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, memory_bytes=600)
    for client in range(4):
        store.put(client, state_of(client))
    index = store.commit()
    store.forget_obsolete()
    for client in range(6):
        store.put(client, state_of(client, version=1))
    store.commit()
    assert files(tmp_path) > named(index), "superseded files stay until the next checkpoint is safe"
    again = ClientStore(tmp_path)
    again.restore(index)
    assert files(tmp_path) == named(index), "files of lost rounds go"
    assert len(again) == 4
    for client in range(4):
        assert not differences(again.get(client) or {}, state_of(client))


def test_superseded_files_go_with_the_second_checkpoint_that_does_not_need_them(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    indices = []
    for version in range(3):
        store.put(1, state_of(1, version=version))
        indices.append(store.commit())
        store.forget_obsolete()
        kept = [named(index) for index in indices[-2:]]
        assert files(tmp_path) == set().union(*kept)
    assert not differences(store.get(1) or {}, state_of(1, version=2))
    again = ClientStore(tmp_path)
    again.restore(indices[2], indices[1])
    again.forget_obsolete()
    assert files(tmp_path) == named(indices[2])


def test_states_that_were_swapped_cut_off_or_forged_are_noticed(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for client in (1, 2):
        store.put(client, state_of(client))
    index = store.commit()
    store.check(index)
    one, two = (tmp_path / index[client][0] for client in "12")
    contents = one.read_bytes(), two.read_bytes()
    for damaged in (contents[1], contents[0][:-1], contents[0][:-1] + b"\xff", b""):
        one.write_bytes(damaged)
        with pytest.raises(Damaged, match="is damaged"):
            ClientStore(tmp_path).check(index)
        again = ClientStore(tmp_path)
        again.restore(index)
        with pytest.raises(Damaged):
            again.get(1)
    one.unlink()
    with pytest.raises(RunError, match="cannot read"):
        ClientStore(tmp_path).check(index)


@pytest.mark.parametrize(
    "index",
    [{"1": ["../../x", ""]}, {"1": ["2-1.safetensors", ""]}, {"1": "1-1.safetensors"}, {"x": ["1-1.safetensors", ""]},
     {"1": None}, {"1": ["1-1.safetensors/../../x", ""]}, {"1": ["1-1.safetensors"]}],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(index: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="list of client states"):
        ClientStore(tmp_path).restore(index)


def test_only_files_of_the_store_are_cleared_away_and_links_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "clients"
    place.mkdir()
    (place / "letter.txt").write_text("mine")
    (place / "7-3.safetensors.part").write_text("left by a kill")
    ClientStore(place).restore({})
    assert files(place) == {"letter.txt"}
    (place / "8-4.safetensors").symlink_to(place / "letter.txt")
    with pytest.raises(RunError, match="is a link"):
        ClientStore(place).restore({})
    assert (place / "letter.txt").read_text() == "mine"


def test_a_commit_without_changes_writes_nothing(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.put(1, state_of(1))
    index = store.commit()
    (name,) = named(index)
    written = (tmp_path / name).stat().st_mtime_ns
    assert store.commit() == index
    assert (tmp_path / name).stat().st_mtime_ns == written


def test_names_of_lost_rounds_are_not_mistaken_for_new_ones(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.put(1, state_of(1))
    index = store.commit()
    store.put(1, state_of(1, version=1))
    store.commit()
    store.restore(index)
    store.put(2, state_of(2))
    later = store.commit()
    store.forget_obsolete()
    assert files(tmp_path) == named(later)
    again = ClientStore(tmp_path)
    again.restore(later)
    assert not differences(again.get(1) or {}, state_of(1))
    assert not differences(again.get(2) or {}, state_of(2))


def test_a_store_without_a_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = ClientStore(memory_bytes=600)
    for client in range(5):
        store.put(client, state_of(client))
    assert files(tmp_path)
    store.close()
    assert not files(tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_a_round_can_be_undone_whatever_went_to_disk_in_it(seed: int, tmp_path: Path) -> None:
    """Against a store that is a dictionary, copied after every round."""
    chance = random.Random(seed)
    store = ClientStore(tmp_path, memory_bytes=chance.choice([1, 600, 2000, 10**6]))
    now: dict[int, int] = {}
    finished: dict[int, int] = {}
    committed: list[tuple[dict[str, Any], dict[int, int]]] = []
    for version in range(120):
        act = chance.choice(["put"] * 5 + ["get", "finish", "undo", "checkpoint"])
        client = chance.randrange(6)
        if act == "put":
            store.put(client, state_of(client, version))
            now[client] = version
        elif act == "finish":
            store.finish_round()
            finished = dict(now)
        elif act == "undo":
            store.undo_round()
            now = dict(finished)
        elif act == "checkpoint":
            store.finish_round()
            finished = dict(now)
            committed = [*committed[-1:], (store.commit(), dict(now))]
            store.forget_obsolete()
        found = store.get(client)
        expected = state_of(client, now[client]) if client in now else None
        assert (found is None) == (expected is None)
        assert found is None or expected is None or differences(found, expected) == []
        for index, _ in committed:
            store.check(index)
    for index, states in reversed(committed):
        again = ClientStore(tmp_path)
        again.restore(index, committed[0][0])
        for client, version in states.items():
            assert differences(again.get(client) or {}, state_of(client, version)) == []
