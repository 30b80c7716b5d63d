"""Before the first round: sites join, inputs are measured by sums over all of them, and everybody begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.scaling import Scaling
from fewfed.deploy import messages
from fewfed.deploy.coordinator.executor import SitesExecutor
from fewfed.deploy.coordinator.known_sites import MOST_ROWS, KnownSites
from fewfed.deploy.coordinator.post import NoAnswer, Post, Question
from fewfed.deploy.messages import BadMessage, Offer, Reply, Terms
from fewfed.deploy.model import task_of
from fewfed.deploy.security.envelope import Opened
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.outcomes import Failed
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.runs.scaling import InputScaling, given_constants, measuring_job
from fewfed.version import __version__

_OTHER_INPUTS = "its inputs are made from another kind of file than those of the other sites"


@dataclass
class Opening:
    """Who has joined, on which terms."""

    post: Post
    offer: Offer
    weights: str
    """Digest of the first weights, which every site must have made too."""
    terms: dict[str, Terms] = field(default_factory=dict)
    most_rows: int = MOST_ROWS
    """Rows that a site may say it has."""
    removed: Collection[str] = ()
    """Sites on the list that are not on the roster any more: nobody waits for them."""
    secure_threshold: int = 0
    """Of sums under masks (`SitesExecutor.secure_threshold`)."""
    scaling: InputScaling | None = None
    """How inputs are scaled, once that is known: whoever joins from then on is told at once."""
    common: Mapping[str, Any] | None = None
    """What inputs are made from, once the run has begun with it; before, as most sites say."""
    said: dict[str, Terms] = field(default_factory=dict)
    """What all who are willing to join have said, also those whose inputs are others than most have."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a site could not join."""
    unheard: set[str] = field(default_factory=set)
    """Sites that gave no answer when they were last asked to join."""
    changed: Callable[[], None] = lambda: None
    """Called when others than before have joined, or could not."""

    def wait(self, quorum: int, others: float) -> None:
        """Until a quorum has joined; then, for so many seconds more, for the others on the list."""
        deadline, told = time.monotonic() + self.post.patience.give_up, ""
        enough_since: float | None = None
        tried: dict[str, str] = {}
        expected = [site for site in self.offer.sites if site not in self.removed]
        while len(self.terms) < len(expected):
            here = {site: session for site, session in self.post.present().items() if site in self.offer.sites}
            new = [site for site, session in here.items() if site not in self.terms and tried.get(site) != session]
            if new:  # Whoever declined is asked again once it was restarted, whoever gave no answer at once.
                self.join(new)
                tried |= {site: session for site, session in here.items() if site not in self.unheard}
                self.changed()
            if len(self.terms) < quorum:
                enough_since = None
            else:
                enough_since = time.monotonic() if enough_since is None else enough_since
                if time.monotonic() - enough_since >= others:
                    return
            missing = ", ".join(site for site in expected if site not in self.terms)
            if missing != told:
                told = missing
                self.changed()
                self.post.log.info("%d of %d sites joined; missing: %s", len(self.terms), len(expected), missing)
            if time.monotonic() > deadline:
                raise RunError(f"only {len(self.terms)} sites joined, fewer than the quorum of {quorum}: no {missing}")
            time.sleep(self.post.patience.pace)

    def join(self, sites: Collection[str]) -> Collection[str]:
        """Ask some sites to join, and tell them how inputs are scaled where that is known; those who did."""

        def judge(_: str, opened: Opened) -> Terms | _Declined:
            if "failed" in messages.unpack(opened.body)[0]:
                reply = Reply.read(opened.body)
                return _Declined(reply.failed, reply.inputs)
            terms = Terms.read(opened.body)
            self._check(terms)
            return terms

        body = self.offer.body()
        found = self.post.ask(Question(messages.JOIN, 0, "", dict.fromkeys(sites, body), b"", judge))
        self.unheard = {site for site, answer in found.items() if isinstance(answer, NoAnswer) and answer.why == "late"}
        self.said |= {site: answer for site, answer in found.items() if isinstance(answer, Terms)}
        common = self._common_inputs()
        told = {}
        # Whoever came first may be the one that is odd: who is, is decided anew until the run begins.
        for site, answer in sorted({**self.said, **found}.items()):
            if isinstance(answer, Terms) and answer.inputs == common:
                if site in found or site not in self.terms:
                    self.post.log.info("site '%s' joined", site)
                self.terms[site] = answer
                self.refused.pop(site, None)
                continue
            if isinstance(answer, Terms):
                self.terms.pop(site, None)
            reason = _reason(answer, common)
            if self.refused.get(site) != reason:
                self.refused[site] = reason
                self.post.log.warning("site '%s' does not join: %s", site, reason)
                if not isinstance(answer, NoAnswer) or answer.why == "refused":
                    told[site] = messages.pack({"reason": reason})
        if told:
            self.post.ask(Question(messages.TURNED_AWAY, 0, "", told, b"", lambda _, opened: _done(opened)))
        joined = [site for site in sites if site in self.terms]
        return self.begin(joined) if self.scaling is not None else joined

    def begin(self, sites: Collection[str]) -> Collection[str]:
        """Tell sites how inputs are scaled; those who are ready."""
        if self.scaling is None:
            raise RunError("how inputs are scaled is not known yet")
        body = messages.pack(self.scaling.as_json())
        question = Question(messages.BEGIN, 0, "", dict.fromkeys(sites, body), b"", lambda _, opened: _done(opened))
        found = self.post.ask(question)
        for site, answer in sorted(found.items()):
            if isinstance(answer, (NoAnswer, Failed)):
                self.refused[site] = answer.reason
                self.post.log.warning("site '%s' is not ready: %s", site, answer.reason)
        return [site for site, answer in found.items() if not isinstance(answer, (NoAnswer, Failed))]

    def measure(self, options: DataOptions) -> InputScaling:
        """How the inputs of all sites are scaled: by constants of the configuration, or by sums over all sites."""
        fills, measured = any(each.fills for each in self.terms.values()), measured_at_sites(options)
        if options.normalise == "fixed":
            return InputScaling("fixed", given_constants(options, self.offer.shape[0], "the sites"))
        if not measured and not fills:
            return InputScaling("none")
        known = KnownSites(self.offer, self.terms, task_of(self.offer), self.most_rows)
        job = measuring_job(known, len(self.offer.classes))
        executor = SitesExecutor(
            job,
            self.post,
            self.offer.sites,
            stage=messages.SCALING,
            secure=self.offer.secure,
            secure_threshold=self.secure_threshold,
            strangers=set(self.offer.sites) - self.terms.keys(),
        )
        seen: list[RoundView] = []
        server = run_rounds(job, executor, [_Keep(seen)], rounds=1, cohort=len(self.offer.sites))
        for client, reason in dict.fromkeys((failed.client, failed.reason) for failed in seen[0].record.failed):
            self.post.log.warning("site '%s' was not measured: %s", self.offer.sites[client], reason)
        found, exchange = Scaling.from_moments(server["mean"], server["std"], fills), seen[0].record.phases
        if options.normalise == "none":
            return InputScaling("none", found.only_filling(), exchange=exchange)
        return InputScaling("federated", found, exchange=exchange)

    def settle(self) -> None:
        """The run begins: from now on inputs are made from what those say who have joined."""
        self.common = self._common_inputs()
        self.said = dict(self.terms)

    def inputs(self) -> RawInputs | None:
        """What an input is made from, as the sites say alike."""
        return None if self.common is None else RawInputs.from_json(self.common)

    def _common_inputs(self) -> Mapping[str, Any] | None:
        """What inputs are made from: as settled, or as most say; where as many say something else, as before."""
        if self.common is not None:
            return self.common
        first = [*self.terms, *sorted(self.said.keys() - self.terms.keys())]
        said = [self.said[site].inputs for site in first if site in self.said]
        return max(said, key=said.count, default=None)

    def _check(self, terms: Terms) -> None:
        if terms.version != __version__:
            raise BadMessage(f"it has fewfed {terms.version:.20}: expected {__version__}, as the coordinator has")
        if terms.weights != self.weights:
            raise BadMessage("its network has other first weights: expected the same versions of fewfed and torch")
        if terms.rows is not None and not 0 < terms.rows <= self.most_rows:
            raise BadMessage(f"it has {terms.rows} rows: expected from 1 to {self.most_rows} (most_rows)")
        if max(terms.test_rows, terms.validation_rows) > self.most_rows:
            raise BadMessage(f"it tests on more than {self.most_rows} rows (most_rows)")
        try:
            if terms.inputs is not None:
                RawInputs.from_json(terms.inputs)
        except DataError as error:
            raise BadMessage(str(error)) from error


