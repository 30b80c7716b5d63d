"""Runs that come, go on, stop, are damaged and go, as a watcher sees them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from live_runs import FOR_EVER, Hand, Writer, at_work, comparison, watched, watcher

from fewfed.deploy.status import STATUS
from fewfed.report.live import watched_run
from fewfed.report.live.report import LiveReport
from fewfed.report.live.watcher import Watcher
from fewfed.report.page.detail import detail_of
from fewfed.report.survey import look_at
from fewfed.runs.folder import CONFIG, METRICS, RESULT, held, is_held


def live(found: Watcher) -> dict[str, Any]:
    return dict(json.loads(found.look(FOR_EVER).live))


def states(found: Watcher) -> dict[str, str]:
    return {Path(run["folder"]).name: run["state"] for run in live(found)["runs"]}


def test_a_run_is_known_to_go_on_by_its_lock(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run").go_on(2)
    assert not is_held(run.folder)
    with held(run.folder):
        pass
    assert not is_held(run.folder)
    with at_work(run.folder):
        assert is_held(run.folder)
        assert is_held(run.folder)
        assert states(watcher(tmp_path)) == {"run": "running"}
    assert states(watcher(tmp_path)) == {"run": "stopped"}
    assert not is_held(tmp_path / "nowhere")


def test_looking_keeps_nobody_from_beginning(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            is_held(run.folder)
        os._exit(0)
    for _ in range(200):
        with held(run.folder):
            pass
    os.waitpid(pid, 0)


def test_what_is_found_is_what_a_survey_finds(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run").go_on(3)
    found = watched(run.folder)
    assert found.found == look_at(run.folder)
    run.go_on(2)
    assert found.look(FOR_EVER)
    assert found.found == look_at(run.folder)
    run.finish()
    assert found.look(FOR_EVER)
    assert found.found == look_at(run.folder)
    assert found.state == "finished"


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Writer(tmp_path / "run").finish()
    found = watched(run.folder)
    monkeypatch.setattr(watched_run, "look_at", lambda *_: pytest.fail("read again"))
    assert not found.look(FOR_EVER)


def test_a_run_that_is_finished_between_two_glances_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Writer(tmp_path / "run").go_on(3)
    looked, once = watched_run.look_at, []

    def interrupted(folder: Path, rounds: Any) -> Any:
        def read_on(own: Any, start: str) -> Any:
            found = rounds(own, start)
            found = (list(found[0]), found[1])
            if not once:
                once.append(run.finish())  # The metrics were read, and now there are more of them, and a result.
            return found

        return looked(folder, read_on)

    monkeypatch.setattr(watched_run, "look_at", interrupted)
    assert watched(run.folder).state == "finished"


@pytest.mark.parametrize("name", [CONFIG, METRICS, RESULT])
def test_damage_is_seen_while_it_is_watched_and_so_is_its_mending(tmp_path: Path, name: str) -> None:
    run = Writer(tmp_path / "run").finish()
    found = watcher(tmp_path)
    assert states(found) == {"run": "finished"}
    before = (run.folder / name).read_bytes()
    (run.folder / name).write_bytes(before.replace(b'"rounds"', b'"Rounds"').replace(b'"lr"', b'"LR"'))
    (row,) = live(found)["runs"]
    assert (row["state"], "damaged" in row["problem"]) == ("damaged", True)
    (run.folder / name).write_bytes(before)
    assert states(found) == {"run": "finished"}


def test_folders_come_and_go(tmp_path: Path) -> None:
    found = watcher(tmp_path / "runs")
    assert live(found)["runs"] == []
    Writer(tmp_path / "runs" / "deep" / "one").go_on()
    assert states(found) == {"one": "stopped"}
    Writer(tmp_path / "runs" / "two").finish()
    assert states(found) == {"one": "stopped", "two": "finished"}
    shutil.rmtree(tmp_path / "runs" / "deep")
    assert states(found) == {"two": "finished"}
    shutil.rmtree(tmp_path / "runs")
    assert states(found) == {}
    Writer(tmp_path / "runs" / "two").go_on(3)
    assert states(found) == {"two": "stopped"}


def test_a_run_that_is_deleted_and_begun_anew_in_its_place_is_the_new_one(tmp_path: Path) -> None:
    found = watcher(tmp_path)
    Writer(tmp_path / "run", seed=1).finish()
    assert states(found) == {"run": "finished"}
    shutil.rmtree(tmp_path / "run")
    Writer(tmp_path / "run", seed=2).go_on(2)
    (row,) = live(found)["runs"]
    assert (row["seed"], row["done"], row["state"]) == (2, 2, "stopped")


def test_cells_of_a_comparison_wait_their_turn(tmp_path: Path) -> None:
    folders = comparison(tmp_path, [("fedavg", seed) for seed in range(6)])
    hand = Hand()
    found = watcher(tmp_path, clock=hand)
    assert set(states(found).values()) == {"not begun"}
    Writer(folders[0], seed=0).finish()
    Writer(folders[1], seed=1).go_on(2)  # It failed: others had their turn since.
    Writer(folders[2], seed=2).go_on(5)
    Writer(folders[4], seed=4).go_on(3)  # It was stopped another time and will be continued.
    with at_work(folders[2]):
        told = live(found)
    by_state = {Path(run["folder"]).name[-5:]: run["state"] for run in told["runs"]}
    assert by_state == {"seed0": "finished", "seed1": "stopped", "seed2": "running", "seed3": "waiting",
                        "seed4": "waiting", "seed5": "waiting"}  # fmt: skip
    assert (told["done"], told["asked"]) == (10 + 2 + 5 + 3, 60)
    assert told["left"] == "about 60 s"  # 10 s, then 20, 14 and 20 one after another.
    hand.now += 5
    assert states(found)["fedavg-seed3"] == "waiting"  # One run ends before the next begins.
    hand.now += 60
    assert states(found)["fedavg-seed3"] == "not begun"


def test_a_list_of_cells_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    from fewfed.engine.own_folder import OwnFolder
    from fewfed.runs.cells_file import CELLS, read_cells
    from fewfed.runs.seals import write_sealed

    for bad in ("../other", "/etc", "", 3, None, "a/../../b"):
        cell = {"folder": bad, "method": "fedavg", "seed": 0, "rounds": 3}
        write_sealed(OwnFolder(tmp_path) / CELLS, {"cells": [cell]})
        with pytest.raises(Exception, match=r"is damaged"):
            read_cells(tmp_path)
        assert live(watcher(tmp_path))["runs"] == []


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Writer(tmp_path / "run").go_on(4)
    found = watcher(tmp_path)
    with at_work(run.folder):
        before = live(found)
        for year in (0.0, 4e9):
            monkeypatch.setattr(time, "time", lambda year=year: year)
            os.utime(run.folder / METRICS, (year, year))
            assert live(found) == before
    assert before["left"] == "about 10 s"


def test_a_run_that_hangs_is_told_instead_of_foretold(tmp_path: Path) -> None:
    run, hand = Writer(tmp_path / "run").go_on(4), Hand()
    found = watcher(tmp_path, clock=hand)
    with at_work(run.folder):
        live(found)
        hand.now += 300
        told = live(found)
    assert told["runs"][0]["left"] == "no round for about 5 min"
    assert told["left"] == ""


def test_a_long_file_is_read_in_several_looks_and_others_do_not_wait_for_it(tmp_path: Path) -> None:
    Writer(tmp_path / "a-long", rounds=4000).finish()
    Writer(tmp_path / "short").finish()
    found = watcher(tmp_path)
    first = json.loads(found.look(0.05).live)
    by_name = {Path(run["folder"]).name: run for run in first["runs"]}
    assert 0 < by_name["a-long"]["part"] < 1
    assert by_name["a-long"]["state"] != "damaged"
    assert first["unread"] >= 1
    for _ in range(400):
        told = json.loads(found.look(0.05).live)
        if not told["unread"]:
            break
    assert {run["state"] for run in told["runs"]} == {"finished"}


def test_a_folder_that_must_not_be_looked_into_is_told(tmp_path: Path) -> None:
    Writer(tmp_path / "open").finish()
    Writer(tmp_path / "locked" / "run").finish()
    found = watcher(tmp_path / "open", tmp_path / "locked")
    is_root = os.geteuid() == 0
    (tmp_path / "locked").chmod(0)
    try:
        if is_root:  # To whom nothing is forbidden.
            os.seteuid(65534)
        told = live(found)
    finally:
        if is_root:
            os.seteuid(0)
        (tmp_path / "locked").chmod(0o700)
    assert any("locked" in remark and "ermission denied" in remark for remark in told["remarks"])
    assert len(live(found)["runs"]) == 2


def test_names_that_are_odd_and_links(tmp_path: Path) -> None:
    elsewhere = Writer(tmp_path / "elsewhere").finish()
    root = tmp_path / "runs"
    odd = root / "<script>alert(1)</script>?x=.. &amp;\n\x1b[31m ü"
    Writer(odd).finish()
    deep = root.joinpath(*["x" * 200] * 4)
    Writer(deep).finish()
    (root / "link").symlink_to(elsewhere.folder)
    (root / "linked").mkdir()
    shutil.copytree(odd, root / "linked" / "run")
    (root / "linked" / "run" / METRICS).unlink()
    (root / "linked" / "run" / METRICS).symlink_to(elsewhere.folder / METRICS)
    rows = live(watcher(root, root / "." / odd.name))["runs"]
    assert sorted(row["state"] for row in rows) == ["damaged", "finished", "finished"]
    assert not any(letter in row["folder"] for row in rows for letter in "\n\x1b")


def test_a_link_that_was_named_is_followed(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run").finish()
    (tmp_path / "link").symlink_to(run.folder)
    assert [row["state"] for row in live(watcher(tmp_path / "link"))["runs"]] == ["finished"]


def status(folder: Path, **changes: Any) -> None:
    site = {"present": True, "joined": True, "declined": "", "rows": 24, "sent_bytes": 2_500_000,
            "received_bytes": 1_000_000, "accuracy": 0.75, "strikes": 1, "last_strike": "wrong shape",
            "quarantined": False, "withdrawn": False}  # fmt: skip
    sites = {"north": site, "south": {**site, "present": False, "rows": None, "accuracy": None, "strikes": 0,
                                      "last_strike": ""}}  # fmt: skip
    content = {"state": "running", "written": time.time(), "round": 3, "rounds": 10, "sites": sites, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATUS).write_text(json.dumps(content))


def test_a_coordinator_that_waits_for_its_sites_is_no_damaged_run(tmp_path: Path) -> None:
    status(tmp_path / "run", state="waiting for sites", round=0, rounds=0)
    with at_work(tmp_path / "run"):
        told = live(watcher(tmp_path))
    assert [row["state"] for row in told["runs"]] == ["running"]
    (federation,) = told["federations"]
    assert federation["state"] == "waiting for sites"
    north, south = federation["sites"]
    assert (north["present"], north["mb_to"], north["accuracy"], north["strikes"]) == (True, 2.5, 0.75, 1)
    assert north["remarks"] == "wrong shape"
    assert (south["present"], south["rows"]) == (False, None)


def test_a_coordinator_that_died_is_told_and_nobody_counts_as_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Writer(tmp_path / "run").go_on(3)
    status(run.folder)
    found = watcher(tmp_path)
    with at_work(run.folder):
        assert live(found)["federations"][0]["state"] == "running"
    told = live(found)
    assert told["federations"][0]["written"] == "a few seconds"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 240)  # Nothing is written any more, and that is said.
    assert live(found)["federations"][0]["written"] == "about 4 min"
    assert told["federations"][0]["state"] == "its coordinator is gone"
    assert [site["present"] for site in told["federations"][0]["sites"]] == [None, None]
    assert told["runs"][0]["state"] == "stopped"


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"written": "x"}', '{"state": 1, "written": 1, "round": "a", "rounds": 1, "sites": {}}',
     '{"state": "running", "written": 1, "round": 1, "rounds": 1, "sites": {"a": 3}}',
     '{"state": "running", "written": 1e400, "round": 1, "rounds": 1, "sites": {"a": {"accuracy": NaN}}}'],
)  # fmt: skip
def test_a_damaged_status_costs_the_sites_and_nothing_else(tmp_path: Path, text: str) -> None:
    run = Writer(tmp_path / "run").go_on(3)
    (run.folder / STATUS).write_text(text)
    told = live(watcher(tmp_path))
    assert told["runs"][0]["state"] == "stopped"
    assert "damaged" in told["federations"][0]["problem"]


def test_two_hundred_runs_are_shown_anew_in_under_a_second(tmp_path: Path) -> None:
    """Of one core's time, which other programs do not change; the page does not wait for the report either."""
    cells = [(method, seed) for method in ("fedavg", "fedprox", "flea", "fedmix") for seed in range(50)]
    folders = comparison(tmp_path, cells, 40)
    runs = [
        Writer(folder, method, seed, rounds=40).go_on(39 if seed % 2 else 10)
        for folder, (method, seed) in zip(folders, cells, strict=True)
    ]
    for run in runs:
        if run.done == 39:
            run.finish()
    report = LiveReport()
    found = watcher(tmp_path, compose=report.compose)
    looks = 0
    while not looks or found.is_behind:
        began = time.process_time()
        found.look(0.4)
        assert time.process_time() - began < 1.0
        looks += 1
    found.catch_up()
    for run in runs:
        if run.done < 40:
            run.go_on(1)
    began = time.process_time()
    told = json.loads(found.look(FOR_EVER).live)
    updated = json.loads(found.catch_up().contents)
    assert time.process_time() - began < 1.0
    assert told["done"] == 100 * 40 + 100 * 11
    assert "11 of 40" in updated["main"]
    began = time.process_time()
    found.look(0.4)
    assert time.process_time() - began < 0.3
    assert not found.is_stale


