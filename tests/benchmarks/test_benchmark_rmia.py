"""The RMIA benchmark runs from reading to its file, and of its references as many as it says have seen a row."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch

from fewfed.privacy.attacks import rmia

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from rmia_cifar import PUBLISHED, REFERENCE_SETS, REFERENCES, SIGNALS, Parted, copies, main, voted


def test_it_runs_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "rmia.json"
    main(
        [
            "--data",
            "digits",
            "--network",
            "mlp",
            "--epochs",
            "2",
            "--batch",
            "64",
            "--device",
            "cpu",
            "--json",
            str(out),
        ]
    )
    found = json.loads(out.read_text())
    assert len(found["accuracy"]) == 1 + REFERENCES
    assert found["members"] == 287
    tried = {(each["references"], each["signal"], each["copies"]): each for each in found["attacks"]}
    assert tried.keys() == {*itertools.product(REFERENCE_SETS, SIGNALS, (1, 18))}
    for each in (*tried.values(), found["loss threshold"]):
        value, low, high = each["auc"]
        assert 0 <= low <= value <= high <= 100
    assert {key: each["published auc"] for key, each in tried.items() if "published auc" in each} == PUBLISHED


def test_copies_are_eighteen_and_the_first_is_the_picture() -> None:
    x = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).float()
    found = copies(x)
    assert len({tuple(each.flatten().tolist()) for each in found}) == 18
    assert bool((found[0] == x).all())
    assert bool((found[9] == x.flip(-1)).all())
    down = found[2]  # By one row: the first row is the second one, mirrored at the edge.
    assert bool((down[:, :, 1:] == x[:, :, :-1]).all())
    assert bool((down[:, :, 0] == x[:, :, 1]).all())


def test_most_copies_of_a_row_decide_whether_it_stands_out() -> None:
    """Against a direct count; one copy gives what `scores` does."""
    random = torch.Generator().manual_seed(5)
    rows, population = (torch.rand(4, count, generator=random).double() + 0.1 for count in (250, 30))
    found = voted(rows, population, 1.3)
    for x in range(250):
        wins = sum(sum(float(rows[k, x]) > 1.3 * float(population[k, z]) for k in range(4)) > 2 for z in range(30))
        assert wins / 30 <= float(found[x]) < (wins + 1) / 30
    one = voted(rows[:1], population[:1], 1.3)
    assert torch.allclose(one, rmia.scores(rows[0], population[0], 1.3))


def test_two_of_four_references_have_seen_a_row_and_the_target_no_other() -> None:
    parts = Parted.of(100, 1)
    assert len(parts.members) == len(parts.others) == len(parts.population) == 20
    target = set(parts.halves[0].tolist())
    assert set(parts.members.tolist()) <= target
    assert not target & {*parts.others.tolist(), *parts.population.tolist()}
    assert not set(parts.others.tolist()) & set(parts.population.tolist())
    seen = parts.seen(torch.arange(100))
    assert bool((seen.sum(0) == 2).all())
    assert bool((seen[0] ^ seen[1]).all())
    assert seen[0].tolist() == [row in set(parts.halves[1].tolist()) for row in range(100)]
