"""Objects of the user's own, in place of what a configuration would look up by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import nn

from fewfed.data.examples import Dataset
from fewfed.network import OWN, Network
from fewfed.runs.experiment import Experiment


@dataclass(frozen=True)
class Own:
    """What a user handed over; None where the configuration says how it is found."""

    data: Dataset | None = None
    network: nn.Module | Network | None = None

    def described(self, experiment: Experiment) -> Experiment:
        """The experiment with the names of these objects in place of those it would have looked up."""
        if self.data is not None:
            experiment = dataclasses.replace(experiment, data=self.data.name)
        if self.network is not None:
            name = self.network.name if isinstance(self.network, Network) else OWN
            experiment = dataclasses.replace(experiment, network=name)
        return experiment


NOTHING = Own()
