"""The secret of a site: drawn once, kept for itself, and the same staying noise after every restart."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from federation import Federation, write_digits
from test_deploy_site import RUN, Desk, joined

from fewfed.deploy.messages import Verdict
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.site.secret import FILE, kept_secret
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import decode
from fewfed.errors import RunError
from fewfed.phase import Clock


def folder(path: Path) -> OwnFolder:
    made = OwnFolder(path)
    made.make()
    return made


def test_it_is_drawn_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    secret = kept_secret(folder(tmp_path / "state"))
    assert len(secret) == 32
    assert kept_secret(folder(tmp_path / "state")) == secret
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "state").iterdir()] == [FILE]
    assert kept_secret(folder(tmp_path / "other")) != secret


def flipped(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "for everybody to read": (lambda path: path.chmod(0o644), "may be read by others (mode 644): expected 600"),
    "for a group to write": (lambda path: path.chmod(0o620), "mode 620"),
    "one bit": (flipped, "is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:40]), "is damaged"),
    "too long": (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "65 bytes: expected at most 64"),
    "a link": (a_link, "is a link"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "neither a file nor a folder"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_what_cannot_be_it_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    kept_secret(folder(tmp_path))
    spoil, said = SPOILED[kind]
    spoil(tmp_path / FILE)
    with pytest.raises(RunError) as refused:
        kept_secret(folder(tmp_path))
    assert said in str(refused.value)
    assert FILE in str(refused.value)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    write_digits(tmp_path)
    made = Desk(Federation(tmp_path, "blurred(flea)", more='noise = 1.0\nfresh = 0.0\n"inner.share" = 0.5'))
    made.join()
    return made


def shared(desk: Desk, round: int, *settled: Verdict) -> torch.Tensor:
    """The features that a site sends of its rows through the first model, in any round."""
    does = desk.job.phase("share", Clock(0, 5, 2)).does
    model = does.broadcast(desk.job.method.server_init(desk.job.setup))
    reply = desk.train(round, *settled, model=model, phase="share")
    assert reply.failed == ""
    features = decode(reply.content).arrays["features"]
    assert isinstance(features, torch.Tensor)
    return features


def test_a_site_that_was_killed_sends_the_same_noise_and_another_one_sends_other(desk: Desk) -> None:
    first = shared(desk, 0)
    desk.restart()
    again = shared(desk, 1, Verdict(0, "share", True))
    assert torch.equal(first, again), "nobody learns anything by having it restarted"
    other = shared(joined(desk, "other"), 0)
    assert not torch.isclose(first, other).any(1).all()
    (desk.federation.folder / "state-run-amber" / FILE).unlink()
    desk.restart()
    assert not torch.isclose(first, shared(desk, 2, Verdict(1, "share", True))).any(1).all()


def test_a_damaged_secret_stops_a_site_before_it_answers_anybody(desk: Desk) -> None:
    (desk.federation.folder / "state-run-amber" / FILE).chmod(0o640)
    with pytest.raises(RunError, match="others"):
        desk.restart()


def test_it_is_nowhere_but_in_its_file(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    state = desk.federation.folder / "state-run-amber"
    content = (state / FILE).read_bytes()
    secret = content[:32]
    answers, answer = [], desk.site.answer

    def heard(parcel: Parcel) -> Parcel | None:
        found = answer(parcel)
        answers.append(b"" if found is None else found.letter + found.attached)
        return found

    desk.site.answer = heard  # type: ignore[method-assign]
    with caplog.at_level(logging.DEBUG):
        shared(desk, 0)
        assert desk.train(0, phase="nothing").failed
    work = desk.site._runs[RUN].work
    assert dataclasses.asdict(work.offer)
    job = desk.site._runs[RUN].jobs["training"]
    assert job.plan.secret == work.secret == secret
    files = [path.read_bytes() for path in state.rglob("*") if path.is_file() and path.name != FILE]
    said = [caplog.text, repr(work), repr(job.plan), repr(job), *map(str, os.environ.values())]
    for part in (secret, content[32:]):
        assert not any(part in each or part.hex().encode() in each for each in (*answers, *files))
        assert not any(part.hex() in each or repr(part) in each for each in said)
    assert len(answers) == 2
    assert len(files) > 2
