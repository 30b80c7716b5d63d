"""A site: it opens the coordinator's letters, does what they ask within its policy, and answers. It knows no transport.

A letter that is not the coordinator's is not answered at all, only logged.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fewfed import tree
from fewfed.data.examples import Dataset
from fewfed.data.federation import HeldOut
from fewfed.deploy import messages
from fewfed.deploy.masking import is_summed
from fewfed.deploy.messages import SCALING, BadMessage, Offer, Reply, Request
from fewfed.deploy.parcel import Parcel, digest_of
from fewfed.deploy.secure.fixed_point import OutOfRange
from fewfed.deploy.security.envelope import MOST_BYTES, About, Direction, Expected, Opened, Refused, seal, unseal
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.site.home import Home, Kept, Stale
from fewfed.deploy.site.masked import MaskedSums
from fewfed.deploy.site.model_folder import MODEL, keep_model
from fewfed.deploy.site.secret import kept_secret
from fewfed.deploy.site.work import Work, accepted, leaving, rehearsed
from fewfed.engine import asking, scoring
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import SERVER, BadPacket, Packet, decode, encode
from fewfed.engine.rehearsal import Broadcasts
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError, DataError, FewfedError, told
from fewfed.phase import Clock, Phase, Role
from fewfed.runs.identity import content_of
from fewfed.runs.scaling import InputScaling
from fewfed.tree import Tree

_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
"""The name of a run is the name of a folder here."""


@dataclass(frozen=True)
class Settings:
    """What stays the same as long as a site runs."""

    name: str
    key: SigningKey
    coordinator: Mapping[str, PublicKey]
    """The coordinator's name and key: nobody else is heard."""
    dataset: Dataset
    folder: Path
    """Where it keeps what it remembers, a folder a run."""
    policy: Path | None = None
    most_bytes: int = MOST_BYTES
    peers: Mapping[str, PublicKey] = field(default_factory=dict)
    """The signing keys of all sites, from this site's own roster: sums under masks are made with nobody else."""
    least_threshold: int = 0
    """Of a sum under masks, the fewest sites that must answer to the end: with fewer this site takes no part."""


@dataclass
class _Run:
    """A run that this site takes part in."""

    work: Work
    home: Home
    jobs: dict[str, Job]
    """By stage; that of the rounds is there once it is known how inputs are scaled."""
    broadcasts: dict[str, Broadcasts | None]
    sums: MaskedSums
    changed: bool = False
    """The site's rows are others than those with which it joined: it must join anew."""


