"""FLea's Fig. 9 with this package's attackers: exposure, correlation, reconstruction and context of what was sent.

    python reproduce/flea/privacy/fig9.py run --data har --runs runs/fig9      # hours on a CPU, minutes on a GPU
    python reproduce/flea/privacy/fig9.py begun --data har --runs runs/fig9    # what runs that stopped had measured
    python reproduce/flea/privacy/fig9.py page                                 # tables and pictures from kept results

Every finished method is kept as one file in `results/` beside this one and is not run again. Attackers are those of
`fewfed attack`, which are stronger than the paper's; its own linear decoder is one of them. A run that stopped early
has not been attacked: what it measured by itself can be kept, and is shown apart.
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
TRAINING = Training(epochs=5, batch=32)
BEGUN = ".begun.json"
"""How the files end of what runs had measured that stopped early."""


def one(
    shown: Shown, data: str, rounds: int, seed: int, runs: Path, effort: float, precision: str, commit: str = ""
) -> dict[str, Any]:
    """Run, attack, and put together what the figure shows of one method. `precision`: of a GPU, empty without one."""
    folder = runs / named(data, shown, rounds, seed)
    how = Options(precision=precision) if precision else None  # type: ignore[arg-type]
    experiment = _experiment(data, rounds, seed)
    result = run(
        shown.spec, experiment, TRAINING, values=shown.values, options=_options(data), executor=how, out=folder
    )
    found = attack(folder, ATTACKS, effort=effort)
    return {
        **measured(shown, data, rounds, seed, RunFolder(folder).metrics(), precision),
        "effort": effort,
        "note": result.note,
        "accuracy": {"best": result.accuracy.best, "last": result.accuracy.last, "last10": result.accuracy.last10},
        "findings": findings_of(found),
        "made": made_by(commit),
    }


def measured(
    shown: Shown, data: str, rounds: int, seed: int, records: Sequence[Mapping[str, Any]], precision: str
) -> dict[str, Any]:
    """What the rounds of a run that are there say without an attack on its packets."""
    done, values = len(records), [float(record["accuracy"]) for record in records]
    known = {"epochs": TRAINING.epochs, "batch": TRAINING.batch}
    resolved = layered(shown.spec, shown.values, _experiment(data, rounds, seed), known, DataOptions(**_options(data)))
    prepared = prepare(resolved)
    last = values[-10:]
    return {
        "method": shown.name,
        "spec": shown.spec,
        "values": dict(shown.values),
        "data": data,
        "split": SETTINGS[data]["split"],
        "clients": SETTINGS[data]["clients"],
        "rounds": rounds,
        "done": done,
        "seed": seed,
        "note": "",
        "accuracy": {"best": max(values), "last": values[-1], "last10": sum(last) / len(last)},
        "megabytes": {way: sum(record["bytes"][way] for record in records) / 1e6 for way in ("up", "down")},
        "exposure": [round(value, 5) for value in exposure_curve(prepared.job, prepared.cohort, done)],
        "terms": {name: [_term(record, name) for record in records] for name in TERMS} if shown.terms else {},
        "leak": [{"round": record["round"], **record["leak"]} for record in records if "leak" in record],
        "findings": [],
        "precision": precision or "float32",
    }


def _experiment(data: str, rounds: int, seed: int) -> Experiment:
    return Experiment(
        data=data,
        cohort=0.1,
        rounds=rounds,
        seed=seed,
        record="packets",
        record_rounds="1,10,last" if rounds > 10 else "1,last",
        record_mb=1000.0,
        **SETTINGS[data],
    )


def _options(data: str) -> dict[str, Any]:
    return {"augment": "static"} if data == "cifar10" else {}


def _term(record: Mapping[str, Any], name: str) -> float | None:
    found = [phase["terms"][name] for phase in record["phases"].values() if name in phase.get("terms", {})]
    return round(found[0], 5) if found else None


def named(data: str, shown: Shown, rounds: int, seed: int) -> str:
    return f"{data}-{plain(shown.name)}-{rounds}-rounds-seed{seed}"


def kept(data: str, shown: Shown, rounds: int, seed: int) -> Path:
    return RESULTS / f"{named(data, shown, rounds, seed)}.json"


def keep_begun(data: str, rounds: int, seed: int, runs: Path, precision: str, made: Mapping[str, str]) -> None:
    """Keep what runs have measured that stopped before their end, and were not attacked."""
    for shown in METHODS:
        folder, place = RunFolder(runs / named(data, shown, rounds, seed)), kept(data, shown, rounds, seed)
        records = folder.metrics() if folder.path.is_dir() else []
        if records and not place.exists():
            found = {**measured(shown, data, rounds, seed, records, precision), "made": dict(made)}
            place.with_suffix(BEGUN).write_text(json.dumps(found, indent=1) + "\n")
            print(f"kept: {len(records)} of {rounds} rounds of {shown.name}")


def wanted(only: str) -> list[Shown]:
    return [one for one in METHODS if one.name == only] or [one for one in METHODS if one.name.startswith(only)]


def page() -> str:
    """All kept results as tables."""
    lines = [
        "# FLea's Fig. 9, with stronger attackers",
        "",
        "Made by `python reproduce/flea/privacy/fig9.py page` from `results/`. What was not run is not here.",
    ]
    for data in SETTINGS:
        records = shown_of(data)
        groups = dict.fromkeys((record["rounds"], bool(record["findings"])) for record in records)
        for rounds, attacked in sorted(groups):
            these = [record for record in records if (record["rounds"], bool(record["findings"])) == (rounds, attacked)]
            first, begun = these[0], "" if attacked else ", begun"
            lines += [
                "",
                f"## {data}, {first['split']}, {first['clients']} clients, {rounds} rounds{begun}",
                "",
                f"{first['note'] or 'The data as published'}; cohorts of a tenth, 5 epochs, batches of 32.",
                *([] if attacked else ["", *_STOPPED]),
                "",
                *_table(these),
                "",
                *_leak(these),
                *(["", *_attackers(these)] if attacked else []),
            ]
    return "\n".join(lines) + "\n"


_STOPPED = (
    "These runs were stopped early, after the rounds that the table says, and `fewfed attack` was not asked: all",
    "there is is what a run measures by itself.",
)


def shown_of(data: str) -> list[dict[str, Any]]:
    """What is kept of a data set in the order of the methods; of a run that was finished later, the finished one."""
    found = {path.name: json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{data}-*.json"))}
    left = [one for name, one in found.items() if name.replace(BEGUN, ".json") not in found or BEGUN not in name]
    order = {shown.name: number for number, shown in enumerate(METHODS)}
    return sorted(left, key=lambda record: (order[record["method"]], record["seed"]))


def _done(record: Mapping[str, Any]) -> int:
    return int(record.get("done", record["rounds"]))


def _leak(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the two simple attackers of every run found by round."""
    rows = head(("method", "seed", "round", "R2 and re-identified by the better of two simple attackers, by round"))
    for record in records:
        every = max(1, record["rounds"] // 10)
        at = [each.get("round", max(1, number * every)) for number, each in enumerate(record["leak"])]
        told_of = [
            f"{round}: {each['r2']:.2f}, {100 * each['reidentified']:.0f} %"
            for number, (round, each) in enumerate(zip(at, record["leak"], strict=True))
            if number in (0, 1, 2, 3, len(at) - 1)
        ]
        rows.append(row((record["method"], str(record["seed"]), str(_done(record)), "; ".join(told_of))))
    return rows


def _table(records: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = head(
        ("method", "seed", "rounds", "last 10", "MB up", "exposure", "R, round 1 / 10 / last", "unbiased R², last")
    )
    for record in records:
        terms = record["terms"]
        correlation = [terms["correlation_last_epoch"][n] for n in _places(_done(record))] if terms else []
        unbiased = terms["unbiased_last_epoch"][-1] if terms else None
        cells = [
            record["method"],
            str(record["seed"]),
            str(_done(record)),
            f"{100 * record['accuracy']['last10']:.1f}",
            f"{record['megabytes']['up']:.1f}",
            f"{record['exposure'][-1]:.2f}",
            " / ".join("" if value is None else f"{value:.2f}" for value in correlation),
            "" if unbiased is None else f"{unbiased:.3f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    ends = sorted({_done(record) for record in records})
    expected = ", ".join(f"{expected_exposure(0.1, end):.2f} after {end} rounds" for end in ends)
    rows += ["", f"Exposure expected of rows that go from one cohort to the next: {expected}."]
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

    records = shown_of(data)
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), constrained_layout=True)
    (exposure, correlation), (rebuilt, context) = axes
    for record in records:
        label = f"{record['method']}, seed {record['seed']}"
        rounds = range(1, _done(record) + 1)
        exposure.plot(rounds, record["exposure"], label=label)
        if record["terms"]:
            correlation.plot(rounds, record["terms"]["correlation_last_epoch"], label=label)
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
    parser.add_argument("what", choices=("run", "begun", "page"))
    parser.add_argument("--data", choices=tuple(SETTINGS), default="har")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--precision", default="", choices=("", "float32", "tf32", "bf16"), help="of a GPU")
    parser.add_argument("--commit", default="")
    parser.add_argument("--hardware", default="", help="where runs that stopped were made, if not here")
    parser.add_argument("--only", default="", help="a method's name, or how some names begin")
    parser.add_argument("--runs", type=Path, default=Path("runs/fig9"))
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if given.what == "begun":
        made = made_by(given.commit) | ({"hardware": given.hardware} if given.hardware else {})
        keep_begun(given.data, given.rounds, given.seed, given.runs, given.precision, made)
        return
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