def measured_at_sites(options: DataOptions) -> bool:
    """Whether sites measure their inputs whatever these are; `ConfigError` where that takes rows of several at once."""
    if options.normalise not in ("auto", "federated", "fixed", "none"):
        raise ConfigError(
            f"normalise = {options.normalise} needs rows of all sites in one place: expected federated, fixed or none",
            key="normalise",
        )
    return options.normalise in ("auto", "federated")


@dataclass(frozen=True)
class _Keep:
    seen: list[RoundView]

    def after_round(self, view: RoundView) -> None:
        self.seen.append(view)


@dataclass(frozen=True)
class _Declined:
    """A site that does not want to join."""

    reason: str
    inputs: Mapping[str, Any] | None
    """What its inputs are made from, where it says so."""


def _reason(answer: Terms | _Declined | NoAnswer, common: Mapping[str, Any] | None) -> str:
    """Why a site does not join. Where its inputs differ from the others' it is said in what."""
    unlike = ""
    if not isinstance(answer, NoAnswer) and answer.inputs is not None and common is not None:
        with contextlib.suppress(DataError):
            unlike = messages.shown(RawInputs.from_json(answer.inputs).unlike(RawInputs.from_json(common)), 800)
    if isinstance(answer, Terms):
        return unlike or _OTHER_INPUTS
    return f"{answer.reason}; {unlike}" if unlike else answer.reason


def _done(opened: Opened) -> Mapping[str, Any] | Failed:
    reply = Reply.read(opened.body)
    return Failed(0, messages.BEGIN, reply.failed) if reply.failed else {}
