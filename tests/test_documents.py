"""Documents say what the code says: tables made from it, examples that run, commands that parse, lines that fit."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfed
from documents import (
    DOCUMENTS,
    PAGES,
    ROOT,
    code,
    commands_in,
    mentioned_in,
    name_of,
    started_by_services,
    understood,
)
from fewfed import Experiment, Training, run, tree
from fewfed.conformance.suite import examine
from fewfed.engine import storage
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedprox import FedProx
from fewfed.methods.registry import presets_of, registered
from fewfed.privacy import policy
from fewfed.runs.config_file import read
from fewfed.runs.experiment import executor_options, known_fields, resolve
from fewfed.runs.folder import RunFolder
from fewfed.settings import setting
from support import context, digits, digits_network, same

COLUMNS = 100
TINY = {"clients": 6, "cohort": 3, "rounds": 2, "executor": "sequential"}


def each_page() -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=name_of)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside code, tables and comments."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.lstrip().startswith(("|", "<!--")):
            yield number, line


def too_long(text: str) -> list[int]:
    """Lines of prose that are longer than allowed and could be broken: a long link alone on its line could not."""
    return [
        number
        for number, line in prose(text)
        if len(line) > COLUMNS and " " in re.sub(r"^\s*([-*] |\d+\. )?", "", line)
    ]


@each_page()
def test_lines_of_prose_fit(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_only_prose_that_can_be_broken_is_too_long() -> None:
    words = "word " * 30
    assert too_long(f"short\n{words}\n- {words}") == [2, 3]
    assert too_long(f"| {words} |\n```\n{words}\n```\n- [{'x' * 60}]({'y' * 60})") == []


@each_page()
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place) if place else page
        assert file.exists(), target
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.M) if anchor else []
        assert not anchor or anchor in {_anchor(heading) for heading in headings}, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@each_page()
def test_no_place_of_one_machine_is_named(page: Path) -> None:
    found = re.findall(r"(?<![\w.~/])/(?:home|root|work|tmp|usr|opt|mnt|Users)/\S*", page.read_text())
    assert found == []
    assert not re.search(r"--(?:extra-)?index-url|pypi\.org|files\.pythonhosted", page.read_text())


def test_the_table_of_method_lines_is_current_and_its_median_is_small() -> None:
    spec = importlib.util.spec_from_file_location("method_lines", ROOT / "tools" / "method_lines.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    table = tool.table()
    assert table in (ROOT / "CONTRIBUTING.md").read_text(), "run: python tools/method_lines.py --write"
    assert float(table.split("median ")[1].split(" ")[0]) < 40


def test_every_method_and_preset_is_on_the_page_of_methods() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    for name in registered():
        row = next((line for line in page.splitlines() if line.startswith((f"| `{name}`", f"| `{name}("))), "")
        assert row, f"'{name}' is missing: run python tools/method_page.py > docs/methods.md"
        assert all(preset in row for preset in presets_of(name))


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == fewfed.__version__


def test_the_glossary_is_one_page_and_defines_each_word_once() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text().split("## Glossary\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in glossary.splitlines() if line.startswith("| ")][1:]
    words = [word for row in rows for word in row.split(", ")]
    assert len(glossary.splitlines()) <= 55
    assert len(words) == len(set(words)) > 40


def test_every_option_of_every_executor_is_on_the_page_of_speed() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    assert set(re.findall(r"^\| `(\w+\.\w+)` \|", page, re.M)) == executor_options()


@pytest.mark.parametrize("name", ["anchored", "centred", "decayed"])
def test_the_examples_of_the_guide_run_and_are_fedavg_at_their_neutral_setting(name: str, tmp_path: Path) -> None:
    (example,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if f'name = "{name}"' in block)
    (tmp_path / f"{name}.py").write_text(example)
    method = str(tmp_path / f"{name}.py")
    (weight,) = re.findall(r"^    (\w+): float = setting", example, re.M)
    runs = {"it": (method, {}), "neutral": (method, {weight: 0.0}), "fedavg": ("fedavg", {})}
    experiment, training = Experiment(**TINY), Training(epochs=1, batch=16)
    for label, (what, values) in runs.items():
        run(what, experiment, training, values=values, out=tmp_path / label)
    models = {label: storage.load(tmp_path / label / "model.safetensors")[0] for label in runs}
    assert same(models["neutral"], models["fedavg"])
    assert not same(models["it"], models["fedavg"])
    assert all(record["failed"] == [] for record in RunFolder(tmp_path / "it").metrics())


def test_the_example_of_two_phases_sends_what_it_declares(tmp_path: Path) -> None:
    (example,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if "Part[" in block)
    (tmp_path / "centred.py").write_text(example)
    run(str(tmp_path / "centred.py"), Experiment(**TINY), Training(epochs=1, batch=16), out=tmp_path / "run")
    phases = RunFolder(tmp_path / "run").metrics()[0]["phases"]
    net = digits_network()
    features = net.apply(net.model(), digits()[0].x[:1], stop=net.penultimate, train=False)
    assert list(phases) == ["measure", "train"]
    assert phases["measure"]["bytes_up"] == 3 * 4 * features.numel()
    assert phases["measure"]["steps"] == 0
    assert "gap" in phases["train"]["terms"]


def test_the_example_of_a_wrapper_goes_around_other_methods_and_keeps_what_methods_promise(tmp_path: Path) -> None:
    (example,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if "Around[" in block)
    (tmp_path / "decayed.py").write_text(example)
    wrapper = str(tmp_path / "decayed.py")
    runs = {"it": (f"{wrapper}(flea)", {}), "neutral": (f"{wrapper}(flea)", {"rho": 0.0}), "flea": ("flea", {})}
    results = {
        label: run(what, Experiment(**TINY), Training(epochs=1, batch=16), values=values, out=tmp_path / label)
        for label, (what, values) in runs.items()
    }
    assert results["it"].method == "decayed(flea)"
    models = {label: storage.load(tmp_path / label / "model.safetensors")[0] for label in runs}
    assert same(models["neutral"], models["flea"])
    assert not same(models["it"], models["flea"])
    assert "decay" in RunFolder(tmp_path / "it").metrics()[0]["phases"]["train"]["terms"]
    assert [verdict for verdict in examine(wrapper) if verdict.state == "failed"] == []


def test_fedprox_of_the_readme_is_fedprox() -> None:
    (snippet,) = (block for block in code(ROOT / "README.md", "python") if "class FedProx" in block)
    names: dict[str, Any] = {"dataclass": dataclass, "FedAvg": FedAvg, "setting": setting, "tree": tree}
    exec(snippet, {"__name__": __name__, **names}, names)
    net, rows = digits_network(), digits()[0].rows(torch.arange(8))
    ctx: Context = context(net, rows)
    work = tree.map(lambda leaf: leaf + 0.1, net.model())
    batch = Batch(rows.x, rows.y, {})
    shown, real = names["FedProx"]().loss(tree.clone(work), ctx, batch), FedProx().loss(tree.clone(work), ctx, batch)
    assert same(shown, real)


def test_the_table_executor_of_the_page_of_speed_is_read(tmp_path: Path) -> None:
    (example,) = code(ROOT / "docs" / "speed.md", "toml")
    (tmp_path / "experiment.toml").write_text(example)
    resolved = resolve("fedavg", read(tmp_path / "experiment.toml").values)
    assert resolved.experiment.executor == "cuda"
    assert resolved.executors == {"cuda": {"streams": 4, "mode": "graphs"}}


def test_the_policy_of_the_page_of_policies_is_read(tmp_path: Path) -> None:
    (example,) = code(ROOT / "docs" / "policy.md", "toml")
    (tmp_path / "policy.toml").write_text(example)
    assert policy.read(tmp_path / "policy.toml").sites["north"].revoked_from == 12


def test_every_document_is_looked_at() -> None:
    hidden = {path for path in ROOT.iterdir() if path.name.startswith(".")}
    made = {ROOT / name for name in ("build", "carry", "data", "dist", "runs", "shots")}
    found = {page for place in set(ROOT.iterdir()) - hidden - made for page in _documents_of(place)}
    assert found == set(DOCUMENTS)


def _documents_of(place: Path) -> set[Path]:
    if place.is_file():
        return {place} if place.suffix == ".md" else set()
    return {
        page for page in place.rglob("*.md") if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
    }


def commands() -> list[str]:
    """All that are spelled out; `tests/documentation` runs them."""
    lines = [line for page in DOCUMENTS for line in (*commands_in(page), *mentioned_in(page))]
    lines += [line for page in DOCUMENTS for line in started_by_services(page)]
    return sorted({line for line in lines if "..." not in line})


@pytest.mark.parametrize("line", commands())
def test_documented_commands_are_understood(line: str) -> None:
    understood(line)


@each_page()
def test_documented_fields_exist(page: Path) -> None:
    known = executor_options().union(*(known_fields(name) for name in registered()))
    known |= {f"{name}.{field}" for name in registered() for field in known_fields(name)}
    for name in re.findall(r"--set (?:training\.)?([a-z_0-9.]+)=", page.read_text()):
        assert name in known
