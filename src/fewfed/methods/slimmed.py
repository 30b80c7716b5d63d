"""Only the stages that are needed on their way to clients that share."""

import dataclasses
from dataclasses import dataclass, field
from types import MappingProxyType

from fewfed.errors import ConfigError
from fewfed.method import Method, Setup
from fewfed.methods.flea import FLea
from fewfed.methods.parts.protection import sending, sends_features
from fewfed.phase import Phase
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper


@dataclass(frozen=True)
class Slimmed(Wrapper):
    """Clients that only compute features of their rows receive the stages up to these features, not the whole model.

    Around any method with a phase in which clients train nothing and send features: FLea's second one. What they send
    is the same bit for bit, since later stages have no part in it. Costs nothing; saves the bytes of the later stages,
    which are most of a model where they are wide. A client that takes part again at once has not received the later
    stages before, and receives them then.
    """

    name = "slimmed"
    family = "feature sharing"
    paper = "this project's own; as the client's part of a split network, Gupta & Raskar, Distributed Learning of Deep \
Neural Network over Multiple Agents, JNCA 2018"
    neutral = MappingProxyType({"slim": False})
    keeps_bounds = True

    inner: Method = field(default_factory=FLea)
    slim: bool = setting(True, "leave out the stages behind the features; false = send the whole model")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if not any(map(_only_sends, sending(self.inner))):
            raise ConfigError(
                f"method '{self.name}' sends fewer stages to clients that only compute features, and clients of "
                f"'{self.inner.label}' do not: expected a method with such a phase, as FLea's second one"
            )

    def own_init(self, setup: Setup) -> Tree:
        """By phase, the names that are sent there: a tree has no place for names but its own."""
        phases, model = filter(_only_sends, sending(self.inner)), setup.net.model()
        early = {phase.name: setup.net.keys_of(setup.net.stages[: phase.does.shares_at(setup)]) for phase in phases}
        return {
            phase: {
                part: {name: value.new_zeros(0) for name, value in leaves.items() if name in keys}
                for part, leaves in model.items()
            }
            for phase, keys in early.items()
        }

    def around(self, phase: Phase) -> Phase:
        slim = self.slim and _only_sends(phase)
        return dataclasses.replace(phase, does=Early(self, phase)) if slim else super().around(phase)


class Early(Around[Slimmed]):
    """A phase whose members receive the first stages of the model."""

    def broadcast(self, server: Tree) -> Tree:
        shared, needed = super().broadcast(server), server["own"][self.phase.name]
        model = {
            part: {name: value for name, value in leaves.items() if name in needed[part]}
            for part, leaves in shared["model"].items()
        }
        return {**shared, "model": model}


def _only_sends(phase: Phase) -> bool:
    """Whether features and their labels are all that clients make in a phase."""
    return sends_features(phase) and not phase.epochs and {*phase.uploads} <= {*phase.row_uploads, phase.label_upload}
