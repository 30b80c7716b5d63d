"""Which packages fewfed and its extras need, as its own package metadata says, and whether those here fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import zip_longest

from fewfed.doctor.finding import Finding

PURPOSES = {
    "audio": "reading sound",
    "images": "reading folders of images",
    "tables": "reading .parquet and saved Hugging Face data sets",
    "plot": "pictures: --plot of compare, split and diagnose",
    "privacy": "epsilon of rounds with a sampled cohort, where a server adds noise",
    "onnx": "fewfed export --to onnx",
    "ray": "--executor ray",
    "flower": "federations of real sites: fewfed serve, site and certs",
    "track": "rounds in TensorBoard, MLflow and Weights & Biases: --track",
    "docs": "work on fewfed itself: make docs",
    "fuzz": "work on fewfed itself: make fuzz",
    "dev": "work on fewfed itself: make test",
}
"""What each extra is for. Which there are, and what is in them, the package's metadata says."""

_FEWFED = "fewfed"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?\s*([^;]*)(?:;(.*))?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][^\s,]*)")


@dataclass(frozen=True)
class Requirement:
    """A package that is needed, in which versions, and of which extra it is a part (none: always)."""

    package: str
    clauses: tuple[tuple[str, str], ...]
    extra: str = ""

    @classmethod
    def parsed(cls, text: str) -> Requirement:
        """From a line of package metadata, as in `ray==2.60.*; extra == "ray"`."""
        found = _REQUIREMENT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"'{text}' is no requirement")
        name, _, versions, marker = found.groups()
        clauses = tuple((how, version) for how, version in _CLAUSE.findall(versions))
        if len(clauses) != len([part for part in versions.strip("() ").split(",") if part.strip()]):
            raise ValueError(f"'{text}' has a clause that is not understood")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker or "")
        return cls(name, clauses, extra[1] if extra else "")

    @property
    def wanted(self) -> str:
        return ",".join(how + version for how, version in self.clauses) or "any version"

    def allows(self, version: str) -> bool:
        return all(_holds(version, how, wanted) for how, wanted in self.clauses)

    def problem(self) -> str:
        """Why what is installed will not do; empty where it will."""
        try:
            found = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        return "" if self.allows(found) else f"{self.package} {found} is installed, {self.wanted} is needed"


def _holds(version: str, how: str, wanted: str) -> bool:
    """One clause, by the numbers of a release: what comes after them (`+cpu`, `rc1`) is not looked at."""
    ours, theirs = _numbers(version), _numbers(wanted)
    if wanted.endswith(".*"):
        same = ours[: len(theirs)] == theirs
        return same if how == "==" else not same
    pairs = list(zip_longest(ours, theirs, fillvalue=0))
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {">=": left >= right, "<=": left <= right, "==": left == right,
            "!=": left != right, "<": left < right, ">": left > right}[how]  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def look() -> Iterator[Finding]:
    """What is always needed in one finding, then one for each extra."""
    try:
        package = metadata.distribution(_FEWFED)
    except metadata.PackageNotFoundError:
        yield Finding("packages", "needed", "limited", "fewfed runs from its sources and is not installed, so that "
                      "nobody can tell what it needs", "pip install -e . in its folder")  # fmt: skip
        return
    needed = [Requirement.parsed(text) for text in package.requires or ()]
    core = [each for each in needed if not each.extra]
    problems = [problem for each in core if (problem := each.problem())]
    names = ", ".join(f"{each.package} {metadata.version(each.package)}" for each in core if not each.problem())
    yield (
        Finding("packages", "needed", "broken", "; ".join(problems), "pip install --upgrade fewfed")
        if problems
        else Finding("packages", "needed", "fine", names)
    )
    for extra in package.metadata.get_all("Provides-Extra") or ():
        yield _extra(extra, [each for each in needed if each.extra == extra and each.package != _FEWFED])


def _extra(name: str, parts: list[Requirement]) -> Finding:
    purpose = PURPOSES.get(name, "")
    problems = [problem for each in parts if (problem := each.problem())]
    if problems:
        says = f"{'; '.join(problems)} (for {purpose})" if purpose else "; ".join(problems)
        return Finding("extras", name, "absent", says, f"pip install 'fewfed[{name}]'")
    return Finding(
        "extras", name, "fine", ", ".join(f"{each.package} {metadata.version(each.package)}" for each in parts)
    )
