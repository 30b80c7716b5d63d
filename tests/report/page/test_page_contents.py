"""What a report says, from run folders: numbers by hand, tables for other programs, and folders from anybody."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import statistics
import tomllib
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fewfed
from fewfed.errors import ConfigError, RunError
from fewfed.report.catalogue import phase_texts
from fewfed.report.page import privacy_part
from fewfed.report.page.charts import MOST_A_CURVE, over_runs, thinned
from fewfed.report.page.contents import Contents, contents
from fewfed.report.page.detail import detail_of
from fewfed.report.page.figures import ticks
from fewfed.report.page.render import embedded, render, update
from fewfed.report.page.sheets import Cell, Sheet
from fewfed.report.page.write import write_report
from fewfed.report.survey import survey
from fewfed.runs.comparison import planned
from fewfed.runs.experiment import Resolved
from fewfed.runs.folder import METRICS, SCORES, SPLIT
from fewfed.runs.seals import DIGEST
from report_support import rising, write_run
from run_support import SHORT, called, small

EVIL = "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;\u2028"


def page_of(*folders: Path, baseline: str = "") -> Contents:
    return contents(survey(list(folders)), baseline=baseline)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two methods, three seeds each."""
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0.4, 0.5 + 0.01 * seed], sites=("north", "south"))
        write_run(tmp_path / f"b{seed}", "flea", seed, [0.5, 0.6 + 0.02 * seed], sites=("north", "south"))
    return tmp_path


def test_the_table_has_means_and_deviations_over_seeds(two: Path) -> None:
    (task,) = page_of(two).tasks
    assert task.results.columns[:5] == ("method", "best", "last", "last 10", "seeds")
    last = [0.6, 0.62, 0.64]
    row = {cell.text for cell in task.results.rows[1]}
    assert f"{100 * statistics.fmean(last):.1f} ± {100 * statistics.stdev(last):.1f}" in row
    assert [cell.strong for cell in task.results.rows[1][1:4]] == [True] * 3
    assert task.sentences == ("flea beats fedavg by 10.5 ± 1.2 points, 3 of 3 seeds.",)


def test_curves_are_means_with_a_deviation_and_every_seed_beside_them(two: Path) -> None:
    (task,) = page_of(two).tasks
    assert task.curves is not None
    flea = next(line for line in task.curves.lines if line.label == "flea")
    assert flea.x == (1, 2)
    assert flea.mean == (50.0, 62.0)
    assert (flea.low, flea.high) == ((50.0, 60.0), (50.0, 64.0))
    assert flea.single == {"0": (50.0, 60.0), "1": (50.0, 62.0), "2": (50.0, 64.0)}
    assert task.traffic is not None
    assert task.traffic.lines[0].x == (3.0, 6.0)


def test_classes_sites_and_split_are_there(two: Path) -> None:
    (task,) = page_of(two).tasks
    assert task.classes is not None
    assert task.sites is not None
    assert task.split is not None
    assert task.classes.columns == ("method", "a", "b")
    assert [row[0].text for row in task.sites.rows] == ["north", "south"]
    assert "all 2 clients" in task.split.caption


def test_another_baseline_turns_the_sentence_round(two: Path) -> None:
    (task,) = page_of(two, baseline="flea").tasks
    assert task.sentences == ("fedavg is behind flea by 10.5 ± 1.2 points, 3 of 3 seeds.",)
    with pytest.raises(ConfigError, match=r"baseline 'fleaa'.*did you mean.*flea"):
        page_of(two, baseline="fleaa")


def test_without_fedavg_the_first_method_is_the_baseline(tmp_path: Path) -> None:
    for method in ("fedprox", "flea"):
        write_run(tmp_path / method, method, 0)
    (task,) = page_of(tmp_path).tasks
    assert task.sentences == ("flea and fedprox came to the same; one seed, no interval.",)
    assert task.intervals is None


def test_runs_of_other_tasks_are_not_compared_with_each_other(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    write_run(tmp_path / "b", "flea", 0, values={"noise": 0.5})
    write_run(tmp_path / "c", "flea", 0, metric="loss", curve=[2.0, 1.0])
    found = page_of(tmp_path)
    assert [task.sentences for task in found.tasks] == [(), (), ()]
    assert len({task.title for task in found.tasks}) == 3
    assert any("noise 0.5" in task.title for task in found.tasks)


def test_rows_of_one_method_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for number, mu in enumerate((0.1, 0.5)):
        write_run(tmp_path / f"p{number}", "fedprox", 0, values={"mu": mu})
    write_run(tmp_path / "a", "fedavg", 0)
    (task,) = page_of(tmp_path).tasks
    assert task.curves is not None
    assert {line.label for line in task.curves.lines} == {"fedavg", "fedprox, mu=0.1", "fedprox, mu=0.5"}


def test_a_setting_that_is_empty_is_called_none(tmp_path: Path) -> None:
    """'fedavg, policy= beats ...' looks as if something were missing."""
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "fedavg", values={"policy": "sites.toml"})
    (task,) = page_of(tmp_path).tasks
    assert [row[0].text for row in task.leaving.rows] == ["fedavg, policy=none", "fedavg, policy=sites.toml"]


