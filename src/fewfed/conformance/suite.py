"""Every promise of a method, and looking at one after the other: what `fewfed check` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewfed.conformance import agreement, conduct, origins, quadratics
from fewfed.conformance.property import Broken, Property, Verdict
from fewfed.conformance.reference import Reference, Subject
from fewfed.engine import asking
from fewfed.engine.threads import one_thread
from fewfed.errors import FewfedError, told

OF_A_RUN = (
    Property("it says what it is", conduct.says_what_it_is),
    Property("nobody fails on ordinary clients", conduct.nobody_fails),
    Property("what a client is given is not changed", conduct.leaves_inputs_alone),
    Property("packets survive being written and read", conduct.packets_survive),
    Property("what is uploaded is known before anybody has sent it", conduct.shapes_are_known),
    Property("it is known which rows are behind each row that is sent", origins.are_true),
    Property("clients take FedAvg's number of steps", conduct.takes_fedavgs_steps),
    Property("clients with one sample or one class finish or are reported", conduct.odd_clients_finish_or_are_reported),
    Property("the order in which clients were drawn does not matter", agreement.order_does_not_matter),
    Property("rows of clients that do not take part do not matter", agreement.absent_rows_do_not_matter),
    Property("server and states survive the disk", agreement.survives_the_disk),
    Property("an interrupted run continues as if nothing had happened", agreement.resumes),
    Property("worker processes compute the same bits", agreement.workers_agree),
)
"""Promises that are looked at in a run of the method, or beside one."""

CAREFUL = Property("no function changes what a client is given", conduct.no_function_changes_inputs)
LEARNS = Property("the model becomes better", conduct.learns)
WEIGHTS = Property("clients weigh what the training says", conduct.weighs_as_set)
NEUTRAL = Property("its neutral setting is FedAvg", conduct.neutral_is_fedavg)
OPTIMUM = Property("it aims at the common optimum", quadratics.aims_at_the_optimum)
DRIFT = Property("it corrects drift", quadratics.corrects_drift_as_it_says)
RECORDED = Property("steps recorded for a GPU compute the same, in float64", agreement.recorded_steps_agree)
STACKED = Property("clients side by side compute the same, in float64", agreement.stacked_steps_agree)

PROPERTIES = (*OF_A_RUN, CAREFUL, LEARNS, WEIGHTS, NEUTRAL, OPTIMUM, DRIFT, RECORDED, STACKED)


def examine(spec: str, values: Mapping[str, Any] | None = None) -> Iterator[Verdict]:
    """Look at every promise of a method, one after the other. A `ConfigError` where it cannot be examined at all."""
    with one_thread():
        asking.check_fit(Subject.of(spec, values).job)
        try:
            reference = Reference.of(spec, values)
        except Exception as error:
            yield Verdict("it runs", "failed", _why(error))
            return
        yield Verdict("it runs", "passed")
        for each in PROPERTIES:
            yield verdict(each, reference)


def verdict(promise: Property, reference: Reference) -> Verdict:
    """Whether a method keeps one promise."""
    try:
        reason = promise.holds(reference)
    except Exception as error:
        return Verdict(promise.name, "failed", _why(error))
    return Verdict(promise.name, "does not apply" if reason else "passed", reason)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, (Broken, FewfedError)) else told(error)