class Site:
    """Answers one letter after another. All that must not be forgotten is on its disk before an answer leaves."""

    def __init__(self, settings: Settings, log: logging.Logger | None = None) -> None:
        self._settings = settings
        self._log = log or logging.getLogger("fewfed.site")
        self._runs: dict[str, _Run] = {}
        self._folder = OwnFolder(settings.folder)
        self._folder.make()
        self._secret = kept_secret(self._folder)
        self._rows = content_of(settings.dataset)

    def answer(self, parcel: Parcel) -> Parcel | None:
        """The answer to a parcel; None where it is not the coordinator's, so that nobody is owed one."""
        settings = self._settings
        expected = Expected(direction=Direction.REQUEST, recipient=settings.name, sender=COORDINATOR)
        try:
            opened = unseal(parcel.letter, expected, settings.coordinator, settings.most_bytes)
            if len(parcel.attached) > settings.most_bytes:
                raise Refused("size", f"{len(parcel.attached)} bytes are attached: expected fewer")
        except Refused as refused:
            self._log.warning("a letter was refused: %s", messages.shown(str(refused)))
            return None
        about = opened.about
        try:
            body = self._answered(opened, parcel.attached)
        except (FewfedError, BadMessage, BadPacket, Stale, Refused, OutOfRange) as error:
            self._log.warning("round %d, %s '%s': %s", about.round + 1, about.kind, about.phase, error)
            body = Reply(failed=str(error)).body()
        except KeyboardInterrupt:
            raise
        except Exception as error:  # Whatever a letter leads to, the site stays there for the next.
            self._log.exception("round %d, %s '%s'", about.round + 1, about.kind, about.phase)
            body = Reply(failed=told(error)).body()
        return Parcel(seal(body, about.reply(), settings.key))

    def _answered(self, opened: Opened, attached: bytes) -> bytes:
        about = opened.about
        if not _RUN.fullmatch(about.run):
            raise BadMessage(f"the run is called {about.run!r:.60}: expected letters, digits and '-'")
        if about.kind == messages.TURNED_AWAY:
            reason = messages.shown(str(messages.unpack(opened.body)[0].get("reason", "")), 1000)
            self._log.warning("this site cannot take part in run %s: %s", about.run, reason)
            return Reply().body()
        if about.kind == messages.JOIN:
            return self._join(about, Offer.read(opened.body))
        run = self._runs.get(about.run) or self._reopened(about.run)
        if run is None:
            return Reply(failed="it does not know this run", unknown_run=True).body()
        run.home.hear(about.attempt)
        if run.changed:
            return Reply(failed="its rows have changed since it joined", unknown_run=True).body()
        if about.kind == messages.BEGIN:
            return self._begin(about, run, opened.body)
        request = Request.read(opened.body)
        if request.attached != digest_of(attached):
            raise BadMessage("what is attached is not what the letter names")
        if request.stage not in run.jobs:
            return Reply(failed="it does not know how inputs are scaled", unknown_run=True).body()
        work: Mapping[str, Callable[[About, _Run, Request, bytes], bytes]] = {
            messages.PHASE: self._phase,
            messages.SUM: self._sum,
            messages.SCORE: self._score,
            messages.FINISH: self._finish,
        }
        if about.kind not in work:
            raise BadMessage(f"it asks for {about.kind!r:.40}: expected one of {', '.join(work)}")
        return work[about.kind](about, run, request, attached)

    def _join(self, about: About, offer: Offer) -> bytes:
        run = self._runs.get(about.run) or self._reopened(about.run)
        if run is None:
            dataset = self._settings.dataset
            try:
                work = self._accepted(offer)
            except DataError as error:  # The coordinator knows what others have, and can say where it differs.
                self._log.warning("does not join run %s: %s", about.run, error)
                return Reply(str(error), inputs=None if dataset.inputs is None else dataset.inputs.as_json()).body()
            terms = work.terms()  # Before anything is written: it builds the network.
            home = Home(self._folder.below(about.run))
            home.write_facts("offer", messages.unpack(offer.body())[0])
            home.write_facts("rows", {"digest": self._rows})
            run = self._runs[about.run] = self._run(work, home)
            spec, rounds = work.resolved.spec, work.resolved.experiment.rounds
            self._log.info("joined run %s: %s, %d rounds, %d sites", about.run, spec, rounds, len(offer.sites))
            return terms.body()
        run.home.hear(about.attempt)
        if run.work.offer != offer:
            raise BadMessage("this run was offered before with other settings: expected the same")
        if run.changed:
            run.home.write_facts("rows", {"digest": self._rows})
            run.changed = False
        return run.work.terms().body()

    def _accepted(self, offer: Offer) -> Work:
        own = self._settings
        try:
            return accepted(own.name, offer, own.dataset, own.policy, self._secret, own.peers)
        except ConfigError as error:
            if error.key != "policy":
                raise
            self._log.warning("%s", error)  # What a policy says is for nobody else to read.
            raise ConfigError("its policy cannot be applied: its own log says why", key="policy") from None

    def _run(self, work: Work, home: Home) -> _Run:
        own = self._settings
        sums = MaskedSums(own.name, own.key, own.peers, home, work.offer.secure, own.least_threshold)
        return _Run(work, home, {SCALING: work.measuring}, {SCALING: None}, sums)

    def _begin(self, about: About, run: _Run, body: bytes) -> bytes:
        head, _ = messages.unpack(body)
        scaling = InputScaling.from_json(head)
        known = run.home.facts("scaling")
        if known is not None and known != scaling.as_json():
            raise BadMessage("inputs are scaled with other constants than before: expected the same")
        if messages.TRAINING not in run.jobs:
            self._prepare(run, scaling)
        if known is None:
            run.home.write_facts("scaling", scaling.as_json())
            leaves = leaving(run.jobs[messages.TRAINING], run.work.resolved.experiment.rounds)
            self._log.info("run %s begins; what the method sends from here: %s", about.run, leaves)
        return Reply().body()

    def _prepare(self, run: _Run, scaling: InputScaling) -> None:
        job = run.work.training(scaling)
        run.jobs[messages.TRAINING] = job
        run.broadcasts[messages.TRAINING] = rehearsed(job, run.work.resolved.experiment.rounds)
        if run.broadcasts[messages.TRAINING] is None:
            self._log.info("what the server sends cannot be derived beforehand: only sizes and numbers are checked")

    def _reopened(self, name: str) -> _Run | None:
        """A run that this site knew before it was restarted."""
        if not (self._settings.folder / name / "offer.json").is_file():
            return None
        home = Home(self._folder.below(name))
        offer = Offer.read(messages.pack(home.facts("offer")))
        run = self._run(self._accepted(offer), home)
        if (scaling := home.facts("scaling")) is not None:
            self._prepare(run, InputScaling.from_json(scaling))
        self._runs[name] = run
        run.changed = (home.facts("rows") or {}).get("digest", self._rows) != self._rows
        self._log.info("goes on with run %s%s", name, ", with other rows than before" if run.changed else "")
        return run

    def _phase(self, about: About, run: _Run, request: Request, attached: bytes) -> bytes:
        job, home, place = run.jobs[request.stage], run.home, (request.stage, about.round, about.phase)
        asked = digest_of(attached) + digest_of(request.content)
        before = home.found(place, about.attempt, asked)
        if before is not None:
            self._log.info("round %d, phase '%s': answered again as before", about.round + 1, about.phase)
            return before
        clock = self._clock(run, request.stage, about.round)
        phase = _phase_called(job, about.phase, clock)
        shared, personal = self._received(run, request, about, attached)
        home.settle(request.settled, request.stage)
        kept = home.begin(place)
        state = asking.client_init(job) if kept.state is None else kept.state
        moments = kept.moments.get(phase.name, {}) if job.keeps_moments(phase) else {}
        member = Member(run.work.number, personal, state, moments, kept.book)
        found = run_turn(job, phase, clock, shared, member)
        if isinstance(found, Failed):
            self._log.warning("round %d, phase '%s': %s", about.round + 1, about.phase, found.reason)
            gone = run.work.number in frozenset[int]().union(*(gate.withdrawn(clock) for gate in job.gates))
            return dataclasses.replace(Reply.of(found), withdrawn=gone).body()
        # Under masks the packet stays here: what leaves is its part in a sum.
        hidden = is_summed(run.work.offer.secure, phase)
        packet = encode(found.packet)
        reply = (Reply() if hidden else Reply(content=packet)).body()
        after = Kept(
            found.state if phase.keeps_state else kept.state,
            {**kept.moments, phase.name: found.moments} if found.moments else kept.moments,
            found.book or kept.book,
        )
        home.keep(place, about.attempt, asked, reply, after, packet if hidden else b"")
        self._log.info("round %d, phase '%s': done", about.round + 1, about.phase)
        return reply

    def _sum(self, about: About, run: _Run, request: Request, _: bytes) -> bytes:
        job, place = run.jobs[request.stage], (request.stage, about.round, about.phase)
        phase = _phase_called(job, about.phase, self._clock(run, request.stage, about.round))
        return Reply(content=run.sums.answer(about, place, phase, request.step, request.content)).body()

    def _received(self, run: _Run, request: Request, about: About, attached: bytes) -> tuple[Tree, Tree]:
        """What all members receive, and this one alone, if it looks as it must."""
        arrays: Tree = {"shared": {}, "personal": {}}
        for name, content in (("shared", attached), ("personal", request.content)):
            if content:
                packet = decode(content, self._settings.most_bytes)
                if (packet.sender, packet.round, packet.phase) != (SERVER, about.round, about.phase):
                    raise BadPacket(f"what is {name} is of another round or phase")
                arrays[name] = packet.arrays
        checks = run.broadcasts.get(request.stage)
        if checks is not None:
            checks.check(Packet(about.round, about.phase, SERVER, 1.0, arrays), about.round, about.phase)
        else:
            for path, leaf in tree.leaves(arrays):
                if not bool(torch.isfinite(leaf).all()):
                    raise BadPacket(f"its '{path}' holds NaN or infinity: expected finite numbers")
        return arrays["shared"], arrays["personal"]

    def _score(self, _: About, run: _Run, request: Request, attached: bytes) -> bytes:
        if not run.work.allows(Role.SCORE):
            return Reply(failed="its policy does not let scores leave", cause="policy").body()
        job = run.jobs[messages.TRAINING]
        model = self._model(run, request, attached)
        on: HeldOut = "test" if request.on == "test" else "validation"
        if not len(scoring.rows_of(job, on)):
            return Reply(failed=f"it has no {on} rows").body()
        return Reply(score=scoring.evaluate(job, model, on).as_json()).body()

    def _model(self, run: _Run, request: Request, attached: bytes) -> Tree:
        """The model that is meant: the one attached, or the site's own, made with what is."""
        job = run.jobs[messages.TRAINING]
        run.home.settle(request.settled, request.stage)
        model = decode(attached, self._settings.most_bytes).arrays
        if not request.own:
            return model
        kept = run.home.kept()
        return asking.predictor(job, model, asking.client_init(job) if kept.state is None else kept.state)

    def _finish(self, about: About, run: _Run, request: Request, attached: bytes) -> bytes:
        """Put the model away, where this site can use it."""
        job = run.jobs[messages.TRAINING]
        model = self._model(run, request, attached)
        scaling = InputScaling.from_json(run.home.facts("scaling"))
        path = self._settings.folder / about.run / MODEL
        keep_model(path, run.work, job, scaling, model)
        self._log.info("run %s is finished; the model is in %s", about.run, path)
        return Reply().body()

    @staticmethod
    def _clock(run: _Run, stage: str, round: int) -> Clock:
        experiment = run.work.resolved.experiment
        rounds, epochs = experiment.rounds, run.work.resolved.training.epochs
        if stage == SCALING:
            rounds, epochs = 1, run.jobs[stage].training.epochs
        if not 0 <= round < rounds:
            raise BadMessage(f"round {round + 1} of {rounds} was asked for")
        return Clock(round, rounds, epochs)


def _phase_called(job: Job, name: str, clock: Clock) -> Phase:
    for phase in asking.phases(job, clock):
        if phase.name == name:
            return phase
    raise BadMessage(f"phase {name!r:.60} is none of round {clock.round + 1}")
