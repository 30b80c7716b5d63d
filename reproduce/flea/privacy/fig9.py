"""FLea's Fig. 9 with this package's attackers: exposure, correlation, reconstruction and context of what was sent.

    python reproduce/flea/privacy/fig9.py run --data har --runs runs/fig9      # hours on a CPU, minutes on a GPU
    python reproduce/flea/privacy/fig9.py page                                 # tables and pictures from kept results

Every finished method is kept as one file in `results/` beside this one and is not run again. Attackers are those of
`fewfed attack`, which are stronger than the paper's; its own linear decoder is one of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed import Experiment, Training, attack, run
from fewfed.data.readers.options import DataOptions
from fewfed.diagnostics.exposure import expected_exposure, exposure_curve
from fewfed.engine.executors.cuda.options import Options
from fewfed.errors import RunError
from fewfed.reproduction.attacked import findings_of, head, plain, row, strongest, told
from fewfed.reproduction.session import made_by
from fewfed.runs.experiment import layered
from fewfed.runs.folder import RunFolder
from fewfed.runs.prepare import prepare

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = "fig9.md"
ATTACKS = ("reconstruct", "context")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"split": "qua:3", "clients": 100},
    "har": {"split": "qua:2", "clients": 75},
}
"""CIFAR-10 as in the paper's privacy experiments; HAR as in its Table 1."""


@dataclass(frozen=True)
class Shown:
    """A method of the figure."""

    name: str
    spec: str
    values: Mapping[str, Any]
    terms: bool = False
    """Whether it measures the correlation of inputs and features in training."""


METHODS = (
    Shown("flea", "flea", {"watch": True}, terms=True),
    Shown("flea, lambda2 = 0", "flea", {"watch": True, "decorrelate": 0.0}, terms=True),
    Shown("grouped(flea), k = 5", "grouped(flea)", {"k": 5, "inner.watch": True}, terms=True),
    Shown("fedmix", "fedmix", {}),
    Shown("feddata", "feddata", {}),
)
TERMS = ("correlation_last_epoch", "unbiased_last_epoch")


def one(
    shown: Shown, data: str, rounds: int, seed: int, runs: Path, effort: float, precision: str, commit: str = ""
) -> dict[str, Any]:
    """Run, attack, and put together what the figure shows of one method. `precision`: of a GPU, empty without one."""
    experiment = Experiment(
        data=data,
        cohort=0.1,
        rounds=rounds,
        seed=seed,
        record="packets",
        record_rounds="1,10,last" if rounds > 10 else "1,last",
        record_mb=1000.0,
        **SETTINGS[data],
    )
    options = {"augment": "static"} if data == "cifar10" else {}
    training = Training(epochs=5, batch=32)
    folder = runs / f"{data}-{plain(shown.name)}-{rounds}-rounds-seed{seed}"
    how = Options(precision=precision) if precision else None  # type: ignore[arg-type]
    result = run(shown.spec, experiment, training, values=shown.values, options=options, executor=how, out=folder)
    found = attack(folder, ATTACKS, effort=effort)
    records = RunFolder(folder).metrics()
    resolved = layered(shown.spec, shown.values, experiment, {"epochs": 5, "batch": 32}, DataOptions(**options))
    prepared = prepare(resolved)
    return {
        "method": shown.name,
        "spec": shown.spec,
        "values": dict(shown.values),
        "data": data,
        "split": SETTINGS[data]["split"],
        "clients": result.clients,
        "rounds": rounds,
        "seed": seed,
        "effort": effort,
        "note": result.note,
        "accuracy": {"best": result.accuracy.best, "last": result.accuracy.last, "last10": result.accuracy.last10},
        "megabytes": {name: result.bytes[name] / 1e6 for name in ("up", "down")},
        "exposure": [round(value, 5) for value in exposure_curve(prepared.job, prepared.cohort, rounds)],
        "terms": {name: [_term(record, name) for record in records] for name in TERMS} if shown.terms else {},
        "leak": [record["leak"] for record in records if "leak" in record],
        "findings": findings_of(found),
        "precision": precision or "float32",
        "made": made_by(commit),
    }


