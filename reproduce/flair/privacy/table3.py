"""FLAIR's Table 3 with attacks that say what they are: membership, gradients, inversion, information, and label sets.

    python reproduce/flair/privacy/table3.py run --runs runs/table3     # minutes on a GPU, an hour on two cores
    python reproduce/flair/privacy/table3.py page                       # the table from kept results

The paper names no data, attacker or unit for its four numbers, so none can be compared with. Here every method trains
on MNIST (LeNet-5 with tanh, Dir(0.5), all clients in every round) with a tenth of the images and thirty clients, so
that there is something to remember, and enough messages to bound what they say; what was sent in the last round is
attacked by `fewfed attack`. Gradients can only be attacked where a client takes one step, so a second run of every
method has one round of one step on eight rows. Every finished method is kept as one file in `results/` beside this one
and is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed import Experiment, Training, attack, run
from fewfed.errors import RunError
from fewfed.reproduction.attacked import findings_of, head, idle_of, plain, row, strongest, told
from fewfed.reproduction.session import made_by

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = "table3.md"
METHODS = ("fedavg", "scaffold", "elastic", "fedfa-anchor", "fedproto:personal", "flair")


@dataclass(frozen=True)
class Setting:
    """How clients train, and which attacks apply to what they then send."""

    name: str
    what: str
    experiment: Mapping[str, Any]
    training: Mapping[str, Any]
    attacks: tuple[str, ...]


SETTINGS = (
    Setting(
        "trained",
        "MNIST, a tenth of the images, Dir(0.5), 30 clients, 20 rounds of 5 epochs in batches of 16",
        {"split": "dir:0.5", "volume": 0.1, "rounds": 20, "clients": 30},
        {"epochs": 5, "batch": 16},
        ("membership", "labels", "inversion", "information"),
    ),
    Setting(
        "one step",
        "MNIST, 80 images parted at random among 10 clients, so that each takes one step on its eight rows; one round",
        {"split": "iid", "volume": 80 / 60000, "rounds": 1, "clients": 10},
        {"epochs": 1, "batch": 8},
        ("gradient",),
    ),
)


def one(method: str, setting: Setting, seed: int, runs: Path, effort: float, commit: str) -> dict[str, Any]:
    """Run, attack, and say what came of it."""
    experiment = Experiment(
        data="mnist", cohort=setting.experiment["clients"], network="lenet5-tanh", seed=seed, evaluate_clients=0,
        record="packets", record_rounds="1,last" if setting.experiment["rounds"] > 1 else "1", **setting.experiment,
    )  # fmt: skip
    training = Training(optimizer="sgd", lr=0.01, lr_decay=0.0, **setting.training)
    folder = runs / f"{plain(method)}-{plain(setting.name)}-seed{seed}"
    result = run(method, experiment, training, options={"normalise": "none"}, out=folder)
    found = attack(folder, setting.attacks, effort=effort)
    return {
        "method": method,
        "setting": setting.name,
        "seed": seed,
        "effort": effort,
        "accuracy": {"best": result.accuracy.best, "last": result.accuracy.last, "last10": result.accuracy.last10},
        "findings": findings_of(found),
        "idle": idle_of(found),
        "made": made_by(commit),
    }


def page() -> str:
    """All kept results as one table."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    by_run = {(record["method"], record["seed"], record["setting"]): record for record in records}
    runs = sorted({(METHODS.index(method), seed) for method, seed, _ in by_run})
    lines = [
        "# FLAIR's Table 3, with attacks that say what they are",
        "",
        "Made by `python reproduce/flair/privacy/table3.py page` from `results/`. What was not run is not here.",
        "",
        *(f"- {setting.name}: {setting.what}." for setting in SETTINGS),
        "",
        *head(COLUMNS),
    ]
    idle: dict[str, list[str]] = {}
    for number, seed in runs:
        both = [by_run.get((METHODS[number], seed, setting.name)) for setting in SETTINGS]
        lines.append(row(_cells(METHODS[number], seed, *both)))
        for one in (each for record in both if record for each in record["idle"]):
            idle.setdefault(f"`{one['attack']}`: {one['why']}", []).append(METHODS[number])
    lines += ["", *EXPLAINED, _chance(records), "", "Where a cell is empty the attack had nothing to work on:", ""]
    lines += [f"- {', '.join(dict.fromkeys(methods))}: no {why}." for why, methods in idle.items()]
    return "\n".join(lines) + "\n"


COLUMNS = (
    "method", "seed", "accuracy", "membership, AUC", "label sets right", "inversion", "information, nats",
    "gradient, PSNR", "gradient, SSIM",
)  # fmt: skip
EXPLAINED = (
    "Each number is that of the strongest attacker of its kind, with a 95 % interval. Accuracy: of the last round",
    "of `trained`. Membership: AUC over loss threshold and RMIA, on the model everybody gets and on single uploads;",
    "chance 0.5. Label sets right: share of sites whose set of classes is read exactly. Inversion: share of class",
    "representatives that an independent network recognises; chance 0.1. Information: lower bound between a site's",
    "message and its label shares. Gradient: of eight rows behind a single step. What the words mean:",
    "docs/attacks_more.md.",
)


def _chance(records: Sequence[Mapping[str, Any]]) -> str:
    """What the mean test row gives in the place of an attack on gradients, as the kept results say."""
    found = {
        each["what"].split()[0]: f"{each['chance']:.2f}"
        for record in records
        for one in record["findings"]
        for each in one["measures"]
        if one["attack"] == "gradient"
    }
    return "Without any gradient, the mean test row gives " + ", ".join(f"{k} {v}" for k, v in found.items()) + "."


def _cells(
    method: str, seed: int, trained: Mapping[str, Any] | None, one_step: Mapping[str, Any] | None
) -> Sequence[str]:
    of = trained["findings"] if trained else ()
    steps = one_step["findings"] if one_step else ()
    return (
        method,
        str(seed),
        f"{100 * trained['accuracy']['last']:.1f}" if trained else "",
        told(strongest(of, "membership", "AUC"), 3),
        told(strongest(of, "labels", "label sets exactly right")),
        told(strongest(of, "inversion", "representatives")),
        told(strongest(of, "information", "")),
        told(strongest(steps, "gradient", "PSNR"), 1),
        told(strongest(steps, "gradient", "SSIM")),
    )


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--only", default="", help="the first letters of a method's name")
    parser.add_argument("--runs", type=Path, default=Path("runs/table3"))
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if given.what == "page":
        (HERE / PAGE).write_text(page())
        return
    for method in METHODS:
        for setting in SETTINGS:
            place = RESULTS / f"{plain(method)}-{plain(setting.name)}-seed{given.seed}.json"
            if place.exists() or not method.startswith(given.only):
                continue
            try:
                found = one(method, setting, given.seed, given.runs, given.effort, given.commit)
            except RunError as error:
                raise SystemExit(f"{method}, {setting.name}: {error}") from error
            place.write_text(json.dumps(found, indent=1) + "\n")
            print(f"kept: {place}", flush=True)


if __name__ == "__main__":
    main()
