"""A phase whose uploads are summed under masks: the coordinator carries messages between sites and learns the sum.

Sites first take their turns and say that they are ready. Then come the steps of `fewfed.deploy.secure.server`, one
question each. Whoever is combined with others afterwards is a stand-in: a packet that says the sum's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fewfed import tree
from fewfed.deploy import messages
from fewfed.deploy.coordinator.post import NoAnswer, Post, Question
from fewfed.deploy.masking import is_summed, limits_of, rest_of
from fewfed.deploy.messages import BadMessage, Reply, Request, Verdict
from fewfed.deploy.secure.layout import Layout, NoSum, Sums
from fewfed.deploy.secure.server import SecureServer
from fewfed.deploy.secure.session import LEAST_SITES, Session, majority
from fewfed.deploy.secure.stand_ins import stand_ins
from fewfed.deploy.security.envelope import Opened, Refused
from fewfed.engine.executor import Briefing
from fewfed.engine.outcomes import Failed
from fewfed.engine.packet import BadPacket, Packet, decode
from fewfed.errors import ConfigError
from fewfed.phase import Combine, Phase

Found = dict[str, Packet | Failed | NoAnswer]


def refuse_seen(secure: str, phase: Phase) -> None:
    """Raise before the run begins where a phase uploads what no sum can hide."""
    if not is_summed(secure, phase):
        return
    for name, upload in phase.uploads.items():
        kept = upload.combine is Combine.KEEP
        if kept or (upload.combine.seen_raw and secure == "refuse"):
            instead = "use another method" if kept else 'use another method, or say secure_rest = "clear"'
            raise ConfigError(
                f"secure: upload '{name}' of phase '{phase.name}' cannot be hidden in a sum, since the server reads "
                f"single {'values' if kept else 'rows'}: {instead}",
                key="secure",
            )


@dataclass
class MaskedPhase:
    """One sum. It holds one vector, however many sites there are."""

    post: Post
    briefing: Briefing
    stage: str
    secure: str
    threshold: int = 0
    """Sites that must answer to the end, where that is to be more than a majority."""
    _refused: dict[str, str] = field(default_factory=dict)

    def packets(self, numbers: Mapping[str, int], verdicts: Callable[[str], tuple[Verdict, ...]]) -> Found:
        """What stands for each of the sites that are ready: a packet of the sum, or why there is none."""
        phase = self.briefing.phase.name
        try:
            server, layout = self._begun(list(numbers))
            while not server.is_done:
                self._step(server, verdicts)
            for site, dealers in server.complaints.items():
                self.post.log.warning("'%s': site '%s' could not open the box of %s", phase, site, ", ".join(dealers))
            made = stand_ins(
                server.sums,
                layout,
                self.briefing.clock.round,
                phase,
                numbers,
                lambda packet: self.briefing.schema.check(packet, packet.sender),
                self._clear(server, server.sums),
                sorted(self.briefing.schema.empty),
            )
        except NoSum as error:
            return self._without_sum(numbers, error)
        found: Found = {}
        by_number = {packet.sender: packet for packet in made.packets}
        for site, number in numbers.items():
            refused = self._refused.get(site) or made.refused.get(site)
            if refused:
                self.post.log.warning("site '%s', '%s': refused: %s", site, phase, refused)
                found[site] = NoAnswer("refused", f"its packet was refused: {refused}", "packet")
            elif number in by_number:
                found[site] = by_number[number]
            else:
                left = server.left_out.get(site, "?")
                found[site] = Failed(number, phase, f"it dropped out of the sum at step '{left}'", "worker")
        return found

    def _without_sum(self, numbers: Mapping[str, int], error: NoSum) -> Found:
        """What becomes of the sites: nobody's answer counts, and whoever is known to have spoiled it is refused.

        The round is left out. It could not always be made up for: sites that have revealed shares for one group do so
        for no other.
        """
        phase, reason = self.briefing.phase.name, f"there is no sum: {error}"
        self.post.log.warning("'%s': %s", phase, reason)
        return {
            site: NoAnswer("refused", f"its shares were refused: {error}", "secure")
            if site in error.blamed
            else Failed(number, phase, reason, "sum")
            for site, number in numbers.items()
        }

    def _begun(self, sites: list[str]) -> tuple[SecureServer, Layout]:
        schema, phase = self.briefing.schema, self.briefing.phase
        if schema.leaves is None:
            raise ConfigError(f"secure: what phase '{phase.name}' uploads is not known beforehand, so it has no sum")
        if len(sites) < LEAST_SITES:
            raise NoSum(f"{len(sites)} sites are ready, and fewer than {LEAST_SITES} would learn each other's values")
        threshold = max(self.threshold, majority(len(sites)))
        if len(sites) < threshold:
            raise NoSum(f"{len(sites)} sites are ready, and {threshold} must answer to the end (secure_threshold)")
        outline = {path: (leaf.dtype, leaf.shape) for path, leaf in schema.leaves.items()}
        layout = Layout.of(phase.uploads, outline, len(sites), limits_of(self.stage), rest_of(self.secure))
        clock, post = self.briefing.clock, self.post
        session = Session.new(post.run, clock.round, phase.name, post.attempt, sites, layout.digest, threshold)
        return SecureServer(session, layout, post.keys), layout

    def _step(self, server: SecureServer, verdicts: Callable[[str], tuple[Verdict, ...]]) -> None:
        """Ask every site that is left for the next step, and close it."""
        step = server.step.name.lower()
        bodies = {
            site: Request(verdicts(site), self.stage, step=step, content=content).body()
            for site, content in server.requests().items()
        }

        def judge(site: str, opened: Opened) -> bool | Failed:
            reply = Reply.read(opened.body)
            if reply.failed:
                self.post.log.warning("site '%s' leaves the sum at step '%s': %s", site, step, reply.failed)
                return Failed(0, step, reply.failed)
            try:
                server.take(site, reply.content)
            except Refused as refused:
                raise BadMessage(str(refused)) from refused
            return True

        clock, phase = self.briefing.clock, self.briefing.phase.name
        found = self.post.ask(Question(messages.SUM, clock.round, phase, bodies, b"", judge))
        for site, answer in found.items():
            if isinstance(answer, NoAnswer) and answer.why == "refused":
                self._refused[site] = answer.reason
        server.close_step()

    def _clear(self, server: SecureServer, sums: Sums) -> dict[str, dict[str, Tensor]]:
        """What sites sent as it is, by path."""
        found: dict[str, dict[str, Tensor]] = {}
        for site in sums.sites:
            content = server.extras.get(site, b"")
            if not content:
                continue
            try:
                found[site] = dict(tree.leaves(decode(content).arrays))
            except BadPacket as error:
                self._refused[site] = messages.shown(str(error))
        return found