def _term(record: Mapping[str, Any], name: str) -> float | None:
    found = [phase["terms"][name] for phase in record["phases"].values() if name in phase.get("terms", {})]
    return round(found[0], 5) if found else None


def kept(data: str, shown: Shown, rounds: int, seed: int) -> Path:
    return RESULTS / f"{data}-{plain(shown.name)}-{rounds}-rounds-seed{seed}.json"


def wanted(only: str) -> list[Shown]:
    return [one for one in METHODS if one.name == only] or [one for one in METHODS if one.name.startswith(only)]


def page() -> str:
    """All kept results as tables."""
    lines = [
        "# FLea's Fig. 9, with stronger attackers",
        "",
        "Made by `python reproduce/flea/privacy/fig9.py page` from `results/`. What was not run is not here.",
    ]
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    groups = dict.fromkeys((record["data"], record["rounds"]) for record in records)
    for data, rounds in groups:
        these = [record for record in records if (record["data"], record["rounds"]) == (data, rounds)]
        order = {shown.name: number for number, shown in enumerate(METHODS)}
        these.sort(key=lambda record: (order[record["method"]], record["seed"]))
        first = these[0]
        lines += [
            "",
            f"## {data}, {first['split']}, {first['clients']} clients, {rounds} rounds",
            "",
            f"{first['note'] or 'The data as published'}; cohorts of a tenth, 5 epochs, batches of 32.",
            "",
            *_table(these),
            "",
            *_attackers(these),
        ]
    return "\n".join(lines) + "\n"


