"""How a method is written, taken apart and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed.errors import ConfigError
from fewfed.spelling import Spelled, spelled

NAMES = st.sampled_from(["fedavg", "sem", "fedfa-anchor", "my.py", "a/b c/my.py", "../x.py"])
PRESETS = st.sampled_from(["", "official", "no-such"])


def written(method: Spelled) -> str:
    return method.alone if method.inner is None else f"{method.alone}({written(method.inner)})"


METHODS = st.recursive(
    st.builds(Spelled, NAMES, PRESETS), lambda inner: st.builds(Spelled, NAMES, PRESETS, inner), max_leaves=6
)


@given(METHODS)
def test_what_is_put_together_is_taken_apart_again(method: Spelled) -> None:
    assert spelled(written(method)) == method
    assert spelled(f"  {written(method)} ") == method
    assert written(method).count(".py") == len(method.files)


@given(st.text(max_size=60))
def test_any_text_is_some_name(text: str) -> None:
    found = spelled(text)
    assert isinstance(found, Spelled)


def test_files_are_found_wherever_they_stand() -> None:
    """Also as the outer one: what a folder from somebody else names must not be run unnoticed."""
    assert spelled("a.py(sem:released(b/c.py:strong))").files == ("a.py", "b/c.py")
    assert spelled("my (1).py").files == ("my (1).py",)
    assert spelled("flea()").inner is None


@pytest.mark.parametrize("text", ["a" * 5000, "a(" * 17 + "b" + ")" * 17, "(" * 100_000])
def test_a_name_without_end_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a short name"):
        spelled(text)
