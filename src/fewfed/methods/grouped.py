"""Averages of rows instead of rows."""

from dataclasses import dataclass
from types import MappingProxyType

from fewfed.methods.parts.groups import Groups


@dataclass(frozen=True)
class Grouped(Groups):
    """What is sent is the average of k rows of one class of the client; no row is in two averages.

    The features, or whatever the inner method sends of single rows, are averaged, not their inputs. Of each class as
    many averages leave as the inner method would send rows of it, but never more than its rows make whole groups: a
    class with fewer than k rows at a client is left out there. Which rows are together is fixed for a client, as far as
    its rows stay the same; with `fresh` groups are drawn anew each round, and who subtracts averages of different
    groups comes nearer to single rows. Labels that are shares are averaged, others are the group's class.
    """

    name = "grouped"
    paper = "Domingo-Ferrer & Mateo-Sanz, Practical Data-Oriented Microaggregation for Statistical Disclosure Control, \
IEEE TKDE 2002"
    neutral = MappingProxyType({"k": 1})
    keeps_bounds = True