def test_short_names_leave_the_room_to_their_intervals(tmp_path: Path) -> None:
    """On a telephone a fifth of the figure was empty, and the intervals beyond the edge."""
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "fedavg", seed)
        write_run(tmp_path / f"b{seed}", "flea", seed, [0.6, 0.7, 0.8 + 0.01 * seed])
    (task,) = page_of(tmp_path).tasks
    assert task.intervals is not None
    assert min(float(x) for x in re.findall(r' x1="([\d.]+)"', task.intervals.svg)) < 100


def test_a_smaller_loss_is_better(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [2.0, 1.0 + seed / 100], metric="loss")
        write_run(tmp_path / f"b{seed}", "flea", seed, [2.0, 0.5 + seed / 100], metric="loss")
    (task,) = page_of(tmp_path).tasks
    assert task.sentences[0].startswith("flea beats fedavg by 0.250 ± 0.000 in loss, 3 of 3 seeds")
    strong = {row[0].text: row[2].strong for row in task.results.rows}
    assert strong == {"fedavg": False, "flea": True}


def test_unfinished_seeds_share_a_row_and_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    for seed in range(2):
        write_run(tmp_path / f"b{seed}", "flea", seed, [0.5] * (2 + seed), values={"rounds": 3}, finished=False)
    found = page_of(tmp_path)
    texts = [[cell.text for cell in row] for row in found.tasks[0].results.rows]
    assert any("unfinished 2 to 3/3" in row for row in texts)
    assert found.tasks[0].sentences == ()
    assert {row[-1].text for row in found.runs.rows} == {"finished", "unfinished"}


def test_damaged_runs_are_shown_as_such_and_cost_no_other(two: Path) -> None:
    (two / "a0" / METRICS).write_bytes(b'{"round": 1}\n')
    (two / "a1" / SCORES).write_text("{}")
    (two / "b1" / SPLIT).write_text('{"clients": 2}')
    (two / "b2" / "attacks").mkdir()
    (two / "b2" / "attacks" / "attacks.json").write_text('{"findings": [3]}')
    found = page_of(two)
    assert sum(row[-1].text == "damaged" for row in found.runs.rows) == 1
    for name in ("a0", "a1", "b1", "b2"):
        assert any(f"/{name}" in line for line in found.problems), name
    assert found.tasks[0].sentences[0].startswith("flea beats fedavg")
    assert "only one of the two has seed 0" in found.tasks[0].sentences[0]
    assert "damaged" in render(found)


def test_a_page_of_nothing_but_damage_still_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / METRICS).write_bytes(b"\x00\n")
    found = page_of(tmp_path)
    assert found.tasks == ()
    assert "1 damaged" in found.lead[0]
    render(found)


