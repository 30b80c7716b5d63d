"""Rows as few bits: no number moves by more than half a step, bytes hold what they should, shapes come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewfed import tree
from fewfed.engine.packet import Packet, decode, encode
from fewfed.methods.parts import codes

SHAPES = [(7, 16, 4, 4), (3, 5), (4, 1, 8, 8), (2, 3, 5, 1), (1, 1), (0, 6, 3), (5, 130, 3)]


def rows_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype) * 10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_number_moves_by_more_than_half_a_step(shape: tuple[int, ...], bits: int) -> None:
    rows = rows_of(shape, torch.float64)
    made = codes.encode(rows, bits)
    again = codes.decode(made, bits)
    assert again.shape == rows.shape
    assert again.dtype == rows.dtype
    step = made["step"].reshape(-1, *[1] * (len(shape) - 1))
    assert bool(((again - rows).abs() <= step / 2 * (1 + 1e-9)).all())
    if len(rows):
        wide = rows.flatten(1).amax(1) - rows.flatten(1).amin(1)
        torch.testing.assert_close(made["step"] * (2**bits - 1), wide)
        torch.testing.assert_close(again.flatten(1).amax(1), rows.flatten(1).amax(1))
        assert torch.equal(again.flatten(1).amin(1), rows.flatten(1).amin(1))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes_hold_several_codes_the_first_in_the_lowest_bits(bits: int) -> None:
    """Against numpy, bit by bit."""
    random = np.random.default_rng(3)
    for width in (1, 2, 3, 4, 5, 8, 13):
        values = random.integers(0, 2**bits, (6, width), dtype=np.uint8)
        packed = codes.packed(torch.from_numpy(values), bits)
        assert packed.dtype == torch.uint8
        assert packed.shape == (6, -(-width * bits // 8))
        stream = np.unpackbits(values[..., None], axis=2, count=bits, bitorder="little").reshape(6, -1)
        assert np.array_equal(packed.numpy(), np.packbits(stream, axis=1, bitorder="little"))
        assert np.array_equal(codes.unpacked(packed, bits).numpy()[:, :width], values)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("keep", [0.25, 0.5])
def test_the_strongest_channels_stay_and_the_others_are_zero(bits: int, keep: float) -> None:
    rows = rows_of((5, 8, 3, 2), torch.float64)
    again = codes.decode(codes.encode(rows, bits, keep), bits)
    count = int(8 * keep)
    for row, found in zip(rows, again, strict=True):
        order = row.flatten(1).norm(dim=1).argsort(descending=True)
        assert not found[order[count:]].any()
        kept = row[order[:count]]
        step = (kept.max() - kept.min()) / (2**bits - 1) if bits else 0.0
        assert bool(((found[order[:count]] - kept).abs() <= step / 2 + 1e-12).all())


def test_a_row_without_differences_is_exact_and_one_without_numbers_shows() -> None:
    rows = torch.tensor([[3.7, 3.7, 3.7], [0.0, 0.0, 0.0], [1.0, float("nan"), 2.0], [1.0, float("inf"), 2.0]])
    made = codes.encode(rows, 4)
    again = codes.decode(made, 4)
    assert torch.equal(again[:2], rows[:2])
    assert not torch.isfinite(made["step"][2:]).any(), "so that the server refuses it"


def test_channels_that_there_are_not_end_nothing() -> None:
    made = codes.encode(rows_of((4, 6, 3)), 8, 0.5)
    for wrong in (-1, 6, 2**15 - 1, -(2**15)):
        again = codes.decode({**made, "channels": torch.full_like(made["channels"], wrong)}, 8)
        assert again.shape == (4, 6, 3)
        assert torch.isfinite(again).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_packet_of_codes_survives_being_written(shape: tuple[int, ...]) -> None:
    made = codes.encode(rows_of(shape), 4, 0.5)
    read = decode(encode(Packet(0, "share", 1, 1.0, {"features": made}))).arrays["features"]
    assert torch.equal(codes.decode(read, 4), codes.decode(made, 4))
    count = shape[1] if len(shape) > 1 else 1
    kept = max(1, round(count / 2))
    numbers = kept * int(np.prod(shape[2:]))
    beside = 2 * kept if kept < count else 0
    assert tree.nbytes(read) == shape[0] * (-(-numbers // 2) + 4 + 4 + beside)
