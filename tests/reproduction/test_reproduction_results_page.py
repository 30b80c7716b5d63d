"""docs/results.md is what the kept records say, and the records are small."""

from __future__ import annotations

from pathlib import Path

from fewfed.reproduction.kept import FOLDER, MOST_BYTES, Kept
from fewfed.reproduction.library import Library
from fewfed.reproduction.page import page

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_records() -> None:
    library = Library(ROOT / "reproduce")
    made = page(library, Kept(library.folder / FOLDER))
    assert (ROOT / "docs" / "results.md").read_text() == made, "write it anew: fewfed reproduce --page docs/results.md"


def test_records_fit_into_the_repository() -> None:
    files = list((ROOT / "reproduce" / FOLDER).rglob("*.json.gz"))
    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_every_record_belongs_to_a_cell_of_a_study() -> None:
    """With the settings that the study has now: else it is old, and to be run again or removed."""
    library = Library(ROOT / "reproduce")
    kept = Kept(library.folder / FOLDER)
    folders = [path.name for path in (library.folder / FOLDER).iterdir() if path.is_dir()]
    assert set(folders) <= set(library.names())
    for name in folders:
        study = library.study(name)
        fitting = kept.fitting(study)
        assert all(fitting.get(cell) == record for cell, record in kept.of(study).items())