class _Elements(HTMLParser):
    """Every element of a page, and every attribute that could run something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def elements(text: str) -> _Elements:
    found = _Elements()
    found.feed(text)
    return found


def evil_run(folder: Path, evil: str, **more: Any) -> Path:
    return write_run(folder, "flea", 0, label=evil, classes=(evil, "b"), sites=(evil,), note=f"{evil}\n{evil}", **more)


def test_names_come_out_as_text_whatever_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "tame", sites=("x",))
    evil_run(tmp_path / "</td><script>alert(3)</script>", EVIL)
    text = render(page_of(tmp_path))
    seen = elements(text)
    assert seen.names.count("script") == 3
    assert not seen.handlers
    assert "img" not in seen.names
    assert "alert(1)" in text


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_stays_text(tmp_path: Path, text: str) -> None:
    place = tmp_path / "any"
    shutil.rmtree(place, ignore_errors=True)
    evil_run(place, text)
    seen = elements(render(page_of(place)))
    tame = {"script": 3, "style": 1, "h1": 1, "main": 1}
    assert {name: seen.names.count(name) for name in tame} == tame
    assert not seen.handlers


def test_what_is_embedded_is_json_without_nan_and_cannot_end_the_script() -> None:
    text = embedded({"a": "</script>\u2028&", "b": [1.5, None]})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script>\u2028&", "b": [1.5, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded(float("nan"))


def test_what_a_configuration_holds_is_printed_without_letters_that_a_terminal_obeys(tmp_path: Path) -> None:
    """Half of a pair of letters in it kept the live page from being sent."""
    file = write_run(tmp_path / "a") / "config.json"
    content = json.loads(file.read_text())
    content = {**content, "fewfed": "0.1", "training": {**content["training"], "optimizer": "\ud800\x1b[31madam"}}
    file.write_text(json.dumps({name: value for name, value in content.items() if name not in (DIGEST, "files")}))
    found = page_of(tmp_path)
    assert "adam" in found.tasks[0].described[1]
    assert all(line.isprintable() for line in found.tasks[0].described)
    render(found, live=True).encode()


def test_no_number_is_nan_in_the_page_or_its_data(tmp_path: Path) -> None:
    nan = {"loss": float("nan"), "davies_bouldin": {
        stage: {"train": None, "test": float("inf")} for stage in ("before", "local", "aggregated")}}  # fmt: skip
    for seed in (0, 1):  # Nothing to compare with: no common seed.
        write_run(tmp_path / f"r{seed}", ("fedavg", "flea")[seed], seed, record=nan)
    found = page_of(tmp_path)
    json.dumps(found.as_json(), allow_nan=False)
    json.dumps(update(found), allow_nan=False)
    assert "NaN" not in render(found).split('id="contents">')[1].split("</script>")[0]
    assert "no seed in common" in found.tasks[0].sentences[0]


def test_a_report_needs_no_outside_thing_and_carries_a_policy(two: Path) -> None:
    text = unescape(render(page_of(two)))
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    assert "connect-src 'self'" in unescape(render(page_of(two), live=True))
    assert '<link rel="icon" href="data:,">' in text
    assert 'src="http' not in text


def test_files_beside_the_page_hold_the_same_tables(two: Path, tmp_path: Path) -> None:
    made = fewfed.write_report(two, out=tmp_path / "out" / "page.html")
    assert made.page.is_file()
    assert made.tables == tmp_path / "out" / "page"
    rows = list(csv.DictReader(io.StringIO((made.tables / "results.csv").read_text())))
    assert [row["method"] for row in rows] == ["fedavg", "flea"]
    assert float(rows[1]["last_mean"]) == pytest.approx(0.62)
    differences = list(csv.DictReader(io.StringIO((made.tables / "differences.csv").read_text())))
    assert float(differences[0]["last10_difference"]) == pytest.approx(0.105)
    assert "| **62.0 ± 2.0** |" in (made.tables / "results.md").read_text()
    assert r"\textbf{62.0 $\pm$ 2.0}" in (made.tables / "results.tex").read_text()
    for figure in ("curves.svg", "traffic.svg", "split.svg", "differences.svg"):
        assert 'xmlns="http://www.w3.org/2000/svg"' in (made.tables / figure).read_text()
    assert not list(made.tables.glob("*.part"))


def test_figures_are_well_formed(two: Path) -> None:
    from xml.etree import ElementTree

    evil_run(two / "evil", EVIL)
    made = write_report([two])
    for name in made.files:
        if name.endswith(".svg"):
            ElementTree.parse(made.tables / name)


def test_tables_escape_what_their_formats_mean_something_by() -> None:
    sheet = Sheet("t", "a_b | 100 %", ("m", "n"), ((Cell("x|y_z\nnew & {50%} #1 \\cmd"), Cell("−1 ± 2")),))
    assert "x\\|y\\_z new & {50%} \\#1 \\\\cmd" in sheet.markdown()
    assert r"x\textbar{}y\_z new \& \{50\%\} \#1 \textbackslash{}cmd & $-$1 $\pm$ 2 \\" in sheet.latex()
    assert next(csv.reader(io.StringIO(sheet.csv().split("\n", 1)[1])))[0].startswith("x|y_z\nnew")


def test_a_name_at_the_beginning_of_a_row_is_no_option_of_the_line_before() -> None:
    """LaTeX reads what stands in brackets after the end of a row as a distance, and a star as part of that end."""
    sheet = Sheet("t", "said", ("m", "n"), ((Cell("[north]"), Cell("1")), (Cell("*all"), Cell("2"))))
    after = re.findall(r"(?:\\\\|rule)\s*(\S)", sheet.latex())
    assert after
    assert not {"[", "*"} & set(after)
    assert "{[}north]" in sheet.latex()


def test_a_column_of_sentences_is_broken_on_paper() -> None:
    sheet = Sheet("t", "said", ("m", "what", "n"), ((Cell("a"), Cell("word " * 100), Cell("1")),), words=2)
    assert r"\begin{tabular}{lp{0.75\linewidth}r}" in sheet.latex()


def test_a_name_that_looks_like_an_entity_or_a_formula_stays_as_it_is_in_markdown() -> None:
    (row,) = Sheet("t", "said", ("m",), ((Cell("&lt; &#60; R&D $x$ ~~y~~"),),)).markdown().splitlines()[2:3]
    assert row == r"| \&lt; &\#60; R&D \$x\$ \~\~y\~\~ |"


def test_sites_whose_long_names_differ_in_their_ends_are_different_sites(tmp_path: Path) -> None:
    names = tuple("x" * 150 + end for end in ("one", "two"))
    write_run(tmp_path / "a", "fedavg", 0, sites=names, classes=names)
    scores = json.loads((tmp_path / "a" / SCORES).read_text())
    (task,) = page_of(tmp_path).tasks
    assert task.sites is not None
    assert task.classes is not None
    assert [row[1].text for row in task.sites.rows] == [str(row["train_rows"]) for row in scores["per_site"]]
    assert len({row[0].text for row in task.sites.rows}) == len(task.classes.columns) - 1 == 2


def test_a_class_or_a_method_may_be_called_as_a_column_is(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5], classes=("method", "b"), sites=("north",), label="site")
    (task,) = page_of(tmp_path).tasks
    assert task.sites is not None
    assert task.classes is not None
    classes, sites = (next(csv.DictReader(io.StringIO(sheet.csv()))) for sheet in (task.classes, task.sites))
    assert classes == {"method": "site", "class method": "0.5", "b": "0.5"}
    assert sites == {"site": "north", "train_rows": "5", "test_rows": "4", "method site": "0.5"}


def test_the_command_leads_to_the_same_configuration(tmp_path: Path) -> None:
    fewfed.compare(["fedavg", "fedprox", "scaffold"], small(rounds=1, volume=0.5, metric="macro_f1"), SHORT, seeds=2,
                   values={"mu": 0.25}, out=tmp_path / "first")  # fmt: skip
    found = page_of(tmp_path / "first")
    wanted = {}
    for folder in (tmp_path / "first").glob("*-seed*"):
        config = detail_of(survey([folder])[0]).config
        wanted[folder.name] = Resolved.from_json(config).as_json()
    again = {}
    for line in found.tasks[0].commands:
        again |= _planned(shlex.split(line), tmp_path / "again")
    for name, config in wanted.items():
        config["experiment"]["executor"] = again[name]["experiment"]["executor"]
        assert _same(again[name]) == _same(config)


def _planned(words: list[str], out: Path) -> dict[str, dict[str, Any]]:
    """What the runs of a command would be, by the names of their folders."""
    assert words[:2] == ["fewfed", "compare"]
    methods = words[2 : words.index("--data")]
    values: dict[str, Any] = {}
    seeds, rest = 1, iter(words[words.index("--data") :])
    for flag, value in zip(rest, rest, strict=True):
        if flag == "--seeds":
            seeds = int(value)
        elif flag == "--set":
            name, _, setting = value.partition("=")
            values[name] = setting
        else:
            values[flag.removeprefix("--")] = value
    return {cell.name: cell.resolved.as_json() for cell in planned(methods, values, seeds, out).cells}


def _same(config: dict[str, Any]) -> str:
    fields = {name: float(value) for name, value in config["method_fields"].items()}
    return json.dumps({**config, "method_fields": fields, "executors": {}}, sort_keys=True)


def test_long_curves_are_thinned_with_both_ends_and_it_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, rising(900, 0.8))
    (task,) = page_of(tmp_path).tasks
    assert task.curves is not None
    line = task.curves.lines[0]
    assert (len(line.x), line.x[0], line.x[-1]) == (MOST_A_CURVE, 1, 900)
    assert task.curves.note == f"Of 900 evaluated rounds {MOST_A_CURVE} are drawn."


@given(st.integers(1, 500), st.integers(2, 60))
def test_thinning_keeps_order_ends_and_the_limit(count: int, most: int) -> None:
    found = thinned(range(count), most)
    assert found == sorted(set(found))
    assert len(found) == min(count, most)
    assert (found[0], found[-1]) == (0, count - 1)


def test_means_over_runs_of_different_lengths_are_numpys() -> None:
    values = np.array([[1.0, 2.0, np.nan], [3.0, 5.0, 7.0], [2.0, np.nan, np.nan]])
    mean, deviation = over_runs(values)
    assert mean.tolist() == np.nanmean(values, 0).tolist()
    assert deviation[:2] == pytest.approx(np.nanstd(values[:, :2], 0, ddof=1))
    assert deviation[2] == 0


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_lie_inside(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert len(found) <= 8
    assert all(low - 1e-6 * width <= tick <= low + width * 1.000001 for tick in found)


def test_the_command_writes_the_page_and_says_where(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = called(capsys, monkeypatch, "report", str(two))[1]
    assert text.splitlines()[-1] == f"report: {two / 'report.html'}"
    assert "flea beats fedavg by 10.5 ± 1.2 points, 3 of 3 seeds." in text
    assert (two / "report" / "results.tex").is_file()
    again = json.loads(called(capsys, monkeypatch, "report", str(two), "--json")[1].splitlines()[-1])
    assert again["contents"]["tasks"][0]["sentences"]


def test_of_several_tasks_the_command_says_which_a_sentence_is_of(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same methods on two splits: without a title nobody could tell the two sentences apart."""
    for seed in range(2):
        write_run(two / f"c{seed}", "fedavg", seed, [0.4, 0.5 + 0.01 * seed], values={"split": "iid"})
        write_run(two / f"d{seed}", "flea", seed, [0.3, 0.4 + 0.01 * seed], values={"split": "iid"})
    lines = called(capsys, monkeypatch, "report", str(two))[1].splitlines()
    titles = [number for number, line in enumerate(lines) if line.endswith(":")]
    assert len(titles) == 2
    assert sum("iid" in lines[number] for number in titles) == 1
    assert all("fedavg" in lines[number + 1] for number in titles)


