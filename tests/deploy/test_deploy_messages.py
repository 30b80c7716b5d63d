"""Messages come back as they were, and whatever else arrives is refused in one way only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fewfed.deploy.coordinator.scores import blank_score, checked_score
from fewfed.deploy.messages import BadMessage, Offer, Reply, Request, Terms, Verdict, pack, shown, unpack
from fewfed.task import Task
from fewfed.tasks.classification import Classification
from fewfed.tasks.segmentation import Segmentation

READERS: tuple[Callable[[bytes], Any], ...] = (unpack, Offer.read, Terms.read, Request.read, Reply.read)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=8)
NAMES = ("config", "task", "shape", "classes", "sites", "secure", "rows", "test_rows", "validation_rows", "fills",
         "inputs", "weights", "version", "settled", "stage", "attached", "on", "own", "step", "failed", "cause",
         "unknown_run", "withdrawn", "score", "inputs")  # fmt: skip

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30)
verdicts = st.builds(Verdict, st.integers(0, 10**6), texts, st.booleans())


@given(st.builds(Request, st.lists(verdicts).map(tuple), st.sampled_from(["scaling", "training"]), texts,
                 st.sampled_from(["test", "validation"]), st.booleans(), texts, st.binary()))  # fmt: skip
def test_requests_come_back(request: Request) -> None:
    assert Request.read(request.body()) == request


@given(st.builds(Terms, st.none() | st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans(),
                 st.none() | st.dictionaries(texts, texts), texts, texts))  # fmt: skip
def test_terms_come_back(terms: Terms) -> None:
    assert Terms.read(terms.body()) == terms


@given(st.binary(max_size=200))
@example(b"\x02\x00\x00\x00[]")
@example(b"\x02\x00\x00\x00{}")
@example(b"\xff\xff\xff\xff{}")
@example(pack({}) + b"x" * 10)
@example((100_000).to_bytes(4, "little") + b"[" * 100_000)
@example((9).to_bytes(4, "little") + b'{"a":NaN}')
@example((8_007).to_bytes(4, "little") + b'{"a":' + b"9" * 8_001 + b"}")
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for read in READERS:
        try:
            read(content)
        except BadMessage:
            continue


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.binary(max_size=20))
def test_any_json_is_read_or_refused(head: dict[str, Any], content: bytes) -> None:
    try:
        body = (written := json.dumps(head).encode()) and len(written).to_bytes(4, "little") + written + content
    except ValueError:
        return
    for read in READERS:
        try:
            read(body)
        except BadMessage:
            continue


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(["correct", "total", "loss", "predicted", "bins", "groups"]), JSON))
def test_any_score_is_read_or_refused(recorded: dict[str, Any]) -> None:
    like = blank_score(Classification(3), (4,))
    try:
        checked_score(recorded, like, 100)
    except BadMessage:
        return
    raise AssertionError("nothing of this kind is a score")


def test_a_good_score_is_taken() -> None:
    like = blank_score(Classification(3), (4,))
    assert checked_score(json.loads(json.dumps(like.as_json())), like, 1).as_json() == like.as_json()


@pytest.mark.parametrize("task", [Classification(3), Segmentation(3)])
def test_a_score_of_more_rows_than_a_site_has_is_refused(task: Task) -> None:
    shape = (1, 4, 4)
    y = task.blank_labels(5, shape)
    of_five = task.score(torch.zeros(5, task.outputs, *y.shape[1:]), y).as_json()
    like = blank_score(task, shape)
    assert checked_score(of_five, like, 5).as_json() == of_five
    with pytest.raises(BadMessage, match="of more rows than the 4 that it can have"):
        checked_score(of_five, like, 4)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "x" * 10_000, "‮abc"])
def test_what_is_shown_is_one_short_line(text: str) -> None:
    found = shown(text)
    assert len(found) <= 500
    assert found.isprintable() or not found
