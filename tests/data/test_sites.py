"""Sites of a split, against sets of rows counted one by one."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import SplitFederation
from fewfed.data.sites import NOBODY, sites_of
from fewfed.data.splits import Split


def dataset(trained: list[int], tested: list[int]) -> Dataset:
    def rows(count: int) -> Examples:
        return Examples(torch.zeros(count, 1), torch.zeros(count, dtype=torch.long))

    return Dataset(
        "any", rows(len(trained)), rows(len(tested)), 1, groups={"client": np.array(trained)},
        test_groups={"client": np.array(tested)}, group_names={"client": ("zero", "one", "two")},
    )  # fmt: skip


IDS = st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=1, max_size=12)


@given(IDS, IDS, st.data())
def test_every_site_is_there_with_its_rows(trained: list[int], tested: list[int], data: st.DataObject) -> None:
    given_out = data.draw(st.lists(st.sampled_from([0, 1, 2, None]), min_size=len(trained), max_size=len(trained)))
    parts = [[row for row, owner in enumerate(given_out) if owner == client] for client in range(3)]
    for name in ("client", "iid"):
        split = Split.of(name, [np.array(part, np.int64) for part in parts])
        found = sites_of(SplitFederation(dataset(trained, tested), split))
        known = sorted({*trained, *tested})
        assert found.names == tuple({0: "zero", 1: "one", 2: "two"}.get(one, str(one)) for one in known)
        held = [trained[row] for part in parts for row in part]
        assert found.train_rows == tuple(held.count(one) for one in known)
        assert [known[site] for site in found.of_tests.tolist()] == tested
        owned = [{trained[row] for row in part} for part in parts]
        alone = [known.index(next(iter(ids))) if len(ids) == 1 else NOBODY for ids in owned]
        assert list(found.of_clients) == (alone if name == "client" else [NOBODY] * 3)


def test_data_without_groups_have_no_sites() -> None:
    rows = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    split = Split.of("iid", [np.arange(2), np.arange(2, 4)])
    found = sites_of(SplitFederation(Dataset("plain", rows, rows, 1), split))
    assert (found.names, found.train_rows, found.of_clients) == ((), (), (NOBODY, NOBODY))
    assert found.of_tests.tolist() == [NOBODY] * 4


def test_groups_of_training_rows_alone_are_sites_without_test_rows() -> None:
    rows = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    data = Dataset("half", rows, rows, 1, groups={"subject": np.array([3, 3, 4, 4])})
    found = sites_of(SplitFederation(data, Split.of("subject", [np.arange(2), np.arange(2, 4)])))
    assert (found.names, found.train_rows, found.of_clients) == (("3", "4"), (2, 2), (0, 1))
    assert found.of_tests.tolist() == [NOBODY] * 4
