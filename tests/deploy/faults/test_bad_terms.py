"""What sites say when they join: who says something else than the others stays out, whatever its name is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from disturbed import missing
from federation import Federation, write_digits
from in_process import Answering

from fewfed.deploy import messages
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import Expected, seal, unseal
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.status import read_status
from fewfed.errors import RunError
from fewfed.runs.folder import RunFolder

FOUR = ("amber", "birch", "cedar", "delta")
TABLE = {"kind": "table", "columns": [{"name": f"c{number}", "categories": []} for number in range(64)]}


def saying(federation: Federation, name: str, change: Mapping[str, Any]) -> Answering:
    """A site that says something else when it joins."""
    site, keys = federation.site(name), federation.keys

    def answered(parcel: Parcel) -> Parcel | None:
        answer = site.answer(parcel)
        about = unseal(parcel.letter, Expected(), {COORDINATOR: keys[COORDINATOR].public}).about
        if answer is None or about.kind != messages.JOIN:
            return answer
        head, _ = messages.unpack(unseal(answer.letter, Expected(), {name: keys[name].public}).body)
        return Parcel(seal(messages.pack({**head, **change}), about.reply(), keys[name]))

    return answered


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": TABLE}, "of the kind 'table'"),
        ({"inputs": {"kind": "images", "columns": []}}, "of the kind 'images'"),
        ({"inputs": {"kind": "table", "columns": 7}}, "damaged"),
        ({"inputs": {"kind": ["table"], "columns": {}}}, "damaged"),
        ({"rows": 0}, "rows: expected"),
        ({"rows": -1}, "expected a number of rows"),
        ({"rows": 1 << 39}, "rows: expected"),
        ({"test_rows": 1 << 39}, "it tests on more than"),
        ({"validation_rows": (1 << 40) - 1}, "it tests on more than"),
        ({"weights": "others"}, "other first weights"),
        ({"version": "0.0.1"}, "it has fewfed 0.0.1"),
    ],
)
@pytest.mark.parametrize("bad", [pytest.param("amber", id="the first"), pytest.param("delta", id="the last")])
def test_a_site_that_says_something_else_does_not_join(
    bad: str, change: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, "fedavg", 2, names=FOUR, quorum=3, deadline=30.0)
    federation.transport.restart(bad, saying(federation, bad, change))
    out = Path(federation.run().folder)
    assert {site for _, _, site in missing(out, FOUR)} == {bad}
    assert len(missing(out, FOUR)) == 2
    assert said in read_status(out)["sites"][bad]["declined"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_site_that_comes_first_and_is_odd_keeps_nobody_out(
    restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites come one after another. Nobody can tell who of the first two is odd; with the third it shows."""
    write_digits(tmp_path)
    federation = Federation(tmp_path, "fedavg", 2, names=FOUR, quorum=3, deadline=30.0, federation="give_up = 30")
    federation.transport.restart("amber", saying(federation, "amber", {"inputs": TABLE}))
    present, calls = federation.transport.present, iter(range(10**6))

    def one_by_one() -> Mapping[str, str]:
        here = present()
        return {name: here[name] for name in FOUR[: 1 + next(calls) // 5] if name in here}

    monkeypatch.setattr(federation.transport, "present", one_by_one)
    if restarted:

        class Stop(Exception):
            pass

        class After:
            def after_round(self, view: Any) -> None:
                raise Stop

        with pytest.raises(Stop):
            federation.run(observers=[After()])
        calls = iter(range(10**6))
    out = Path(federation.run(resume=restarted).folder)
    assert {site for _, _, site in missing(out, FOUR)} == {"amber"}
    assert "of the kind 'table'" in read_status(out)["sites"]["amber"]["declined"]


def test_rows_that_sites_hold_back_are_scored(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, "fedavg", 2, names=FOUR, quorum=4, more="validation = 0.25")
    records = RunFolder(Path(federation.run().folder)).metrics()
    assert all(set(record["validation"]["per_group"]) == set(FOUR) for record in records)


def test_status_is_there_while_sites_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four are there, one of them declines: nothing can begin, and whoever asks is told why."""
    write_digits(tmp_path)
    federation = Federation(tmp_path, "fedavg", 2, names=FOUR, quorum=3, federation="give_up = 1")
    federation.transport.restart("amber", saying(federation, "amber", {"version": "0.0.1"}))
    federation.transport.leave("cedar")
    federation.transport.leave("delta")
    seen: list[dict[str, Any]] = []
    present = federation.transport.present

    def looked() -> Mapping[str, str]:
        if (tmp_path / "run" / "status.json").exists():
            seen.append(read_status(tmp_path / "run"))
        return present()

    monkeypatch.setattr(federation.transport, "present", looked)
    with pytest.raises(RunError, match="only 1 sites joined"):
        federation.run()
    found = seen[-2]  # The last look is that of the coordinator which writes that it has ended.
    assert found["state"] == "waiting for sites"
    assert [name for name, site in found["sites"].items() if site["joined"]] == ["birch"]
    assert "0.0.1" in found["sites"]["amber"]["declined"]