def test_a_page_that_is_called_like_the_folder_of_its_runs_leaves_that_alone(two: Path) -> None:
    """`fewfed report runs/digits --out runs/digits.html` put sixty files between the runs."""
    before = sorted(file.name for file in two.iterdir())
    made = write_report([two], two.parent / f"{two.name}.html")
    assert sorted(file.name for file in two.iterdir()) == before
    assert made.tables == two.parent / f"{two.name}.html-files"
    assert write_report([two / "a0"], two / "a0.html").tables == two / "a0.html-files"
    assert write_report([two / "a0"], two / "other.html").tables == two / "other"


def test_pictures_of_a_page_have_room_for_so_many_marks(tmp_path: Path) -> None:
    """Two hundred runs over twenty splits of a hundred classes came to four megabytes."""
    for number in range(4):
        write_run(tmp_path / f"{number}", curve=[0.5] * (2 + number), counts=[[1] * 50] * 160, classes=range(50))
    found = page_of(tmp_path)
    assert [task.split is not None for task in found.tasks] == [True, True, False, False]
    assert any("not all pictures" in problem for problem in found.problems)
    assert not any("not all pictures" in problem for problem in page_of(tmp_path / "0", tmp_path / "1").problems)


def test_maps_of_features_have_room_for_so_many_points(tmp_path: Path) -> None:
    panel = {"name": "before", "x": [0.5] * 2000, "y": [0.5] * 2000}
    for number, method in enumerate(("fedavg", "flea", "moon", "fedprox")):
        folder = write_run(tmp_path / f"{number}", method)
        (folder / "feature_map.json").write_text(json.dumps({"labels": [0] * 2000, "panels": [panel, panel]}))
    (task,) = page_of(tmp_path).tasks
    assert [figure.name for figure in task.maps] == ["features-0-0", "features-1-1", "features-2-0", "features-3-1"]
    assert len(render(page_of(tmp_path))) < 800_000