def _table(records: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = ["| method | seed | last 10 | MB up | exposure | R, round 1 / 10 / last | unbiased R², last |"]
    rows.append("|---|---|---|---|---|---|---|")
    for record in records:
        terms = record["terms"]
        correlation = [terms["correlation_last_epoch"][n] for n in _places(record["rounds"])] if terms else []
        unbiased = terms["unbiased_last_epoch"][-1] if terms else None
        cells = [
            record["method"],
            str(record["seed"]),
            f"{100 * record['accuracy']['last10']:.1f}",
            f"{record['megabytes']['up']:.1f}",
            f"{record['exposure'][-1]:.2f}",
            " / ".join("" if value is None else f"{value:.2f}" for value in correlation),
            "" if unbiased is None else f"{unbiased:.3f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    expected = expected_exposure(0.1, records[0]["rounds"])
    rows += ["", f"Exposure expected of rows that go from one cohort to the next: {expected:.2f}."]
    return rows


def _places(rounds: int) -> list[int]:
    return sorted({0, min(9, rounds - 1), rounds - 1})


def _attackers(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the best attacker of each kind found in the last recorded round, with 95 % intervals."""
    rows = head(
        ("method", "seed", "round", "rows", "re-identified", "nearest alone", "R2", "by", "mark, 10 rows", "most")
    )
    for record in records:
        findings = record["findings"]
        nearest = strongest(findings, "reconstruct", "re-identified among", "")
        rebuilt = strongest(findings, "reconstruct", "R2 of single rows") or strongest(findings, "reconstruct", "R2")
        curve = _context(record)
        alone = max(
            (each["value"] for one in findings for each in one["measures"] if each["what"].endswith("the nearest")),
            default=0.0,
        )
        rows.append(
            row(
                (
                    record["method"],
                    str(record["seed"]),
                    str(max((one["round"] for one in findings), default=0)),
                    "" if nearest is None else str(nearest["rows"]),
                    told(nearest),
                    f"{alone:.2f}",
                    told(rebuilt),
                    "" if rebuilt is None else rebuilt["by"],
                    f"{curve[0][1]:.2f}" if curve else "",
                    f"{curve[-1][1]:.2f}, {curve[-1][0]}" if curve else "",
                )
            )
        )
    return [
        *rows,
        "",
        "Re-identified: share of shared rows whose source is found among all training rows, by the best of five",
        "attackers and of two ways to choose; nearest alone: by the nearest row. R2: of single rows behind where rows",
        "are averages. Mark: share of rows whose mark is recognised by the better of two classifiers after learning",
        "from ten rows, and from the most; chance 0.5. Every attacker's numbers are in `results/`.",
    ]


def draw(path: Path, data: str) -> None:
    """Exposure, correlation, re-identification and context of one data set, one line a method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = [json.loads(each.read_text()) for each in sorted(RESULTS.glob(f"{data}-*.json"))]
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), constrained_layout=True)
    (exposure, correlation), (rebuilt, context) = axes
    for record in records:
        label = f"{record['method']}, seed {record['seed']}"
        exposure.plot(range(1, record["rounds"] + 1), record["exposure"], label=label)
        if record["terms"]:
            correlation.plot(range(1, record["rounds"] + 1), record["terms"]["correlation_last_epoch"], label=label)
        points = _best(record, "reconstruct", "R2")
        rebuilt.plot([round for round, _ in points], [value for _, value in points], "o-", label=label)
        curve = _context(record)
        context.plot([size for size, _ in curve], [value for _, value in curve], "o-", label=label)
    titles = {
        exposure: "exposure",
        correlation: "R of the last epoch (biased)",
        rebuilt: "R² of the best reconstruction",
        context: "mark recognised, by examples",
    }
    for place, title in titles.items():
        place.set_title(title, fontsize=9)
        place.grid(alpha=0.3)
    context.set_xscale("log")
    exposure.legend(fontsize=7)
    figure.suptitle(f"{data}: what was sent, attacked", fontsize=10)
    figure.savefig(path)


def _best(record: Mapping[str, Any], attack_name: str, what: str) -> list[tuple[int, float]]:
    found: dict[int, float] = {}
    for finding in record["findings"]:
        for measure in finding["measures"]:
            if finding["attack"] == attack_name and measure["what"].startswith(what):
                found[finding["round"]] = max(found.get(finding["round"], -1.0), measure["value"])
    return sorted(found.items())


def _context(record: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Of the last recorded round the best classifier's share of marks recognised, by how many examples it had."""
    of_context = [finding for finding in record["findings"] if finding["attack"] == "context"]
    last = max((finding["round"] for finding in of_context), default=0)
    found: dict[int, float] = {}
    for finding in of_context:
        for measure in finding["measures"] if finding["round"] == last else ():
            sizes = [int(word) for word in measure["what"].replace(",", " ").split() if word.isdigit()]
            if sizes:
                found[sizes[-1]] = max(found.get(sizes[-1], 0.0), measure["value"])
    return sorted(found.items())


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--data", choices=tuple(SETTINGS), default="har")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--precision", default="", choices=("", "float32", "tf32", "bf16"), help="of a GPU")
    parser.add_argument("--commit", default="")
    parser.add_argument("--only", default="", help="a method's name, or how some names begin")
    parser.add_argument("--runs", type=Path, default=Path("runs/fig9"))
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if given.what == "page":
        (HERE / PAGE).write_text(page())
        for data in SETTINGS:
            if list(RESULTS.glob(f"{data}-*.json")):
                draw(HERE / f"fig9-{data}.svg", data)
        return
    for shown in wanted(given.only):
        place = kept(given.data, shown, given.rounds, given.seed)
        if place.exists():
            continue
        try:
            found = one(
                shown, given.data, given.rounds, given.seed, given.runs, given.effort, given.precision, given.commit
            )
        except RunError as error:
            raise SystemExit(f"{shown.name}: {error}") from error
        place.write_text(json.dumps(found, indent=1) + "\n")
        print(f"kept: {place}", flush=True)


if __name__ == "__main__":
    main()
