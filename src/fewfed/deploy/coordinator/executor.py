"""The executor `flower`: members of a phase are real sites, asked by letters. The round loop is everybody's.

Answers are checked as they come in, and combined in the order of the sites' numbers, whoever was faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fewfed.data.federation import HeldOut
from fewfed.deploy import messages
from fewfed.deploy.coordinator.homes import RemoteHomes
from fewfed.deploy.coordinator.known_sites import MOST_ROWS, KnownSites
from fewfed.deploy.coordinator.masked import MaskedPhase
from fewfed.deploy.coordinator.post import NoAnswer, Post, Question
from fewfed.deploy.coordinator.scores import blank_score, checked_score, of_sites, parts_of_predictor
from fewfed.deploy.masking import is_summed
from fewfed.deploy.messages import BadMessage, Reply, Request, Verdict
from fewfed.deploy.parcel import digest_of
from fewfed.deploy.security.envelope import Opened
from fewfed.engine import asking
from fewfed.engine.events import Event
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Done, Failed, Outcome
from fewfed.engine.packet import MOST_BYTES, SERVER, BadPacket, Packet, decode, encode
from fewfed.engine.scoring import Answered
from fewfed.engine.threads import one_thread
from fewfed.errors import RunError
from fewfed.task import Score
from fewfed.tree import Tree

_NO_SCORE = "scores"
"""The phase that letters about scores name."""


@dataclass
class SitesExecutor:
    """Runs phases at real sites; those inside the server run here."""

    job: Job
    post: Post
    names: Sequence[str]
    """Of the sites, in the order of their numbers."""
    homes: RemoteHomes = field(default_factory=RemoteHomes)
    stage: str = messages.TRAINING
    secure: str = ""
    """Whether uploads are summed under masks, and what becomes of those that cannot be (`Offer.secure`)."""
    secure_threshold: int = 0
    """Of such a sum: sites that must answer to the end, where that is to be more than a majority."""
    most_bytes: int = MOST_BYTES
    strangers: set[str] = field(default_factory=set)
    """Sites that have not joined the run, or said that they do not know it: they must join before they are asked."""
    welcome: Callable[[Collection[str]], Collection[str]] = lambda _: ()
    """Lets some sites join; those that did."""
    unscored: dict[str, str] = field(default_factory=dict)
    """Why a site that answered did not score the last model that it was asked about."""
    _round: int = 0
    _asked: int = 0
    """How many questions about scores were asked in this round: each has a name of its own."""

    def place(self, server: Tree) -> Tree:
        return server

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        if is_inside(briefing.phase):
            yield from Sequential(self.job).run(briefing, members)
            return
        self._round, self._asked = briefing.clock.round, 0
        invited = list(members)
        found = self._asked_for(briefing, invited)
        schema = briefing.schema
        for member in invited:
            outcome, site = found[member.client], self.names[member.client]
            if isinstance(outcome, Done) and schema.leaves is None:
                try:
                    schema.check(outcome.packet, member.client)
                    schema = schema.learned(outcome.packet)
                except BadPacket as error:
                    outcome = self._refused(briefing, site, f"its packet was refused: {error}")
            elif isinstance(outcome, Done) and briefing.schema.leaves is None:
                try:
                    schema.check(outcome.packet, member.client)
                except BadPacket as error:
                    outcome = self._refused(briefing, site, f"its packet was refused: {error}")
            verdict = Verdict(briefing.clock.round, briefing.phase.name, isinstance(outcome, Done))
            self.homes.judge(site, verdict)
            yield outcome

    def _asked_for(self, briefing: Briefing, invited: Sequence[Invited]) -> dict[int, Outcome]:
        """What became of every member, by its number."""
        round, phase = briefing.clock.round, briefing.phase.name
        self._let_join([self.names[member.client] for member in invited], round)
        asked = [member for member in invited if not self._kept_out(self.names[member.client], round)]
        with one_thread():
            attached = encode(Packet(round, phase, SERVER, 1.0, briefing.shared)) if briefing.shared else b""
        digest = digest_of(attached)
        bodies = {
            self.names[member.client]: Request(
                self.homes.verdicts(self.names[member.client]),
                self.stage,
                digest,
                content=encode(Packet(round, phase, SERVER, 1.0, member.personal)) if member.personal else b"",
            ).body()
            for member in asked
        }
        patience = self.post.patience
        needed = len(asked) - patience.spare if patience.spare else None
        quorum = min(patience.quorum, len(asked))
        enough = None if needed is None or needed < max(1, quorum) else needed

        def judge(site: str, opened: Opened) -> Packet | Failed:
            return self._judged(briefing, site, opened)

        question = Question(messages.PHASE, round, phase, bodies, attached, judge, enough, quorum)
        came = self.post.ask(question) if bodies else {}
        answers: Mapping[str, Packet | Failed | NoAnswer] = came
        self._note_refusals(round, phase)
        if is_summed(self.secure, briefing.phase):
            answers = self._summed(briefing, answers)
        outcomes: dict[int, Outcome] = {}
        for member in invited:
            site = self.names[member.client]
            answer = answers.get(site)
            if answer is None:
                outcomes[member.client] = Failed(member.client, phase, self._kept_out(site, round), "absent")
            elif isinstance(answer, NoAnswer):
                outcomes[member.client] = self._missing(briefing, site, answer)
            elif isinstance(answer, Failed):
                outcomes[member.client] = answer
            else:
                outcomes[member.client] = Done(answer)
        return outcomes

    def _judged(self, briefing: Briefing, site: str, opened: Opened) -> Packet | Failed:
        """The packet in an answer, or why the site has none. Raises where it is not acceptable."""
        reply, client = Reply.read(opened.body), self.names.index(site)
        if reply.unknown_run:
            self.strangers.add(site)
        if reply.withdrawn:
            self.homes.withdrawn.add(site)
        if reply.failed:
            return Failed(client, briefing.phase.name, reply.failed, reply.cause)
        if is_summed(self.secure, briefing.phase):
            if reply.content:
                raise BadMessage("it sends its packet as it is, although sums are made under masks")
            return Packet(briefing.clock.round, briefing.phase.name, client, 1.0, {})
        packet = decode(reply.content, self.most_bytes)
        # A larger site may have joined since the schema was derived.
        schema = dataclasses.replace(briefing.schema, most_rows=self.job.federation.most_rows)
        schema.check(packet, client)
        return packet

    def _summed(
        self, briefing: Briefing, answers: Mapping[str, Packet | Failed | NoAnswer]
    ) -> dict[str, Packet | Failed | NoAnswer]:
        """The same answers, but for packets of sites that are ready those of a sum under masks."""
        ready = [site for site, answer in answers.items() if isinstance(answer, Packet)]
        numbers = {site: self.names.index(site) for site in ready}
        schema = dataclasses.replace(briefing.schema, most_rows=self.job.federation.most_rows)
        briefing = dataclasses.replace(briefing, schema=schema)
        masked = MaskedPhase(self.post, briefing, self.stage, self.secure, self.secure_threshold)
        found = masked.packets(numbers, self.homes.verdicts)
        return {**answers, **found}

    def _missing(self, briefing: Briefing, site: str, answer: NoAnswer) -> Failed:
        if answer.why == "refused":
            return self._refused(briefing, site, answer.reason, answer.cause)
        return Failed(self.names.index(site), briefing.phase.name, answer.reason, "worker")

    def _refused(self, briefing: Briefing, site: str, reason: str, cause: str = "packet") -> Failed:
        round, phase = briefing.clock.round, briefing.phase.name
        self._strike(site, round, phase, cause, reason)
        return Failed(self.names.index(site), phase, reason, "packet")

    def _strike(self, site: str, round: int, phase: str, cause: str, reason: str) -> None:
        if self.homes.strikes.note(site, round, phase, cause, reason):
            self.post.log.warning("site '%s' is in quarantine: %s", site, reason)

    def _note_refusals(self, round: int, phase: str) -> None:
        """What was refused and answers no question of ours is a strike of the node that brought it."""
        for site, cause, reason in self.post.refusals:
            self.homes.strikes.note(site, round, phase, cause, reason)
        self.post.refusals.clear()

    def _let_join(self, sites: Iterable[str], round: int) -> None:
        """Let those join who are there by now."""
        here = self.strangers & self.post.present().keys()
        wanted = [site for site in sites if site in here and not self.homes.strikes.quarantined(site, round)]
        if wanted:
            self.strangers -= set(self.welcome(wanted))

    def _kept_out(self, site: str, round: int) -> str:
        """Why a site is not asked; empty where it is."""
        if self.homes.strikes.quarantined(site, round):
            until = self.homes.strikes.until(site)
            return "it is in quarantine" + (f" until round {until + 1}" if until is not None else "")
        if site not in self.post.keys:
            return "it is not on the roster any more"
        return "it has not joined the run" if site in self.strangers else ""

    def scores(self, model: Tree, on: HeldOut = "test", *, own: bool = False) -> dict[str, Score]:
        """The score of a model on the rows of every site that answers; `own`: of the site's own model, made with it."""
        like = blank_score(self.job.task, tuple(self.job.federation.shape))
        self._asked += 1
        name = f"{_NO_SCORE} {self._asked}"
        with one_thread():
            attached = encode(Packet(self._round, name, SERVER, 1.0, model))
        digest = digest_of(attached)
        bodies = {
            site: Request(self.homes.verdicts(site), self.stage, digest, on=on, own=own).body()
            for site in self.names
            if not self._kept_out(site, self._round)
        }

        def judge(site: str, opened: Opened) -> Score | Failed:
            reply = Reply.read(opened.body)
            if reply.failed or reply.score is None:
                return Failed(self.names.index(site), name, reply.failed or "it sent none", reply.cause)
            return checked_score(reply.score, like, self._most_scored(site, on))

        answers = self.post.ask(Question(messages.SCORE, self._round, name, bodies, attached, judge))
        self._note_refusals(self._round, name)
        for site, found in answers.items():
            if isinstance(found, NoAnswer) and found.why == "refused":
                self._strike(site, self._round, name, found.cause, found.reason)
        self.unscored = {site: found.reason for site, found in answers.items() if isinstance(found, Failed)}
        return {site: found for site, found in sorted(answers.items()) if isinstance(found, Score)}

    def _most_scored(self, site: str, on: HeldOut) -> int:
        known = self.job.federation
        return known.most_scored(site, on) if isinstance(known, KnownSites) else MOST_ROWS

    def own_scores(self, server: Tree, on: HeldOut = "test") -> dict[str, Score]:
        """The score of each site's own model on its own rows. Of the server's tree only what these are made of is
        sent."""
        made = asking.predictor(self.job, server, asking.client_init(self.job))
        return self.scores(parts_of_predictor(made, server), on, own=True)

    def hand_over(self, server: Tree) -> None:
        """Tell sites that the run is over, and give them the model, or what their own is made of."""
        job, personal = self.job, bool(self.job.method.personal_model)
        made = asking.predictor(job, server, asking.client_init(job) if personal else {})
        model = parts_of_predictor(made, server) if personal else made
        attached = encode(Packet(self._round, messages.FINISH, SERVER, 1.0, model))
        digest = digest_of(attached)
        bodies = {
            site: Request(self.homes.verdicts(site), self.stage, digest, own=personal).body()
            for site in self.post.present()
            if site in self.names and not self._kept_out(site, self._round)
        }

        def judge(site: str, opened: Opened) -> bool:
            failed = Reply.read(opened.body).failed
            if failed:
                self.post.log.warning("site '%s' has not kept the model: %s", site, failed)
            return True

        if bodies:
            self.post.ask(Question(messages.FINISH, self._round, "", bodies, attached, judge))

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        found = [self.scores(model, on) for model in models]
        if not all(found):
            raise RunError(f"no site could score the model on its {on} rows: see their logs")
        return [of_sites(each) for each in found]

    def evaluate_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> list[Score]:
        found = self.own_scores(server, on)
        missing = [self.names[client] for client in clients if self.names[client] not in found]
        if missing:
            raise RunError(f"no score of the own model of {', '.join(missing[:20])}")
        return [found[self.names[client]] for client in clients]

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:  # noqa: ARG002
        raise RunError("what a model says of single rows stays at the sites: expected a metric that is a sum over rows")

    def answers_personal(
        self,
        server: Tree,  # noqa: ARG002
        clients: Sequence[int],  # noqa: ARG002
        on: HeldOut = "test",
    ) -> Iterator[Answered]:
        return self.answers([], on)

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        pass
