"""The folder of studies: `reproduce/` of a clone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fewfed.errors import ConfigError, did_you_mean
from fewfed.reproduction.study import Study
from fewfed.reproduction.study_file import read_study, summary_of

FOLDER = Path("reproduce")
PUBLISHED = "published"


@dataclass(frozen=True)
class Library:
    """Studies by name, `<paper>/<name>.toml`, beside the published tables."""

    folder: Path

    @classmethod
    def at(cls, folder: Path | None) -> Library:
        """The folder given, or `reproduce/` in the current directory."""
        place = folder or FOLDER
        if not (place / PUBLISHED).is_dir():
            raise ConfigError(
                f"there is no folder '{place / PUBLISHED}': run this in a clone of fewfed, "
                "or name its folder 'reproduce' with --from DIR"
            )
        return cls(place)

    def names(self) -> dict[str, str]:
        """Every study and the line that says what it shows."""
        return {name: summary_of(path) for name, path in self._files().items()}

    def study(self, name: str) -> Study:
        files = self._files()
        if name not in files:
            raise ConfigError(did_you_mean("table or figure", name, files))
        return read_study(files[name], self.folder / PUBLISHED)

    def _files(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(self.folder.glob("*/*.toml"))}
