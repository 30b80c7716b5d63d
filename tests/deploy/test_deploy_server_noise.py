"""Noise that the server adds protects from sites, and these are told the seed: it is nothing they could compute."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import Federation, difference, write_digits

from fewfed.engine import storage
from fewfed.runs.folder import MODEL
from fewfed.tree import Tree

METHODS = ("central-dp(fedavg)", "central-dp(flea)")


def trained(folder: Path, method: str, sigma: float) -> Tree:
    folder.mkdir()
    write_digits(folder)
    more = f"clip = 0.5\nsigma = {sigma}"
    found = Path(Federation(folder, method, rounds=2, more=more).run().folder)
    return storage.load(found / MODEL)[0]


@pytest.mark.parametrize("method", METHODS)
def test_two_federations_with_one_seed_have_noise_of_their_own(method: str, tmp_path: Path) -> None:
    first, second = (trained(tmp_path / name, method, sigma=0.1) for name in ("first", "second"))
    # Each round each weight has noise of 0.1 · 0.5 / 5 sites = 0.01: over two rounds a difference of 0.02 on average.
    assert difference(first, second) > 0.03


def test_without_noise_one_seed_is_one_model(tmp_path: Path) -> None:
    first, second = (trained(tmp_path / name, METHODS[0], sigma=0.0) for name in ("first", "second"))
    assert difference(first, second) == 0
