"""Whether a change left every number as it was: runs of many methods before and after it, compared bit for bit.

    python tools/golden.py BEFORE [AFTER] [--methods fedavg flea ...] [--network mlp]

BEFORE and AFTER are folders with a clone of the project each (AFTER: this one). Both run on this machine, one after the
other, through the command line, one client after another. Compared are each round's accuracy, loss and loss terms, and
every number of the final model. What is counted, said or timed is not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]

METHODS = (
    "fedavg",
    "fedprox",
    "flea",
    "flea:official",
    "fedmix",
    "feddata",
    "fedbr",
    "fedgen-latent",
    "fedfed",
    "fedproto",
    "fedproto:personal",
    "moon",
    "scaffold",
    "feddyn",
    "fedfv",
    "elastic",
    "fedbn",
    "fedrobust",
    "fedharmo",
    "flair",
    "flute",
    "ccvr",
    "ccvr:gaussian(fedprox)",
    "fedfa",
    "fedfa(scaffold)",
    "sem(fedavg)",
    "sem(flea)",
    "mixup(fedprox)",
    "mixstyle",
    "local",
    "single",
)
SETTING = ("--data", "digits", "--split", "qua:2", "--clients", "12", "--cohort", "5", "--rounds", "4", "--epochs", "2")


def run(clone: Path, method: str, extra: list[str], folder: Path) -> dict[str, Any]:
    """One run of a clone's program: its curve, and a digest of its final model."""
    command = [sys.executable, "-m", "fewfed", "run", method, *SETTING, "--batch", "8", "--executor", "sequential"]
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *extra, "--out", str(folder)], cwd=clone, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [
        {
            "accuracy": record["accuracy"],
            "loss": record["loss"],
            "terms": [phase.get("terms", {}) for phase in record["phases"].values()],
        }
        for record in rounds
    ]
    return {"curve": curve, "model": _tensors(folder / "model.safetensors")}


def _tensors(path: Path) -> dict[str, str]:
    """Every tensor's bits; by the last part of its name, since a change may move it to another place in a tree."""
    from safetensors import safe_open

    found: dict[str, str] = {}
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            found[name.rpartition("/")[2] + f"#{len(found)}"] = file.get_tensor(name).numpy().tobytes().hex()
    return dict(sorted(found.items()))


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first thing that differs; nothing where all is the same."""
    for side, found in (("before", before), ("after", after)):
        if "error" in found:
            return f"failed {side}: {found['error']}"
    for number, (ours, theirs) in enumerate(zip(before["curve"], after["curve"], strict=True), 1):
        if ours != theirs:
            return f"round {number}: {ours} became {theirs}"
    if sorted(before["model"].values()) != sorted(after["model"].values()):
        return "the final models differ"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=HERE)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--network", default="auto")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, method in enumerate(options.methods):
            extra = ["--network", options.network]
            before, after = (
                run(clone.resolve(), method, extra, Path(folder) / f"{number}-{side}")
                for side, clone in (("before", options.before), ("after", options.after))
            )
            found = difference(before, after)
            wrong += bool(found)
            print(f"{method}: {found or 'the same bits'}", flush=True)
    print(f"{len(options.methods) - wrong} of {len(options.methods)} the same bits")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
