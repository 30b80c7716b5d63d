"""The attacks there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fewfed.adversaries.attack import Attack
from fewfed.adversaries.boost import Boost
from fewfed.adversaries.label_flip import LabelFlip
from fewfed.adversaries.noise import Noise
from fewfed.adversaries.shared_rows import RowFeatures, RowLabels
from fewfed.adversaries.sign_flip import SignFlip

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType(
    {cls.name: cls for cls in (LabelFlip, SignFlip, Boost, Noise, RowLabels, RowFeatures)}
)
