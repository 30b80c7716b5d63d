from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fewfed import tree
from fewfed.engine import storage
from fewfed.errors import RunError
from fewfed.tree import Tree
from support import same


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"model": {"params": {"w": torch.ones(2, 3)}, "buffers": {}}},
        {"a": {"b": {"c": {}, "d": torch.arange(3)}}, "e": torch.tensor(2.0), "f": torch.zeros(0, 4)},
    ],
)
def test_a_file_gives_back_tree_and_facts(tmp_path: Path, value: Tree) -> None:
    facts = {"round": 7, "note": "é\n", "scores": [1.5, None], "nested": {"x": True}}
    storage.save(tmp_path / "a.safetensors", value, facts)
    loaded, said = storage.load(tmp_path / "a.safetensors")
    assert same(loaded, value)
    assert said == facts


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_every_type_keeps_its_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    value = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype).T
    storage.save(tmp_path / "a", {"x": value, "scalar": value[0, 0], "none": value[:0]})
    loaded, _ = storage.load(tmp_path / "a")
    assert loaded["x"].dtype == dtype
    assert torch.equal(loaded["x"], value)
    assert loaded["scalar"].shape == ()
    assert loaded["none"].shape == (0, 2)


def test_leaves_that_share_memory_are_written_each(tmp_path: Path) -> None:
    weight = torch.arange(6.0, requires_grad=True)
    storage.save(tmp_path / "a", {"now": weight, "before": weight, "part": weight[2:4]})
    loaded, _ = storage.load(tmp_path / "a")
    assert same(loaded, {"now": weight.detach(), "before": weight.detach(), "part": weight.detach()[2:4]})


def test_the_order_of_leaves_survives(tmp_path: Path) -> None:
    value = {"z": torch.ones(1), "a": {"y": torch.ones(2), "b": torch.ones(3, dtype=torch.int64)}, "m": torch.ones(4)}
    storage.save(tmp_path / "a", value)
    loaded, _ = storage.load(tmp_path / "a")
    assert [path for path, _ in tree.leaves(loaded)] == [path for path, _ in tree.leaves(value)]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    storage.save(path, {"x": torch.ones(2)})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device; what was there before is unchanged"):
        storage.save(path, {"x": torch.zeros(2)})
    assert torch.equal(storage.load(path)[0]["x"], torch.ones(2))
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write"):
        storage.write(tmp_path / "nowhere" / "a", b"x")


@pytest.mark.parametrize("content", [b"", b"not a tensor file", b"\x80\x04\x95" + b"\x00" * 50])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(RunError, match="a' is damaged"):
        storage.load(tmp_path / "a")


def test_a_truncated_or_missing_file_is_refused(tmp_path: Path) -> None:
    storage.save(tmp_path / "a", {"x": torch.ones(100)})
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="a' is damaged"):
        storage.load(tmp_path / "a")
    with pytest.raises(RunError, match=r"cannot read '.*/b'"):
        storage.load(tmp_path / "b")
