"""Who does not belong is refused, and it is written down: sites, servers and names, as real processes."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import tomllib
from pathlib import Path

import httpx
import pytest
from disturbed import Disturbed, assert_equals, missing, reference


@pytest.fixture
def stolen(trio: Disturbed) -> Path:
    """Keys that another authority made, for sites of the same names and one more."""
    if not (trio.folder / "other").exists():
        made = trio.fewfed("certs", "other", "--server", "127.0.0.1", "--sites", "cedar,zebra")
        assert made.returncode == 0, made.stderr
    return trio.folder / "other"


def start_impostor(trio: Disturbed, who: str, name: str, keys: Path) -> None:
    trio.start(
        who, "site", "--data", "cedar.npz", "--test-column", "held", "--name", name, "--threads", "1",
        "--key", str(keys), "--server", f"127.0.0.1:{trio.port}", "--state", f"state/{who}",
    )  # fmt: skip


def test_sites_that_do_not_belong_are_kept_out(trio: Disturbed, stolen: Path, tmp_path: Path) -> None:
    """While the coordinator waits for cedar, others try to be cedar, or just to be there."""
    trio.kill("cedar")
    unregistered = Path(shutil.copytree(stolen / "sites" / "zebra", tmp_path / "zebra"))
    shutil.copy(trio.folder / "keys" / "ca.crt", unregistered / "ca.crt")
    half = Path(shutil.copytree(trio.folder / "keys" / "sites" / "cedar", tmp_path / "half"))
    shutil.copy(stolen / "sites" / "cedar" / "signing.key", half / "signing.key")
    ours = tomllib.loads((half / "roster.toml").read_text())["sites"]["cedar"]
    theirs = tomllib.loads((stolen / "roster.toml").read_text())["sites"]["cedar"]
    roster = (half / "roster.toml").read_text()
    for line in ("signing", "fingerprint"):  # Or the site itself would see that its keys are not those of cedar.
        roster = roster.replace(ours[line], theirs[line])
    (half / "roster.toml").write_text(roster)
    trio.serve("kept-out")
    try:
        start_impostor(trio, "unregistered", "zebra", unregistered)
        start_impostor(trio, "other-authority", "cedar", stolen / "sites" / "cedar")
        trio.wait_log("other-authority", "certificate verify failed")
        trio.wait_log("unregistered", "node key is not on the coordinator's roster")
        link = (trio.folder / "kept-out" / "flower" / "superlink.log").read_text()
        assert "No SuperNode found with the given public key" in link
        start_impostor(trio, "half-stolen", "cedar", half)
        trio.wait_log("kept-out", "site 'cedar' does not join")
        assert "its signature is not that of 'cedar'" in trio.log("kept-out")
        assert "zebra" not in trio.log("kept-out")
        knock_without_keys(trio)
        second = trio.fewfed("serve", "kept-out.toml", "--out", "second")
        assert second.returncode == 2
        assert "another server answers there" in second.stderr
        assert not (trio.folder / "kept-out" / "metrics.jsonl").exists(), "nothing began without cedar"
    finally:
        for who in ("unregistered", "other-authority", "half-stolen"):
            if who in trio.processes:
                trio.end(who)
    trio.start_site("cedar")
    found = trio.finished("kept-out")
    assert missing(found) == set()
    assert_equals(found, reference(tmp_path / "reference"))


def knock_without_keys(trio: Disturbed) -> None:
    """The port lets nobody in who comes without TLS, or without the coordinator's secret or a node's key."""
    with socket.create_connection(("127.0.0.1", trio.port), 10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain.recv(100)
    context = ssl.create_default_context(cafile=str(trio.folder / "keys" / "ca.crt"))
    with httpx.Client(base_url=f"https://127.0.0.1:{trio.port}", verify=context) as client:
        for place in ("/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/push-messages", "/docs"):
            assert client.post(place).status_code == 403, place
        assert 400 <= client.post("/v1/fleet/pull-messages").status_code < 500
        assert client.post("/v1/fleet/activate-node", content=bytes(9_000_000)).status_code == 413


@pytest.mark.thorough
def test_a_coordinator_with_another_signing_key_is_not_heard(trio: Disturbed, stolen: Path) -> None:
    """Somebody has the server's certificate, but not the key that letters are signed with."""
    false = Path(shutil.copytree(trio.folder / "keys", trio.folder / "false"))
    shutil.copy(stolen / "coordinator.key", false / "coordinator.key")
    line = re.compile(r"^coordinator = .*$", re.M)
    theirs = line.findall((stolen / "roster.toml").read_text())[0]
    (false / "roster.toml").write_text(line.sub(theirs, (false / "roster.toml").read_text()))
    trio.serve("unheard", deadline=5.0, federation='keys = "false"\ngive_up = 15')
    said = trio.ended("unheard")
    assert "only 0 sites joined, fewer than the quorum of 3" in said
    for name in trio.names:
        assert "a letter was refused: its signature is not that of 'coordinator'" in trio.log(name)


@pytest.mark.thorough
def test_keys_that_were_replaced_open_nothing(trio: Disturbed, tmp_path: Path) -> None:
    """How a site is locked out of a run that goes on: its name gets new keys, and the coordinator is resumed."""
    keys = trio.folder / "keys"
    shutil.copytree(keys, tmp_path / "keys")
    shutil.copytree(keys / "sites" / "cedar", trio.folder / "old")
    trio.serve("locked", quorum=2, deadline=3.0, wait=8.0)
    trio.wait_round("locked", 1)
    trio.kill("locked")
    trio.kill("cedar")
    try:
        made = trio.fewfed("certs", "keys", "--sites", "cedar", "--replace")
        assert made.returncode == 0, made.stderr
        trio.start_site("cedar", key="old")
        trio.again("locked")
        found = trio.finished("locked")
        trio.wait_log("cedar", "node key is not on the coordinator's roster")
        left_out = missing(found)
        assert {site for _, _, site in left_out} == {"cedar"}
        assert max(round for round, _, _ in left_out) == 3
        assert_equals(found, reference(tmp_path / "reference", left_out), scored=False)
    finally:
        trio.end("cedar")
        shutil.rmtree(keys)
        shutil.copytree(tmp_path / "keys", keys)


@pytest.mark.parametrize(
    "name",
    ["../amber", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("..", "a\nb", "", "/etc/passwd"))],
)
def test_names_that_lead_elsewhere(trio: Disturbed, name: str) -> None:
    site = trio.fewfed(
        "site", "--data", "amber.npz", "--name", name, "--key", "keys/sites/amber", "--server", "127.0.0.1:1",
        "--state", "state/elsewhere",
    )  # fmt: skip
    certs = trio.fewfed("certs", "more", "--server", "127.0.0.1", "--sites", name)
    for found in (site, certs):
        assert found.returncode == 2
        assert "Traceback" not in found.stderr
        assert "cannot be used" in found.stderr
    assert not (trio.folder / "more").exists()
    assert not (trio.folder / "state" / "elsewhere").exists()


def test_keys_of_another_site(trio: Disturbed) -> None:
    found = trio.fewfed(
        "site", "--data", "amber.npz", "--test-column", "held", "--name", "birch", "--key", "keys/sites/amber",
        "--server", "127.0.0.1:1", "--state", "state/elsewhere",
    )  # fmt: skip
    assert found.returncode == 2
    assert "are not those of site 'birch'" in found.stderr
