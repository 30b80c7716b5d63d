"""A bad site as a process of its own, over TLS and Flower: some of the table of bad payloads once more."""

from __future__ import annotations

from pathlib import Path

import pytest
from disturbed import Disturbed, assert_equals, missing, reference
from forging import FORGERIES

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "kind",
    [
        "not a number",
        *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("empty", "signed by another site", "replayed")),
    ],
)
def test_a_bad_site_is_refused_and_counted_and_the_others_go_on(trio: Disturbed, kind: str, tmp_path: Path) -> None:
    out, said = kind.replace(" ", "-"), FORGERIES[kind][1]
    trio.kill("cedar")
    trio.programs["cedar"] = [str(HERE / "bad_site.py"), kind, "keys/sites/amber"]
    try:
        trio.start_site("cedar")
        trio.serve(out, quorum=2, federation="strikes = 2")
        found = trio.finished(out)
    finally:
        trio.programs.pop("cedar")
        trio.end("cedar")
    left_out = missing(found)
    assert {site for _, _, site in left_out} == {"cedar"}
    assert_equals(found, reference(tmp_path / "reference", left_out), scored=False)
    log = trio.log(out)
    assert any("'cedar'" in line and said in line for line in log.splitlines()), log
    assert "site 'cedar' is in quarantine" in log
    status = trio.status(out)
    assert said in status
    assert '"strikes": 2' in status