def test_numbers_of_attacks_that_are_too_many_for_the_page_are_in_the_file(tmp_path: Path) -> None:
    measures = [{"what": f"measure {number}", "value": 0.5} for number in range(3)]
    finding = {"attack": "reconstruct", "round": 1, "threat": {}, "measures": measures}
    folder = write_run(tmp_path / "a") / "attacks"
    folder.mkdir()
    (folder / "attacks.json").write_text(json.dumps({"findings": [finding] * 200, "does_not_apply": []}))
    (task,) = page_of(tmp_path).tasks
    assert task.attacks is not None
    assert len(task.attacks.rows) == 400
    assert task.attacks.note == "200 more are in the CSV file of this table."
    assert len(list(csv.DictReader(io.StringIO(task.attacks.csv())))) == 600


@pytest.mark.parametrize("case", ["nothing", "empty", "folder as page", "no such baseline"])
def test_what_cannot_be_reported_is_one_sentence(case: str, two: Path, tmp_path: Path) -> None:
    (two / "void").mkdir()
    asked: dict[str, dict[str, Any]] = {
        "nothing": {"folders": [tmp_path / "nowhere"]},
        "empty": {"folders": [two / "void"]},
        "folder as page": {"folders": [two], "page": two / "void"},
        "no such baseline": {"folders": [two], "baseline": "sgd"},
    }
    with pytest.raises((RunError, ConfigError), match="expected"):
        write_report(**asked[case])


