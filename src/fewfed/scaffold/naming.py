"""What a new method may be called, and what its files and its class are called then."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
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
    if problem := _taken(name):
        raise ConfigError(problem, key="method")
    return name


def _taken(name: Name) -> str:
    """Why a well-formed name is not free; nothing where it is."""
    if name.text in registered():
        return f"there is a method '{name.text}' already: 'fewfed methods {name.text}' shows it"
    if _means_something_else(name.stem) or keyword.iskeyword(name.class_name):
        return (
            f"a method cannot be called '{name.text}', which means something else to Python or pytest: expected "
            "another name, as in 'my-method'"
        )
    return ""


def _means_something_else(stem: str) -> bool:
    """A file beside a test comes before modules of its name, which everything else would then get instead."""
    modules = {*sys.stdlib_module_names, *metadata.packages_distributions()}
    return keyword.iskeyword(stem) or stem in modules or stem == "conftest" or stem.startswith("test_")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...")


def _suggestion(text: str) -> str:
    """The name that was probably meant, where there is one that is free: of a path the last part, of `MyMethod` the
    words, of `naïve` the letters."""
    last = text.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", last) if not unicodedata.combining(letter))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower()
    meant = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_LONGEST].strip("-")
    where = "; the folder is --out" if "/" in text or "\\" in text else ""
    return f"; perhaps '{meant}'{where}" if re.match("[a-z]", meant) and not _taken(Name(meant)) else ""