def test_what_is_kept_of_a_round_is_all_that_a_report_is_made_from(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run").finish()
    seen = watched(run.folder)
    assert detail_of(seen.found, seen.records) == detail_of(look_at(run.folder))


def test_a_run_that_is_known_stays_on_the_page_while_more_of_it_is_read(tmp_path: Path) -> None:
    runs = [Writer(tmp_path / f"run{number}", seed=number, rounds=900).go_on(2) for number in range(3)]
    shown: list[set[str]] = []
    found = watcher(tmp_path, compose=lambda runs: shown.append({run.folder.name for run in runs}) or "{}")  # type: ignore[func-returns-value]
    found.look(FOR_EVER)
    found.catch_up()
    for run in runs:
        run.go_on(800)
    done: list[int] = []
    for _ in range(500):
        told = json.loads(found.look(0.01).live)
        found.catch_up()
        assert told["unread"] == 0
        done.append(min(run["done"] for run in told["runs"]))
        if not found.is_behind:
            break
    assert done == sorted(done)
    assert len(done) > 2
    assert done[-1] == 802
    assert set(map(frozenset, shown)) == {frozenset({"run0", "run1", "run2"})}


def test_a_baseline_that_nobody_has_run_is_told_until_somebody_does(tmp_path: Path) -> None:
    """It may be the next of a comparison, or spelled wrongly; others must not pass for compared with it."""
    Writer(tmp_path / "one").finish()
    looking, report = watcher(tmp_path), LiveReport("fedprox")
    looking.look(FOR_EVER)
    told = "No run of fedprox is here yet, which others are to be compared with."
    assert told in report.compose(list(looking._runs.values()))
    Writer(tmp_path / "two", "fedprox").finish()
    looking.look(FOR_EVER)
    assert told not in report.compose(list(looking._runs.values()))
