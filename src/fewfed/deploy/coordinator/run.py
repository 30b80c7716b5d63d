"""A run between real sites, from the first letter to the finished run folder, and on from where it was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.deploy.coordinator.executor import SitesExecutor
from fewfed.deploy.coordinator.homes import RemoteHomes
from fewfed.deploy.coordinator.identity import Identity
from fewfed.deploy.coordinator.known_sites import KnownSites
from fewfed.deploy.coordinator.masked import refuse_seen
from fewfed.deploy.coordinator.opening import Opening, measured_at_sites
from fewfed.deploy.coordinator.post import Post
from fewfed.deploy.coordinator.scoring import ScoreAtSites, final_scores
from fewfed.deploy.coordinator.settings import ServeConfig
from fewfed.deploy.coordinator.status import StatusFile
from fewfed.deploy.coordinator.withdrawals import Withdrawals
from fewfed.deploy.messages import MOST_HEAD, Offer
from fewfed.deploy.model import network_of, task_of
from fewfed.deploy.secure.session import LEAST_SITES, MOST_SITES
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.security.strikes import StrikeBook
from fewfed.deploy.status import FINISHED, read_status
from fewfed.deploy.transport import Transport
from fewfed.engine import asking
from fewfed.engine.client_store import ClientStore
from fewfed.engine.holdings import Holdings
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, run_rounds
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.provenance import Provenance
from fewfed.errors import ConfigError, RunError
from fewfed.metric import metric_of
from fewfed.phase import Clock, Cohort
from fewfed.plan import Plan
from fewfed.runs.blueprint import Blueprint, NetworkRecipe, changes_inputs
from fewfed.runs.execute import AddExchange, KeepRounds
from fewfed.runs.folder import CONFIG, FEDERATION, RunFolder, held, refuse_existing
from fewfed.runs.identity import refuse_other_run, weights_of
from fewfed.runs.results import Result, summarise
from fewfed.runs.robustness import defence_of
from fewfed.runs.scaling import InputScaling
from fewfed.runs.user_code import code_of
from fewfed.tree import Tree

_END_SECONDS = 30.0
"""How long sites may take to put the model away."""


@dataclass(frozen=True)
class Coordinator:
    """One federation: what is run, who may take part, and how they are reached."""

    config: ServeConfig
    key: SigningKey
    sites: Mapping[str, PublicKey]
    """The signing keys of the sites on the roster."""
    out: Path

    @property
    def removed(self) -> tuple[str, ...]:
        """Sites of the run that are not on the roster any more."""
        return tuple(site for site in self.config.offer().sites if site not in self.sites)

    def run(
        self, transport: Transport, *, resume: bool = False, observers: Sequence[Observer] = (), done: bool = True
    ) -> Result:
        """Run, or go on, to the end. `done`: tell the sites that it is over."""
        self.check(resume=resume)
        with held(self.out):
            identity = self._identity(resume)
            offer = self.config.offer()
            patience = self.config.federation.patience(len(offer.sites))
            post = Post(
                transport,
                identity.run,
                self.key,
                {site: self.sites[site] for site in offer.sites if site in self.sites},
                identity.attempt,
                patience,
                most_bytes=self.config.federation.most_bytes,
            )
            status = StatusFile(OwnFolder(self.out), post, offer.sites)
            if resume:
                status.go_on()
            running = _Running(self, offer, post, status)
            try:
                result = running.to_end(observers)
                if done:
                    running.tell_end()
            except BaseException:
                with contextlib.suppress(Exception):  # Whatever it was, it may also concern the disk.
                    status.finish("stopped")
                raise
            status.finish(FINISHED)
            return result

    def check(self, *, resume: bool = False) -> None:
        """Raise where the configuration cannot be run between sites, before anything is written or anybody asked.

        `resume`: sites may have been taken off the roster since the run began, as long as there is a quorum without.
        """
        offer, experiment = self.config.offer(), self.config.resolved.experiment
        quorum = self.config.federation.patience(len(offer.sites)).quorum
        if self.removed and not resume:
            raise ConfigError(f"site '{self.removed[0]}' is not on the roster: expected one of {', '.join(self.sites)}")
        if len(offer.sites) - len(self.removed) < quorum:
            raise ConfigError(
                f"without {', '.join(self.removed)}, which the roster lacks, there are fewer sites than the quorum of "
                f"{quorum}: expected a smaller quorum in [federation]",
                key="quorum",
            )
        if len(offer.body()) > MOST_HEAD:
            raise ConfigError(f"sites and classes take {len(offer.body())} bytes to name: expected at most {MOST_HEAD}")
        job = self.job(KnownSites(offer, {}, task_of(offer)))
        asking.check_fit(job)
        if metric_of(experiment.metric).needs_all_rows or experiment.metric not in job.task.score_type.measures:
            raise ConfigError(
                f"metric '{experiment.metric}' cannot be had between sites: expected one that is a sum over rows, "
                "such as accuracy",
                key="metric",
            )
        measured_at_sites(self.config.resolved.options)
        for number in sorted({0, experiment.rounds - 1}):
            for phase in asking.phases(job, Clock(number, experiment.rounds, job.training.epochs)):
                if phase.cohort is Cohort.UNION:
                    raise ConfigError(f"phase '{phase.name}' takes all rows to one place, which real sites never do")
                refuse_seen(offer.secure, phase)
        if offer.secure:
            self._check_secure(job, quorum)
        experiment.cohort_size(len(offer.sites))

    def _check_secure(self, job: Job, quorum: int) -> None:
        """Raise where sums under masks cannot be had."""
        sites = len(job.federation)
        cohort = self.config.resolved.experiment.cohort_size(sites)
        if job.defence is not None:
            raise ConfigError(
                "sums under masks hide what each site sends, and robust combination compares just that: expected "
                "secure = true or robust, norm_bound and row_filter, not both",
                key="secure",
            )
        if quorum < LEAST_SITES:
            raise ConfigError(f"secure sums need a quorum of at least {LEAST_SITES} sites", key="quorum")
        if not (cohort >= LEAST_SITES and sites <= MOST_SITES):
            raise ConfigError(
                f"secure sums of {cohort} of {sites} sites: expected a cohort of at least {LEAST_SITES}, of at most "
                f"{MOST_SITES}",
                key="cohort",
            )
        threshold = self.config.federation.secure_threshold
        if threshold > min(cohort, quorum):
            raise ConfigError(
                f"secure_threshold = {threshold}, with a cohort of {cohort} and a quorum of {quorum}: expected at most "
                "either, since a sum of fewer sites is never unmasked",
                key="secure_threshold",
            )

    def job(self, federation: KnownSites) -> Job:
        """The run as the coordinator knows it."""
        resolved = self.config.resolved
        training, offer = resolved.training, self.config.offer()
        # Sites are told the seed: noise of the server that came from it could be computed, and taken off again.
        plan = Plan(
            resolved.experiment.seed, training.batch, training.batch_rule, training.sampling, protection="system"
        )
        net = network_of(resolved.experiment, offer)
        job = Job(resolved.chosen.method, net, task_of(offer), federation, training, plan)
        cohort = resolved.experiment.cohort_size(len(offer.sites))
        return dataclasses.replace(job, defence=defence_of(resolved.experiment, job, cohort))

    def inputs(self, job: Job) -> dict[str, Any]:
        """What identifies the run beside its settings."""
        return {"code": code_of(self.config.resolved.spec), "weights": weights_of(job.net)}

    def refuse_folder(self, resume: bool) -> None:
        """Raise where the folder holds no run to go on with, another one, or one that a new run would overwrite."""
        begun = (self.out / FEDERATION).exists()
        if resume and not begun:
            raise RunError(f"'{self.out}' holds no run of a federation: expected one that 'fewfed serve' began")
        if not resume:
            if begun:
                raise RunError(f"'{self.out}' holds a run already: go on with --resume, or choose another --out")
            refuse_existing(self.out)
            return
        Identity.read(self.out).refuse_other(self.config.agreed, self.out)
        if (self.out / CONFIG).exists():
            offer = self.config.offer()
            job = self.job(KnownSites(offer, {}, task_of(offer)))
            refuse_other_run(self.out, self.config.resolved, self.inputs(job))

    def finished(self) -> Result | None:
        """The result of the run in the folder, where it is finished and all sites that were there have been told."""
        found = RunFolder(self.out).result() if (self.out / CONFIG).exists() else None
        try:
            told = found is not None and read_status(self.out)["state"] == FINISHED
        except RunError:  # It is lost or damaged, which is no reason not to go on: sites are told once more.
            told = False
        return None if found is None or not told else Result.from_json(found)

    def _identity(self, resume: bool) -> Identity:
        """Of a new run, or of the one in the folder, taken up once more."""
        self.refuse_folder(resume)
        identity = Identity.new(self.config.offer().sites, self.config.agreed)
        if resume:
            before = Identity.read(self.out)
            identity = dataclasses.replace(before, attempt=before.attempt + 1)
        identity.write(self.out)
        return identity


@dataclass
class _Running:
    """A run on its way."""

    coordinator: Coordinator
    offer: Offer
    post: Post
    status: StatusFile
    final: tuple[SitesExecutor, Tree] | None = None
    """The executor, and the server's tree after the last round."""

    def to_end(self, observers: Sequence[Observer]) -> Result:
        coordinator, experiment = self.coordinator, self.coordinator.config.resolved.experiment
        terms: dict[str, Any] = {}
        settings = coordinator.config.federation
        job = coordinator.job(KnownSites(self.offer, terms, task_of(self.offer), settings.most_rows))
        removed = coordinator.removed
        opening = Opening(
            self.post,
            self.offer,
            weights_of(job.net),
            terms,
            settings.most_rows,
            removed=removed,
            secure_threshold=settings.secure_threshold,
        )
        self.status.opening, opening.changed = opening, self.status.write
        folder = self._folder(job, opening)
        homes = RemoteHomes(StrikeBook(settings.rule), ClientStore(folder.clients))
        last, before, _ = folder.restore(homes.check, experiment.rounds)
        homes.restore(last.states, before.states)
        job = dataclasses.replace(job, gates=(Withdrawals(homes, self.offer.sites, removed),))
        executor = SitesExecutor(
            job,
            self.post,
            self.offer.sites,
            homes,
            secure=self.offer.secure,
            secure_threshold=settings.secure_threshold,
            most_bytes=settings.most_bytes,
            strangers=set(self.offer.sites) - set(opening.begin(list(terms))),
            welcome=opening.join,
        )
        score = ScoreAtSites(executor, experiment.evaluate_every)
        self.status.follow(executor, score)
        record = KeepRounds(folder, every=0.0)
        assert opening.scaling is not None
        try:
            final = run_rounds(
                job,
                executor,
                [AddExchange(opening.scaling.exchange), score, *observers, record, self.status],
                rounds=experiment.rounds,
                cohort=experiment.cohort_size(len(self.offer.sites)),
                holdings=Holdings.from_json(last.held),
                server=last.server,
                start=last.done,
                provenance=Provenance.from_json(last.rows) if last.rows else None,
            )
            scores = final_scores(executor, final, self.offer.classes)
            self.final = (executor, final)
        except BaseException:
            with contextlib.suppress(Exception):  # Every finished round has a checkpoint already.
                record.keep_finished_rounds()
            raise
        return self._finished(folder, job, final, scores)

    def tell_end(self) -> None:
        """Give the model to everybody who is there; whoever is not has lost nothing else."""
        assert self.final is not None
        patience = self.post.patience
        self.post.patience = dataclasses.replace(patience, deadline=min(patience.deadline, _END_SECONDS))
        try:
            self.final[0].hand_over(self.final[1])
        finally:
            self.post.patience = patience

    def _folder(self, job: Job, opening: Opening) -> RunFolder:
        """The run folder: made once sites have joined and inputs are measured, or as it was left."""
        coordinator, path = self.coordinator, self.coordinator.out
        resolved, settings = coordinator.config.resolved, coordinator.config.federation
        if (path / CONFIG).exists():
            folder, _ = RunFolder.open(path)
            blueprint = Blueprint.from_json(folder.blueprint())
            opening.scaling = blueprint.scaling
            opening.common = None if blueprint.inputs is None else blueprint.inputs.as_json()
            opening.wait(self.post.patience.quorum, settings.wait)
            return folder
        opening.wait(self.post.patience.quorum, settings.wait)
        opening.settle()
        opening.scaling = opening.measure(resolved.options)
        label = resolved.chosen.method.label
        config = {**resolved.as_json(), "label": label, "inputs": coordinator.inputs(job)}
        blueprint = self._blueprint(job, opening, opening.scaling)
        sizes = [job.federation.size(client) for client in range(len(self.offer.sites))]
        manifest = {"split": "site", "clients": len(self.offer.sites), "sites": list(self.offer.sites), "sizes": sizes}
        return RunFolder.create(path, config, manifest, blueprint.as_json())

    def _blueprint(self, job: Job, opening: Opening, scaling: InputScaling) -> Blueprint:
        offer = self.offer
        return Blueprint(
            task="segmentation" if offer.task == "segmentation" else "classification",
            outputs=len(offer.classes),
            class_names=offer.classes,
            shape=tuple(offer.shape),
            inputs=opening.inputs(),
            scaling=scaling,
            network=NetworkRecipe("built-in", job.net.name),
            clients=len(offer.sites),
            sites=offer.sites,
            personal=bool(job.method.personal_model),
            presents=changes_inputs(job.method),
        )

    def _finished(self, folder: RunFolder, job: Job, final: Tree, scores: Mapping[str, Any]) -> Result:
        resolved = self.coordinator.config.resolved
        experiment, records = resolved.experiment, folder.metrics()
        unscored = scores["notes"][0]
        result = Result(
            method=job.method.label,
            preset=resolved.chosen.preset,
            data=experiment.data,
            split=experiment.split,
            clients=len(self.offer.sites),
            rounds=experiment.rounds,
            seed=experiment.seed,
            folder=str(folder.path),
            note=f"between real sites; {'scored at the sites, on their own rows' if scores['metrics'] else unscored}",
            metric=experiment.metric,
            **summarise(records, experiment.metric),
        )
        personal = job.method.personal_model
        folder.finish(final if personal else asking.predictor(job, final, {}), scores, result.as_json())
        return result
