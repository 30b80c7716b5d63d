"""How a user's own files were read, in one paragraph: what a person must see who might have meant something else."""

from __future__ import annotations

from collections.abc import Sequence

from fewfed.data.raw_inputs import InputColumn
from fewfed.data.reading import Count, LeftOut, MissingCells, Reading
from fewfed.report.rendering import printable

MOST_NAMED = 20
"""Classes, sites and columns that are named one by one."""
MOST_CATEGORIES = 6
_LONGEST = 100_000
"""Letters: names in a file may be of any length."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_REASONS = {
    "asked": "as asked",
    "index": "it counts rows",
    "empty": "nothing stands in it",
    "group": "it says whose a row is",
    "beside pictures": "pictures are the inputs",
    "not in training": "the training rows have no such column",
}


def paragraph(reading: Reading) -> str:
    """Sentences on rows, classes, sites, inputs, what was left out, and what is missing."""
    parts = [_rows(reading), _classes(reading), _sites(reading), _inputs(reading), _left_out(reading.left_out)]
    parts += [_missing(reading), _unknown(reading.unknown)]
    if reading.separator in _SEPARATORS:
        parts.append(f"Cells are separated by {_SEPARATORS[reading.separator]}.")
    return printable(" ".join(filter(None, parts)), _LONGEST)


def _rows(reading: Reading) -> str:
    total = reading.rows + reading.test_rows
    tested = {
        "fraction": f"{reading.fraction:.0%} held out",
        "fraction of each site": f"{reading.fraction:.0%} held out within each site",
        "column": f"marked in column '{reading.test_from}'",
        "file": f"from {reading.test_from}",
        "part": "the data's own test part",
    }[reading.test_part]
    return (
        f"{reading.data}: {_many(total, 'row')}, {reading.rows} to train on and {reading.test_rows} to test ({tested})."
    )


def _classes(reading: Reading) -> str:
    if not reading.classes:
        return ""
    where = f" (column '{reading.label}')" if reading.label else ""
    return f"{_many(len(reading.classes), 'class', 'classes')}{where}: {_counted(reading.classes)}."


def _sites(reading: Reading) -> str:
    if not reading.sites:
        return "No sites: nothing says whose a row is (--site COLUMN would)."
    where = "folders" if reading.site == "folders" else f"column '{reading.site}'"
    told = [f"{_many(len(reading.sites), 'site')} ({where}): {_counted(reading.sites)}."]
    if len(reading.sites) > MOST_NAMED:
        smallest = min(reading.sites, key=_size)
        told.append(f"The smallest is {smallest.name} ({_size(smallest)}).")
    untested = [site.name for site in reading.sites if site.train and not site.test]
    if untested and len(untested) < len(reading.sites):
        told.append(f"Without test rows, being small or not in the test part: {_listed(untested)}.")
    untrained = [site.name for site in reading.sites if not site.train]
    if untrained:
        told.append(f"Without training rows: {_listed(untrained)}.")
    return " ".join(told)


def _inputs(reading: Reading) -> str:
    if not reading.columns:
        return ""
    numbers = [column.name for column in reading.columns if not column.categories]
    texts = [column for column in reading.columns if column.categories]
    told = [f"Inputs: {_listed(numbers)}" if numbers else "Inputs:"]
    if texts:
        told.append(f"{'and, ' if numbers else ''}one number a category, {_listed([_one_hot(text) for text in texts])}")
    sentence = " ".join(told) + "."
    if reading.counting:
        column = reading.counting[0]
        sentence += f" Column '{column}' counts the rows: if it is no measurement, leave it out (--ignore '{column}')."
    return sentence


def _one_hot(column: InputColumn) -> str:
    shown = "/".join(column.categories[:MOST_CATEGORIES])
    more = f"/... {len(column.categories)} in all" if len(column.categories) > MOST_CATEGORIES else ""
    return f"{column.name} ({shown}{more})"


def _left_out(left_out: Sequence[LeftOut]) -> str:
    if not left_out:
        return ""
    return f"Left out: {_listed([f'{left.name} ({_REASONS[left.why]})' for left in left_out])}."


def _missing(reading: Reading) -> str:
    if not reading.missing:
        return ""
    cells = _listed([f"{found.cells} in {found.column}" for found in reading.missing])
    done = []
    if reading.filled:
        done.append("inputs are filled in with the mean")
    if reading.dropped:
        done.append(f"{_many(reading.dropped, 'row')} {'was' if reading.dropped == 1 else 'were'} dropped")
    return f"Missing: {cells}; {', '.join(done)}."


def _unknown(unknown: Sequence[MissingCells]) -> str:
    if not unknown:
        return ""
    cells = _listed([f"{found.cells} in {found.column}" for found in unknown])
    return f"Categories of test rows that no training row has are none of those it has: {cells}."


def _counted(counts: Sequence[Count]) -> str:
    return _listed([f"{count.name} ({_size(count)})" for count in counts])


def _size(count: Count) -> int:
    return count.train + count.test


def _listed(items: Sequence[str]) -> str:
    more = [f"and {len(items) - MOST_NAMED} more"] if len(items) > MOST_NAMED else []
    return ", ".join([*items[:MOST_NAMED], *more])


def _many(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
