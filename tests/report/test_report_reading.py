"""The paragraph on how a user's own files were read."""

from __future__ import annotations

from fewfed.data.raw_inputs import InputColumn
from fewfed.data.reading import Count, LeftOut, MissingCells, Reading
from fewfed.report.reading import paragraph


def test_many_sites_are_not_all_named_but_the_smallest_is() -> None:
    sites = tuple(Count(f"s{number}", 50 - number, 1) for number in range(30))
    told = paragraph(Reading("t", site="ward", sites=sites, rows=5, test_rows=1, test_part="fraction of each site"))
    assert "30 sites (column 'ward'): s0 (51), s1 (50)" in told
    assert "s19 (32), and 10 more." in told
    assert "s20" not in told
    assert "The smallest is s29 (22)." in told


def test_everything_there_is_to_say() -> None:
    told = paragraph(
        Reading(
            "t",
            label="y",
            columns=(InputColumn("a"), InputColumn("c", tuple("abcdefgh"))),
            counting=("a",),
            left_out=(LeftOut("n", "asked"), LeftOut("m", "not in training")),
            missing=(MissingCells("a", 2),),
            filled=True,
            unknown=(MissingCells("c", 3),),
            separator=";",
            test_part="file",
            test_from="later.csv",
            rows=1,
            test_rows=0,
            classes=(Count("u", 1, 0),),
        )
    )
    assert told == (
        "t: 1 row, 1 to train on and 0 to test (from later.csv). 1 class (column 'y'): u (1). No sites: nothing says "
        "whose a row is (--site COLUMN would). Inputs: a and, one number a category, c (a/b/c/d/e/f/... 8 in all). "
        "Column 'a' counts the rows: if it is no measurement, leave it out (--ignore 'a'). Left out: n (as asked), m "
        "(the training rows have no such column). Missing: 2 in a; inputs are filled in with the mean. Categories of "
        "test rows that no training row has are none of those it has: 3 in c. Cells are separated by semicolons."
    )


def test_images_say_nothing_of_columns() -> None:
    sites = (Count("A", 3, 1), Count("B", 0, 2))
    told = paragraph(Reading("t", site="folders", sites=sites, rows=3, test_rows=3, test_part="part"))
    assert told == (
        "t: 6 rows, 3 to train on and 3 to test (the data's own test part). 2 sites (folders): A (4), B (2). Without "
        "training rows: B."
    )


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    """Names of sites and classes stand in files that somebody else may have made."""
    told = paragraph(Reading("t", rows=1, sites=(Count("north\x1b[31m", 1, 0),), classes=(Count("u\x07", 1, 0),)))
    assert told.isprintable()
    assert "north\ufffd[31m (1)" in told
