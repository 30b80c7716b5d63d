"""What a new method may be called, and what its files and its class are called then."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib import metadata

from fewfed.errors import ConfigError
from fewfed.methods.registry import registered

_LONGEST = 40
_SHOWN = 60
_EXPECTED = f"expected a name of at most {_LONGEST} small letters, digits and hyphens, as in 'my-method'"


@dataclass(frozen=True)
class Name:
    """A name that is free, as tables show it (`my-method`)."""

    text: str

    @property
    def stem(self) -> str:
        """Of its files: `my_method`."""
        return self.text.replace("-", "_")

    @property
    def class_name(self) -> str:
        """`MyMethod`."""
        return "".join(part.capitalize() for part in self.text.split("-"))


def checked_name(text: str) -> Name:
    """The name of a new method, or a `ConfigError` that says why it cannot be called that."""
    plain = text.replace("_", "-")
    if len(plain) > _LONGEST or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", plain):
        raise ConfigError(f"a method cannot be called {_shortened(text)}: {_EXPECTED}{_suggestion(text)}", key="method")
    name = Name(plain)
    if plain in registered():
        raise ConfigError(f"there is a method '{plain}' already: 'fewfed methods {plain}' shows it", key="method")
    if _means_something_else(name.stem) or keyword.iskeyword(name.class_name):
        raise ConfigError(
            f"a method cannot be called '{plain}', which means something else to Python or pytest: expected another "
            "name, as in 'my-method'",
            key="method",
        )
    return name


def _means_something_else(stem: str) -> bool:
    """A file beside a test comes before modules of its name, which everything else would then get instead."""
    modules = {*sys.stdlib_module_names, *metadata.packages_distributions()}
    return keyword.iskeyword(stem) or stem in modules or stem == "conftest" or stem.startswith("test_")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...")


def _suggestion(text: str) -> str:
    """The name that was probably meant, where there is one: of a path the last part, of `MyMethod` the words."""
    last = text.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", last).lower()
    meant = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_LONGEST].strip("-")
    where = "; the folder is --out" if "/" in text or "\\" in text else ""
    return f"; perhaps '{meant}'{where}" if re.match("[a-z]", meant) else ""
