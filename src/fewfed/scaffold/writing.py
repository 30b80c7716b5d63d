"""Writing the first files of a method from templates: the method, its test, its page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Literal

from fewfed.errors import ConfigError, RunError
from fewfed.scaffold.naming import Name

Kind = Literal["plain", "phases", "wrapper"]
"""A method of one phase, of two, or a wrapper."""


@dataclass(frozen=True)
class Written:
    """The files of a new method."""

    method: Path
    test: Path
    page: Path


def write_method(name: Name, kind: Kind, folder: Path) -> Written:
    """Write the files of a new method; none of them where one of them is there already."""
    files = Written(folder / f"{name.stem}.py", folder / f"test_{name.stem}.py", folder / f"{name.stem}.md")
    texts = _texts(name, kind)
    for path in (files.method, files.test, files.page):
        if path.is_symlink() or path.exists():
            raise ConfigError(f"'{path}' is there already and is not overwritten: expected another name or --out")
    done: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip((files.method, files.test, files.page), texts, strict=True):
            with path.open("x", encoding="utf-8") as file:
                done.append(path)
                file.write(text)
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        raise RunError(f"cannot write into '{folder}': {error.strerror or error}") from error
    return files


def _texts(name: Name, kind: Kind) -> tuple[str, str, str]:
    """The method, its test and its page."""
    method = _template(f"{kind}.py")
    if re.search(rf"\b{name.class_name}\b", method):
        raise ConfigError(f"a method called '{name.text}' would hide the class {name.class_name} that its file uses: "
                          "expected another name", key="method")  # fmt: skip
    around = kind == "wrapper"
    words = {
        "name": name.text,
        "stem": name.stem,
        "class_name": name.class_name,
        "title": name.text.replace("-", " ").capitalize(),
        "default": "0.01" if around else "0.1",
        "neutral": "the method it is around" if around else "FedAvg",
        "written": f'"{name.stem}.py(flea)"' if around else f"{name.stem}.py",
        "command": f'fewfed compare flea "{name.stem}.py(flea)" --seeds 5'
        if around
        else f"fewfed compare fedavg {name.stem}.py --seeds 5",
    }
    more = Template(_template("test_wrapper.py")).substitute(words) if around else ""
    test = Template(_template("test.py")).substitute(words, more=more)
    return Template(method).substitute(words), test, Template(_template("page.md")).substitute(words)


def _template(name: str) -> str:
    return (resources.files("fewfed.scaffold") / "templates" / f"{name}.txt").read_text(encoding="utf-8")
