"""Where packets arrive: each is checked, then accepted or refused. No packet of a client can end a run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fewfed.engine.combine import Combiner
from fewfed.engine.executor import Briefing
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.outcomes import Done, Failed, Finished, Outcome, Partial
from fewfed.engine.packet import BadPacket, without_arrays
from fewfed.engine.schema import Schema, is_sound


class Reception:
    """Checks what the clients of one phase hand over, for executors whose clients are in this process."""

    def __init__(self, briefing: Briefing, homes: SimulatedHomes) -> None:
        self._briefing = briefing
        self._schema: Schema = briefing.schema
        self._homes = homes

    def take(self, client: int, found: Finished | Failed) -> Done | Failed:
        """The outcome of a client's turn; the state of a client whose packet is refused stays as it was."""
        if isinstance(found, Failed):
            return found
        self._note(client, found)
        try:
            self._schema.check(found.packet, client)
            self._check_state(found)
        except BadPacket as error:
            return self._refused(client, error)
        return self._accepted(client, found)

    def take_many(self, found: Sequence[tuple[int, Finished]], clients: int) -> list[Outcome]:
        """The outcomes of several turns, combined at once; faster than one by one on a GPU.

        A sum is sound only if all its terms are, so single arrays are checked only where a sum is not sound. Where the
        briefing asks for packets one by one, they are not combined.
        """
        if self._briefing.apart:
            return [self.take(client, finished) for client, finished in found]
        outcomes: list[Outcome] = []
        well_formed: list[tuple[int, Finished]] = []
        self._learn_from(found)
        for client, finished in found:
            self._note(client, finished)
            try:
                self._schema.check_head(finished.packet, client)
                self._schema.check_ranges(finished.packet)
                self._check_state(finished)
            except BadPacket as error:
                outcomes.append(self._refused(client, error))
            else:
                well_formed.append((client, finished))
        combiner = self._combined(well_formed, clients)
        if not is_sound(combiner.numbers()):
            checked = [(client, self.take(client, finished)) for client, finished in well_formed]
            outcomes += [outcome for _, outcome in checked if isinstance(outcome, Failed)]
            good = {client for client, outcome in checked if isinstance(outcome, Done)}
            well_formed = [(client, finished) for client, finished in well_formed if client in good]
            combiner = self._combined(well_formed, clients)
        if well_formed:
            accepted = [self._accepted(client, finished).packet for client, finished in well_formed]
            shown = tuple(packet for packet in accepted if packet.sender in self._briefing.shown)
            outcomes.append(Partial(combiner, tuple(without_arrays(packet) for packet in accepted), shown))
        return outcomes

    def _learn_from(self, found: Sequence[tuple[int, Finished]]) -> None:
        """Where nobody knows the shapes yet, the first packet that is good sets them for the others, as one by one."""
        for client, finished in found:
            if self._schema.leaves is not None:
                return
            with contextlib.suppress(BadPacket):
                self._schema.check(finished.packet, client)
                self._check_state(finished)
                self._schema = self._schema.learned(finished.packet)

    def _combined(self, found: Sequence[tuple[int, Finished]], clients: int) -> Combiner:
        combiner = Combiner(self._briefing.phase, clients)
        combiner.add_block([finished.packet for _, finished in found])
        return combiner

    def _accepted(self, client: int, found: Finished) -> Done:
        self._homes.keep(self._briefing.phase, client, found.state)
        if found.moments:
            self._homes.keep_moments(self._briefing.phase, client, found.moments)
        if self._schema.leaves is None:
            self._schema = self._schema.learned(found.packet)
        return Done(found.packet)

    def _note(self, client: int, found: Finished) -> None:
        """What has left a client has left it, whether it can be used or not."""
        if found.book:
            self._homes.keep_book(client, found.book)

    def _refused(self, client: int, error: BadPacket) -> Failed:
        return Failed(client, self._briefing.phase.name, f"its packet was refused: {error}", "packet")

    def _check_state(self, found: Finished) -> None:
        if found.state and not self._briefing.phase.keeps_state:
            raise BadPacket("it returned client state, but the phase does not declare keeps_state")