def test_results_and_comparisons_write_their_own_page(tmp_path: Path) -> None:
    found = fewfed.compare(["fedavg"], small(rounds=1), SHORT, out=tmp_path / "c")
    assert found.report().page == tmp_path / "c" / "report.html"
    assert found.results[0].report().page == tmp_path / "c" / "fedavg-seed0" / "report.html"
    assert page_of(tmp_path / "c").tasks[0].split is not None


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=9), st.just([]),
    st.just({}), st.just("\ud800</td>"), st.just([[1], [2, 3]]), st.just({"a": None}),
)  # fmt: skip


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another version, whose files carry no digests: whatever they hold, nothing refuses them before."""
    folder = tmp_path_factory.mktemp("unsealed") / "run"
    write_run(folder, "flea", 0, sites=("north",), record={"davies_bouldin": {
        stage: {"test": 1.0} for stage in ("before", "local", "aggregated")}})  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "fewfed": "0.1.0", "files": {}, "digest": None}))
    plain = {name: value for name, value in config.items() if name not in ("digest", "files")}
    (folder / "config.json").write_text(json.dumps({**plain, "fewfed": "0.1.0"}))
    result = json.loads((folder / "result.json").read_text())
    privacy = {"epsilon_server": 3.0, "epsilon_sites": None, "delta": 1e-5, "noise": "n", "assumed": "",
               "without_bound": {"server": [], "sites": ["why"]}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps({**result, "privacy": privacy}))
    (folder / "attacks").mkdir()
    finding = {"attack": "labels", "variant": "", "round": 1, "phase": "p", "threat": {"who": "w"}, "measures": [
        {"what": "x", "value": 1.0, "low": 0.0, "high": 2.0, "chance": None}]}  # fmt: skip
    idle = [{"attack": "a", "why": "b"}]
    (folder / "attacks" / "attacks.json").write_text(json.dumps({"findings": [finding], "does_not_apply": idle}))
    panel = {"name": "n", "x": [1.0, 2.0], "y": [1.0, 0.5], "davies_bouldin": 1.0}
    (folder / "feature_map.json").write_text(json.dumps({"labels": [0, 1], "panels": [panel]}))
    return folder


FILES = ("config.json", "result.json", "split.json", "environment.json", "metrics.jsonl", "attacks/attacks.json",
         "feature_map.json")  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(file=st.sampled_from(FILES), where=st.randoms(use_true_random=False), leaf=LEAVES)
def test_whatever_a_file_holds_there_is_a_page(unsealed: Path, file: str, where: Any, leaf: Any) -> None:
    before = (unsealed / file).read_bytes()
    lines = [json.loads(line) for line in before.splitlines()] if file.endswith("l") else [json.loads(before)]
    _change(lines[-1], where, leaf)
    try:
        (unsealed / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
        made = page_of(unsealed)
        text = render(made)
    finally:
        (unsealed / file).write_bytes(before)
    json.dumps(made.as_json(), allow_nan=False)
    assert elements(text).names.count("script") == 3
    assert text.encode(errors="replace")


def _change(value: Any, where: Any, leaf: Any) -> None:
    """Put something else at a random place of some JSON."""
    key = where.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], (dict, list)) and value[key] and where.random() < 0.8:
        _change(value[key], where, leaf)
    else:
        value[key] = leaf


def test_the_page_of_an_undamaged_folder_of_another_version_has_all_parts(unsealed: Path) -> None:
    (task,) = page_of(unsealed).tasks
    assert task.attacks is not None
    assert task.maps
    assert task.separation is not None
    assert task.epsilon[0].startswith("flea: epsilon 3 against the server, no bound against other sites (why)")


def test_a_wheel_takes_every_file_of_the_page_along() -> None:
    place = Path(fewfed.__file__).parent / "report" / "page"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["fewfed.report.page"]
    taken = {file for pattern in patterns for file in place.glob(pattern)}
    needed = {file for file in place.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert needed == taken
    assert "MIT License" in (place / "vendor" / "LICENSE-uplot").read_text()


def test_a_run_between_real_sites_has_no_command(tmp_path: Path) -> None:
    """Its rows are not on this machine: a comparison would be of something else."""
    fewfed.run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    assert len(page_of(tmp_path / "run").tasks[0].commands) == 1
    (tmp_path / "run" / "federation.json").write_text("{}")
    assert page_of(tmp_path / "run").tasks[0].commands == ()


def test_several_that_came_to_the_best_are_all_marked_and_all_alike_none(tmp_path: Path) -> None:
    for method, end in (("fedavg", 0.7), ("fedprox", 0.8), ("flea", 0.8)):
        write_run(tmp_path / "some" / method, method, 0, [0.5, end])
        write_run(tmp_path / "all" / method, method, 0, [0.5, 0.7])
    (task,) = page_of(tmp_path / "some").tasks
    assert [row[1].strong for row in task.results.rows] == [False, True, True]
    (task,) = page_of(tmp_path / "all").tasks
    assert not any(cell.strong for row in task.results.rows for cell in row)


@pytest.mark.parametrize(("rounds", "short"), [(9, True), (10, False)])
def test_it_is_said_where_ten_evaluations_are_all_there_are(tmp_path: Path, rounds: int, short: bool) -> None:
    write_run(tmp_path / "a", "fedavg", 0, rising(rounds, 0.8))
    (task,) = page_of(tmp_path).tasks
    assert "the mean of the last ten evaluations" in task.results.note
    assert ("here with 9, have all of them in it" in task.results.note) == short


def test_what_plus_minus_means_is_said_in_every_format_where_it_stands(two: Path, tmp_path: Path) -> None:
    files = fewfed.write_report(two, out=tmp_path / "page.html").tables
    assert "Student's t" in (files / "differences.md").read_text()
    assert "Student's t" in (files / "differences.tex").read_text()
    write_run(tmp_path / "one" / "a", "fedavg", 0)
    write_run(tmp_path / "one" / "b", "flea", 0)
    (task,) = page_of(tmp_path / "one").tasks
    assert task.differences is not None
    assert task.differences.note.startswith("One seed, no interval")


def test_folders_that_are_left_out_are_counted_in_words(tmp_path: Path) -> None:
    for number in range(3):
        write_run(tmp_path / f"a{number}", "fedavg", 0)
    assert "2 folders held the same settings and seed as another and are left out." in page_of(tmp_path).lead


def test_training_alone_is_a_point_beside_the_lines_of_traffic(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6, 0.7])
    silent = {"bytes": {"up": 0, "down": 0}, "phases": {"train": {"bytes_up": 0}}}
    write_run(tmp_path / "b", "local", 0, [0.3, 0.4, 0.45], record=silent)
    (task,) = page_of(tmp_path).tasks
    assert task.traffic is not None
    assert [(line.label, line.x, line.mean) for line in task.traffic.lines] == [
        ("fedavg", (3.0, 6.0, 9.0), (50.0, 60.0, 70.0)),
        ("local", (0.0,), (45.0,)),
    ]
    assert '<circle class="f1"' in task.stills[1].svg
    (task,) = page_of(tmp_path / "b").tasks
    assert task.traffic is None


def test_little_traffic_fills_the_figure_as_much_does(tmp_path: Path) -> None:
    few = {"bytes": {"up": 300, "down": 200}}
    write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6, 0.7], record=few)
    (task,) = page_of(tmp_path).tasks
    path = re.search(r'class="line s0" d="M([\d. L]+)"', task.stills[1].svg)
    assert path is not None
    across = [float(point.split()[0]) for point in path[1].split("L")]
    assert across[-1] - across[0] > 600  # Of 720 pixels.


def test_a_few_kilobytes_are_not_shown_as_nothing(tmp_path: Path) -> None:
    for name, sent in {"much": 5_000_000, "few": 1_000, "none": 0}.items():
        write_run(tmp_path / name, record={"bytes": {"up": sent, "down": 0}}, values={"lr": 0.001 + sent / 1e12})
    (task,) = page_of(tmp_path).tasks
    place = task.results.columns.index("MB up")
    assert sorted(row[place].text for row in task.results.rows) == ["0.0", "0.003", "15.0"]


def test_long_names_that_differ_at_the_end_differ_in_figures(tmp_path: Path) -> None:
    classes = [f"a class with a number, which is {number}" for number in range(2)]
    write_run(tmp_path / "a", classes=classes)
    (task,) = page_of(tmp_path).tasks
    assert task.split is not None
    shown = [text for text in re.findall(r">([^<>]+)</text>", task.split.svg) if text.startswith("a class")]
    assert len(set(shown)) == 2
    assert max(len(text) for text in shown) <= 14


def test_one_evaluation_is_a_point_in_figures_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5])
    (task,) = page_of(tmp_path).tasks
    assert '<circle class="f0"' in task.stills[0].svg


def test_what_sites_send_to_scale_inputs_is_said_of_every_method(tmp_path: Path) -> None:
    """Also of one that declares nothing: sums over its inputs leave a site all the same."""
    table = "hospital,a,b,diagnosis\n" + "".join(
        f"{'east' if row % 2 else 'west'},{row % 7},{row % 5},{'ill' if row % 3 else 'well'}\n" for row in range(40)
    )
    (tmp_path / "patients.csv").write_text(table)
    options = {"label": "diagnosis", "site": "hospital"}
    fewfed.run("local", {"data": str(tmp_path / "patients.csv"), "rounds": 1}, options=options, out=tmp_path / "run")
    (task,) = page_of(tmp_path / "run").tasks
    assert task.leaving is not None
    said = task.leaving.rows[0][1].text
    assert "measure values: count (counts, sum), sum (statistics, sum)" in said
    assert said.endswith("train: nothing")


def test_what_is_the_same_for_every_row_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The phases that measure inputs are asked of a thousand rounds: of 200 rows, the most of the time of a page."""
    asked: list[str] = []

    def counted(method: Any) -> list[str]:
        asked.append(type(method).__name__)
        return phase_texts(method)

    monkeypatch.setattr(privacy_part, "phase_texts", counted)
    privacy_part._measuring.cache_clear()
    for number in range(4):
        write_run(tmp_path / f"{number}", values={"lr": 0.01 * (number + 1)})
    (task,) = page_of(tmp_path).tasks
    assert task.leaving is not None
    assert len(task.leaving.rows) == 4
    assert asked.count("MeasureInputs") == 1


