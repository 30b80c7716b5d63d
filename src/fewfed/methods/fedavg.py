"""FedAvg."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from fewfed.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al., AISTATS 2017: local training, then the mean of the whole model state, weighted by rows."""

    name = "fedavg"
    family = "average"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    neutral: ClassVar[Mapping[str, Any] | None] = MappingProxyType({})
