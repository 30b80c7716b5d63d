"""Messages between two ends of a channel, in one process: what goes in comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from processes import open_files

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.engine.executors.workers.channel import Channel, Closed
from fewfed.tree import Tree

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


def passed(ends: Ends, arrays: Tree, slot: str = "0") -> Tree:
    """The arrays after a way through the channel."""
    ends[0].send({"kind": "test"}, arrays, slot)
    message, received = ends[1].receive()
    assert message == {"kind": "test"}
    return received


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_every_dtype_arrives_bit_for_bit(ends: Ends, dtype: torch.dtype) -> None:
    values = torch.arange(-6, 7).to(dtype)
    arrays = {
        "row": values,
        "scalar": values[0],
        "block": values[:12].reshape(3, 2, 2),
        "turned": values[:12].reshape(3, 4).T,
    }
    assert not differences(passed(ends, arrays), arrays)


def test_mixed_dtypes_and_odd_sizes_do_not_overlap(ends: Ends) -> None:
    arrays = {
        f"{dtype}-{count}": torch.full((count,), count % 2).to(dtype)
        for dtype in (*FLOATS, *INTEGERS, torch.bool)
        for count in (1, 3, 7, 65)
    }
    assert not differences(passed(ends, arrays), arrays)


def test_nan_infinity_and_signed_zero_arrive(ends: Ends) -> None:
    arrays = {"x": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0])}
    assert not differences(passed(ends, arrays), arrays)


def test_empty_tensors_and_empty_sub_trees_arrive_as_such(ends: Ends) -> None:
    arrays: Tree = {
        "model": {"params": {"w": torch.ones(2)}, "buffers": {}},
        "none": {},
        "rows": torch.empty(0, 4, 2),
        "labels": torch.empty(0, dtype=torch.int64),
    }
    assert not differences(passed(ends, arrays), arrays)


@pytest.mark.parametrize("arrays", [{}, {"empty": {}}, {"rows": torch.empty(0, 3)}])
def test_trees_without_any_value_arrive(ends: Ends, arrays: Tree) -> None:
    assert not differences(passed(ends, arrays), arrays)


def test_a_message_needs_no_arrays(ends: Ends) -> None:
    ends[0].send({"kind": "stop", "terms": {"task": 0.1}, "none": None})
    assert ends[1].receive() == ({"kind": "stop", "terms": {"task": 0.1}, "none": None}, {})


def test_leaves_keep_their_order(ends: Ends) -> None:
    arrays = {"z": torch.ones(1), "a": {"y": torch.ones(2, dtype=torch.int64), "b": torch.ones(1)}}
    assert [path for path, _ in tree.leaves(passed(ends, arrays))] == ["z", "a/y", "a/b"]


def test_a_slot_grows_with_its_arrays_and_shrinks_again(ends: Ends) -> None:
    for count in (1, 5_000, 10, 400_000, 400_001, 3):
        arrays = {"x": torch.arange(count, dtype=torch.float32), "y": torch.arange(count)}
        assert not differences(passed(ends, arrays), arrays)


def test_slots_do_not_disturb_one_another(ends: Ends) -> None:
    first = passed(ends, {"x": torch.full((100,), 1.0)}, "0")
    passed(ends, {"x": torch.full((50_000,), 2.0)}, "1")
    assert first["x"].tolist() == [1.0] * 100


def test_both_directions_use_memory_of_their_own(ends: Ends) -> None:
    there = passed(ends, {"x": torch.full((100,), 1.0)})
    back = passed((ends[1], ends[0]), {"x": torch.full((100,), 2.0)})
    assert there["x"].tolist() == [1.0] * 100
    assert back["x"].tolist() == [2.0] * 100


def test_one_area_is_shared_with_several_receivers() -> None:
    board, pairs = Channel.pair(), [Channel.pair() for _ in range(3)]
    for value in (1.0, 2.0):
        arrays = {"model": {"w": torch.full((1_000,), value), "none": {}}}
        board[0].share(arrays, "shared", [ours for ours, _ in pairs])
        for _, theirs in pairs:
            assert not differences(theirs.receive()[1], arrays)
    for pair in (board, *pairs):
        for end in pair:
            end.close()


def test_big_trees_arrive(ends: Ends) -> None:
    generator = torch.Generator().manual_seed(0)
    one_large = {"x": torch.randn(6_000_000, generator=generator)}
    assert not differences(passed(ends, one_large), one_large)
    many_leaves = {
        f"stage{i}": {f"weight{j}": torch.randn(2, generator=generator) for j in range(50)} for i in range(400)
    }
    # Such a layout may be larger than the socket's buffer, so somebody must read while it is written.
    sender = threading.Thread(target=ends[0].send, args=({"kind": "test"}, many_leaves))
    sender.start()
    _, received = ends[1].receive()
    sender.join()
    assert not differences(received, many_leaves)


def test_shared_memory_has_no_name_to_leave_behind(ends: Ends) -> None:
    before = open_files()
    passed(ends, {"x": torch.ones(1_000)})
    new = {target for number, target in open_files().items() if number not in before}
    assert new
    assert all(target.endswith("(deleted)") for target in new), new


def test_closing_gives_every_descriptor_back() -> None:
    before = set(open_files())
    pair = Channel.pair()
    for count in (1, 100_000, 200_000):
        for slot in ("0", "1"):
            passed(pair, {"x": torch.ones(count)}, slot)
            passed((pair[1], pair[0]), {"x": torch.ones(count)}, slot)
    # Two sockets; four areas seen from both sides, and a mapping keeps a descriptor of its own.
    assert len(open_files()) <= len(before) + 2 + 4 * 2 * 2, "outgrown areas must be given back at once"
    for end in pair:
        end.close()
    assert set(open_files()) == before


def test_a_gone_partner_is_noticed_on_both_sides_of_a_conversation(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(Closed):
        ends[0].receive()
    with pytest.raises(Closed):
        ends[0].send({"kind": "test"}, {"x": torch.ones(1)})


def beginning_of_a_message(ends: Ends, length: int) -> bytes:
    """The first bytes of a message, as a partner that dies while it writes leaves them."""
    ends[0].send({"kind": "a message without arrays"})
    return ends[1].sock.recv(1 << 16)[:length]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("length", [4, 30], ids=["in its header", "in its body"])
def test_a_partner_that_goes_in_the_middle_of_a_message_is_noticed(ends: Ends, length: int) -> None:
    ends[0].sock.sendall(beginning_of_a_message(ends, length))
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("length", [4, 30], ids=["in its header", "in its body"])
def test_a_partner_that_goes_before_it_read_everything_is_noticed(ends: Ends, length: int) -> None:
    """The kernel then reports a reset instead of an end of stream."""
    ends[0].sock.sendall(beginning_of_a_message(ends, length))
    ends[1].send({"kind": "never read"})
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()