def test_clients_that_are_sites_are_called_so_in_the_picture(tmp_path: Path) -> None:
    table = "hospital,a,diagnosis\n" + "".join(
        f"{site},{row},{'ill' if row % 3 else 'well'}\n" for site in ("north <1>", "south") for row in range(20)
    )
    (tmp_path / "patients.csv").write_text(table)
    experiment = {"data": str(tmp_path / "patients.csv"), "rounds": 1}
    options = {"label": "diagnosis", "site": "hospital"}
    fewfed.run("fedavg", experiment, options=options, out=tmp_path / "run")
    (task,) = page_of(tmp_path / "run").tasks
    assert task.split is not None
    assert all(f">{name}</text>" in task.split.svg for name in ("north &lt;1&gt;", "south"))
    # With a part of the rows alone, sizes are not those of the sites, and nobody is named.
    fewfed.run("fedavg", {**experiment, "volume": 0.5}, options=options, out=tmp_path / "half")
    (task,) = page_of(tmp_path / "half").tasks
    assert task.split is not None
    assert ">client</text>" in task.split.svg


def test_what_a_program_handed_over_has_no_command(tmp_path: Path) -> None:
    """The command line has no name for it: a command would fail, or train something else."""
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2
    clients = [(x, y), (x, y)]
    made = fewfed.FewFed("fedavg", rounds=1, out=tmp_path / "data", progress=False).fit(clients, (x, y))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fewfed.run("fedavg", small(rounds=1), SHORT, network=net, out=tmp_path / "network", progress=False)
    for what in ("data", "network"):
        (task,) = page_of(tmp_path / what).tasks
        assert task.commands == ()
        assert task.without_command == (
            f"fedavg: no command has it again, since its {what} came from a Python program",
        )
    assert "came from a Python program." in made.report().page.read_text()
    (tmp_path / "rows.csv").write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    experiment = {"data": str(tmp_path / "rows.csv"), "split": "iid", "clients": 2, "rounds": 1}
    fewfed.run("fedavg", experiment, SHORT, options={"label": "label"}, out=tmp_path / "file", progress=False)
    (task,) = page_of(tmp_path / "file").tasks
    assert len(task.commands) == 1
    assert task.without_command == ()


def test_runs_that_nobody_scored_are_not_said_to_lack_common_seeds(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("best", "last", "last10"))
    silent: dict[str, Any] = {"record": {"accuracy": None}, "result": {"accuracy": unknown, "chosen": unknown}}
    write_run(tmp_path / "b", "flea", 0, **silent)
    write_run(tmp_path / "c", "fedprox", 0, **silent)
    (task,) = page_of(tmp_path).tasks
    assert (task.sentences, task.differences) == ((), None)
    for name, method in (("a", "fedavg"), ("d", "moon")):
        write_run(tmp_path / name, method, 0)
    (task,) = page_of(tmp_path).tasks
    assert task.sentences == (
        "moon and fedavg came to the same; one seed, no interval.",
        "flea was not scored and cannot be compared.",
        "fedprox was not scored and cannot be compared.",
    )
    assert render(page_of(tmp_path))
