"""The recommendation is the simplest method that cannot be told apart from the best, and is said in plain words."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fewfed.metric import METRICS
from fewfed.privacy.sharing import Leaves, Share
from fewfed.report.advice import rich_table
from fewfed.report.advice_words import how, no_better_than_guessing, one_site, reasons
from fewfed.report.recommended import Evidence, choose

ACCURACY, LOSS = METRICS["accuracy"], METRICS["loss"]


def evidence(label: str, share: Share, values: list[float], up: float = 0.0, **changes: object) -> Evidence:
    scores = dict(enumerate(values))
    fields: dict[str, object] = {
        "spec": label, "label": label, "why": "", "leaves": Leaves(share, (), (), False), "is_reference": False,
        "is_alone": share is Share.NOTHING, "lr": 0.001, "rounds": 30, "validation": scores, "test": scores,
        "bytes_up": up, "bytes_down": up, "leak_r2": None, "leak_reidentified": None, "seconds": 1.0, "rises": False,
    }  # fmt: skip
    return Evidence(**{**fields, **changes})  # type: ignore[arg-type]


LOCAL, FEDAVG, FLEA = Share.NOTHING, Share.MODEL, Share.FEATURES


def chosen(methods: Mapping[str, tuple[Share, list[float]]], metric: str = "accuracy") -> str:
    found = [evidence(label, share, values) for label, (share, values) in methods.items()]
    return choose(found, METRICS[metric]).chosen.label


def test_what_is_clearly_better_is_recommended_whatever_it_sends() -> None:
    assert chosen({"local": (LOCAL, [0.5, 0.52, 0.51]), "fedavg": (FEDAVG, [0.6, 0.61, 0.63]),
                   "flea": (FLEA, [0.8, 0.82, 0.81])}) == "flea"  # fmt: skip


def test_what_sends_less_is_recommended_where_nobody_can_tell_a_difference() -> None:
    assert chosen({"local": (LOCAL, [0.5, 0.52, 0.51]), "fedavg": (FEDAVG, [0.8, 0.7, 0.9]),
                   "flea": (FLEA, [0.7, 0.9, 0.85])}) == "fedavg"  # fmt: skip
    assert chosen({"local": (LOCAL, [0.8, 0.7, 0.9]), "fedavg": (FEDAVG, [0.7, 0.9, 0.85])}) == "local"


def test_a_difference_below_a_point_is_not_worth_sending_more() -> None:
    assert chosen({"fedavg": (FEDAVG, [0.900, 0.910, 0.920]), "flea": (FLEA, [0.905, 0.915, 0.925])}) == "fedavg"
    assert chosen({"fedavg": (FEDAVG, [0.900, 0.910, 0.920]), "flea": (FLEA, [0.915, 0.925, 0.935])}) == "flea"


def test_where_lower_is_better_the_lowest_is() -> None:
    assert chosen({"fedavg": (FEDAVG, [1.0, 1.1, 1.05]), "flea": (FLEA, [0.5, 0.55, 0.56])}, "loss") == "flea"


def test_a_loss_that_is_a_little_lower_on_one_seed_is_no_reason_to_send_more() -> None:
    """Whatever its units: five percent of what the other has."""
    for times in (1.0, 100.0):
        found = {"fedavg": (FEDAVG, [1.00 * times])}
        assert chosen({**found, "flea": (FLEA, [0.97 * times])}, "loss") == "fedavg"
        assert chosen({**found, "flea": (FLEA, [0.90 * times])}, "loss") == "flea"


@pytest.mark.parametrize(
    ("values", "warned"),
    [([0.48, 0.6, 0.4], "is no better"), ([0.7, 0.5, 0.6], "is not beyond that for certain"), ([0.8, 0.81, 0.82], "")],
)
def test_what_is_no_better_than_guessing_is_not_to_be_relied_on(values: list[float], warned: str) -> None:
    found = evidence("fedavg", FEDAVG, values)
    told = " ".join(no_better_than_guessing(found, dict.fromkeys(range(3), 0.55), ACCURACY, own=False))
    assert ("always answering the commonest class comes to 55.0 % on the same rows" in told) == bool(warned)
    assert warned in told
    assert no_better_than_guessing(found, {}, ACCURACY, own=False) == []


def test_a_guess_is_compared_seed_by_seed_and_in_the_metrics_own_direction() -> None:
    """A guess is easy on the same seeds as a method: that varies with the rows is no doubt about the difference."""
    found = evidence("fedavg", FEDAVG, [0.9, 0.5, 0.7])
    assert no_better_than_guessing(found, {0: 0.8, 1: 0.4, 2: 0.61}, ACCURACY, own=True) == []
    lower = evidence("fedavg", FEDAVG, [0.6, 0.61, 0.62])
    assert no_better_than_guessing(lower, dict.fromkeys(range(3), 0.69), LOSS, own=False) == []
    assert "is no better" in no_better_than_guessing(lower, dict.fromkeys(range(3), 0.5), LOSS, own=False)[0]


def test_whom_the_advice_is_for_is_said_where_one_site_holds_most_rows() -> None:
    look: Any = SimpleNamespace(is_mostly_one_site=True, largest=72, rows=100, can_judge_own=True)
    assert "One site holds 72% of all rows: every site counts alike" in one_site(look, own=True)[0]
    assert "advice for that site before all others (--judge own" in one_site(look, own=False)[0]
    assert one_site(SimpleNamespace(is_mostly_one_site=False), own=True) == []  # type: ignore[arg-type]


def test_with_one_seed_what_sends_more_must_be_far_ahead() -> None:
    assert chosen({"fedavg": (FEDAVG, [0.80]), "flea": (FLEA, [0.84])}) == "fedavg"
    assert chosen({"fedavg": (FEDAVG, [0.80]), "flea": (FLEA, [0.86])}) == "flea"
    assert chosen({"fedavg": (FEDAVG, [0.801]), "flea": (FLEA, [0.80])}) == "fedavg"


def test_two_seeds_that_agree_on_much_are_believed() -> None:
    assert chosen({"local": (LOCAL, [0.1, 0.3]), "fedavg": (FEDAVG, [0.9, 0.8])}) == "fedavg"
    assert chosen({"local": (LOCAL, [0.80, 0.81]), "fedavg": (FEDAVG, [0.82, 0.85])}) == "local"


def test_who_is_far_ahead_on_most_seeds_is_believed_before_it_is_certain() -> None:
    """As on 148 patients of 18 institutions, where no interval of four seeds leaves zero out."""
    local, fedavg = (
        evidence("local", LOCAL, [0.50, 0.60, 0.62, 0.77]),
        evidence("fedavg", FEDAVG, [0.65, 0.70, 0.72, 0.69]),
    )
    assert choose([local, fedavg], ACCURACY).chosen.label == "fedavg"
    assert "would not do as well is likely, not certain" in words(local, fedavg)
    assert chosen({"local": (LOCAL, [0.2, 0.6, 0.9, 0.9]), "fedavg": (FEDAVG, [0.9, 0.9, 0.8, 0.8])}) == "local"


def test_a_reference_is_never_recommended_and_what_is_no_number_neither() -> None:
    found = [
        evidence("local", LOCAL, [0.5, 0.5]),
        evidence("fedavg", FEDAVG, [0.7, 0.71]),
        evidence("single", Share.INPUTS, [0.99, 0.99], is_reference=True),
        evidence("broken", FEDAVG, [float("nan"), 0.99]),
    ]
    assert choose(found, ACCURACY).chosen.label == "fedavg"


def test_of_two_that_send_the_same_the_one_with_fewer_bytes_is_recommended() -> None:
    found = [evidence("heavy", FEDAVG, [0.7, 0.8, 0.75], up=9e6), evidence("light", FEDAVG, [0.8, 0.7, 0.76], up=1e6)]
    assert choose(found, ACCURACY).chosen.label == "light"


def test_seeds_that_only_some_have_flatter_nobody() -> None:
    """Seed 2 is easy for everybody; the method that was stopped before it is the better one all the same."""
    found = [evidence("fedavg", FEDAVG, [0.5, 0.5, 0.9, 0.9]), evidence("flea", FLEA, [0.6, 0.6, 0.99])]
    stopped = evidence("flea", FLEA, [0.6, 0.6])
    assert choose(found, ACCURACY).best.label == choose([found[0], stopped], ACCURACY).best.label == "flea"


scores = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(list(Share)), scores), min_size=1, max_size=6))
def test_nothing_simpler_is_as_good_and_nothing_is_far_better(found: list[tuple[Share, list[float]]]) -> None:
    methods = [evidence(str(number), share, values, up=number) for number, (share, values) in enumerate(found)]
    choice = choose(methods, ACCURACY)
    assert choice.chosen.simplicity <= choice.best.simplicity
    assert set(choice.differences) == {each.spec for each in methods} - {choice.chosen.spec}
    beaten = choice.differences.get(choice.best.spec)
    assert beaten is None or beaten.verdict != "better" or beaten.gain <= 0.01


def words(*found: Evidence) -> str:
    return " ".join(reasons(choose(found, ACCURACY), found, ACCURACY))


def test_it_is_said_that_training_together_does_not_pay() -> None:
    ahead = words(evidence("local", LOCAL, [0.9, 0.91]), evidence("fedavg", FEDAVG, [0.5, 0.52]))
    assert "Recommended: local. Training together does not pay here: every site alone does best" in ahead
    alike = words(evidence("local", LOCAL, [0.8, 0.7, 0.9]), evidence("fedavg", FEDAVG, [0.85, 0.8, 0.85]))
    assert "Whether training together pays here cannot be told: nothing was far ahead" in alike
    assert "does not pay" not in alike
    level = words(evidence("local", LOCAL, [0.8, 0.7, 0.9]), evidence("fedavg", FEDAVG, [0.79, 0.71, 0.88]))
    assert "brings no more is likely, not certain" in level
    assert "does not pay" not in level
    alone = words(evidence("local", LOCAL, [0.9]), evidence("fedavg", FEDAVG, [0.85]))
    assert "likely, not certain" in alone, "one seed tells nothing"


def test_who_was_still_learning_is_said_of_everybody() -> None:
    """Who learns slowly is behind at first: that every site alone is ahead after ten rounds is not the end of it."""
    local = evidence("local", LOCAL, [0.9, 0.91, 0.9], rounds=10)
    fedavg = evidence("fedavg", FEDAVG, [0.5, 0.52, 0.51], rounds=10)
    single = evidence("single", LOCAL, [0.5, 0.5, 0.5], rounds=10, is_reference=True, rises=True)
    assert "still getting better" not in words(local, fedavg, single)
    rising = words(local, replace(fedavg, rises=True), single)
    assert "Of the others, still getting better at the end: fedavg (after 10 rounds)." in rising
    assert "single (after" not in rising


@pytest.mark.parametrize(("rounds", "told"), [(1, "1 round"), (2, "2 rounds"), (5, "5 rounds")])
def test_after_so_few_rounds_nobody_can_tell(rounds: int, told: str) -> None:
    """As on digits of two classes a site, where the plain average needs tens of rounds to be ahead."""
    for local, fedavg in (([0.2, 0.2], [0.1, 0.3]), ([0.2, 0.2, 0.2], [0.1, 0.1, 0.1]), ([0.2], [0.1])):
        text = words(evidence("local", LOCAL, local, rounds=rounds), evidence("fedavg", FEDAVG, fedavg, rounds=rounds))
        assert f"Whether training together pays here cannot be told after {told}: so far" in text
        assert f"It is no more than a first look: in {told} hardly anything is learned" in text
        assert "does not pay" not in text
        assert "likely" not in text
    enough = words(evidence("local", LOCAL, [0.2], rounds=3), evidence("fedavg", FEDAVG, [0.1], rounds=6))
    assert "hardly anything" not in enough


def test_who_was_ahead_and_why_it_is_not_recommended_is_said() -> None:
    text = words(evidence("local", LOCAL, [0.1, 0.1, 0.1]), evidence("fedavg", FEDAVG, [0.8, 0.7, 0.9]),
                 evidence("flea", FLEA, [0.9, 0.7, 0.9]))  # fmt: skip
    assert "flea came out ahead on the validation rows, but not by enough to send more for it" in text


def test_what_sends_as_much_is_not_said_to_send_more() -> None:
    text = words(evidence("fedavg", FEDAVG, [0.8, 0.7, 0.9]), evidence("fedlc", FEDAVG, [0.9, 0.7, 0.9], up=1.0))
    assert "fedlc came out ahead on the validation rows, but not by enough, and it sends no less" in text


def test_what_is_shared_is_never_called_private() -> None:
    text = words(evidence("fedavg", FEDAVG, [0.5, 0.5]), evidence("flea", FLEA, [0.9, 0.9], leak_r2=0.97,
                                                                  leak_reidentified=1.0))  # fmt: skip
    assert "R2 0.97" in text
    assert "re-identifies 100% of it" in text


@pytest.mark.parametrize("name", ["a<b>", 'x"y', "zeile\nzwei", "methode-ü"])
def test_strange_names_are_carried_along(name: str) -> None:
    assert name in words(evidence(name, FEDAVG, [0.9, 0.9]), evidence("local", LOCAL, [0.1, 0.1]))


@pytest.mark.parametrize(
    ("cohort", "said"), [(4, "7 rounds (local 3)."), (2, "7 rounds (local 3); for local all sites")]
)
def test_how_many_rounds_were_tried_is_always_said(cohort: int, said: str) -> None:
    """Advice from a single round is worth little, and nobody could see that it was one."""
    advice: Any = SimpleNamespace(
        evidence=[evidence("local", LOCAL, [0.5], rounds=3), evidence("fedavg", FEDAVG, [0.5], rounds=7)],
        baked=SimpleNamespace(is_searched=False, seconds=1.0, unfinished=()),
        asked=SimpleNamespace(minutes=1, validation=0.2),
        considered=SimpleNamespace(look=SimpleNamespace(cohort=cohort, sites=4)),
        seeds=(0,), metric=ACCURACY, not_tried=(),
    )  # fmt: skip
    assert any(line.startswith(said) for line in how(advice))
    advice.evidence = [evidence("fedavg", FEDAVG, [0.5], rounds=1)]
    assert "1 round." in how(advice)


@pytest.mark.parametrize("width", [80, 90, 120])
def test_no_letter_of_the_evidence_is_lost_in_a_usual_terminal(width: int) -> None:
    """The last column lost the last letter of each line, and names in brackets were taken for colours."""
    leaves = Leaves(Share.FEATURES, ("statistics", "features"), (), False)
    more: Any = {"leaves": leaves, "up": 70_000.0, "leak_r2": -0.26, "leak_reidentified": 0.83}
    found = (evidence("local", LOCAL, [0.3, 0.4]), evidence("fedproto[/b]", FLEA, [0.2, 0.4], **more))
    advice: Any = SimpleNamespace(
        evidence=found, choice=choose(found, ACCURACY), metric=ACCURACY, seeds=(0, 1), own=True,
        considered=SimpleNamespace(look=SimpleNamespace(data="wards[red]", split="site", sites=4)),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(rich_table(advice))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "wards[red], site, 4 sites" in text
    lines = text.splitlines()
    rule = next(number for number, line in enumerate(lines) if "──" in line)
    end = next(number for number, line in enumerate(lines) if "accuracy in" in line)
    at = next(line.index("leaves") for line in lines if "leaves" in line)
    assert "".join("".join(line[at:].split()) for line in lines[rule + 1 : end]) == (
        "nothing" + "".join(leaves.told.split())
    )
    assert "fedproto" in text
