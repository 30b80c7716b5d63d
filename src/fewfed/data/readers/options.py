"""What a user can choose about how data is read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fewfed.data.limits import MOST_BYTES, MOST_RATIO, Limits
from fewfed.data.variation import Flip, Variation
from fewfed.errors import ConfigError
from fewfed.settings import check, setting

Kind = Literal["image", "audio", "other"]
Normalise = Literal["auto", "none", "fixed", "pooled", "federated", "site"]
MissingRule = Literal["refuse", "mean", "drop"]
Layout = Literal["auto", "classes", "sites"]


@dataclass(frozen=True)
class DataOptions:
    """Options of `load`; each reader uses those that concern its kind of data."""

    augment: Literal["none", "static"] = setting(
        "none", "images: 'static' gives every training image one frozen random crop (zero padding 4) and flip"
    )
    flip: Flip = setting(
        "none", "images: swap left and right, or also top and bottom, anew each time one is trained on"
    )
    rotate: float = setting(
        0.0, "images: turn by at most so many degrees, anew each time one is trained on", ge=0, le=180
    )
    crop: int = setting(0, "images: shift by at most so many pixels, anew each time one is trained on", ge=0, le=1024)
    augment_test: bool = setting(False, "also augment the test part, as the released FLea code does by accident")
    normalise: Normalise = setting(
        "auto", "whose mean and deviation scale a channel or column: none, fixed, pooled, federated, site (docs/data)"
    )
    scale_mean: str = setting("", "normalise = fixed: what is subtracted from each channel or column, as 0.5,0.4,0.4")
    scale_std: str = setting("", "normalise = fixed: what each channel or column is then divided by")
    channels: int = setting(3, "har: how many of its nine signals are read, body acceleration first", ge=1, le=9)
    standardise_audio: bool = setting(True, "audio: scale with the training part's mean and deviation, else raw dB")
    audio_augment: bool = setting(False, "audio: random padding, roll, frequency and time masks on training clips")
    group_split: bool = setting(False, "urbansound8k: keep the clips of one source recording in the same part")
    image_size: int = setting(
        0, "images: resize to this many pixels a side; 0 = as stored (office 256, retina 128)", ge=0, le=16384
    )
    label: str = setting("", "own data: column, or array, of labels; empty = 'label' or 'y'")
    site: str = setting(
        "", "own data: column, or array, that says whose a row is; empty = 'site', 'client', 'subject' or 'domain'"
    )
    ignore: tuple[str, ...] = setting((), "own data: columns, or arrays, that are left out")
    missing: MissingRule = setting(
        "refuse", "own data: where inputs are missing, refuse, fill in the mean, or drop the row"
    )
    test_column: str = setting("", "own data: column, or array, that marks the rows of the test part")
    test_data: str = setting("", "own data: file or folder with the test part")
    layout: Layout = setting(
        "auto", "folders of images: class folders, or site folders with class folders in them; auto = by their names"
    )
    classes: int = setting(
        0, "own data: number of classes where not every class occurs; 0 = counted (masks: 2)", ge=0, le=1_000_000
    )
    test_fraction: float = setting(
        0.2, "share of rows, of each site where there are any, held out where the data has no test part", gt=0, lt=1
    )
    most_bytes: int = setting(MOST_BYTES, "bytes of memory that data may take; more is refused before it is read", ge=1)
    most_ratio: float = setting(
        MOST_RATIO, "how many times its own size a data file may take in memory, from 64 MiB on", ge=1
    )

    def without_limits(self) -> DataOptions:
        """The same with the usual limits: they decide whether data are read, not what is."""
        return dataclasses.replace(self, most_bytes=MOST_BYTES, most_ratio=MOST_RATIO)

    def own_only(self) -> dict[str, object]:
        """Those that are set although they only say how a user's own files are read."""
        names = ("label", "site", "ignore", "missing", "test_column", "test_data", "layout")
        usual = DataOptions()
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}

    @property
    def variation(self) -> Variation:
        """What is new about an image each time it is trained on."""
        return Variation(self.flip, self.rotate, self.crop)

    @property
    def limits(self) -> Limits:
        return Limits(self.most_bytes, self.most_ratio)


def refuse_unusable(options: DataOptions, name: str, kind: Kind) -> None:
    """Raise where an option asks for something this kind of data cannot give, rather than ignore it."""
    check(options)
    asked = (
        ("augment = 'static'", options.augment != "none", "image"),
        (f"flip = '{options.flip}'", options.flip != "none", "image"),
        (f"rotate = {options.rotate:g}", options.rotate > 0, "image"),
        (f"crop = {options.crop}", options.crop > 0, "image"),
        (f"image_size = {options.image_size}", options.image_size > 0, "image"),
        ("audio_augment = true", options.audio_augment, "audio"),
        ("group_split = true", options.group_split, "audio"),
    )
    for text, is_set, needed in asked:
        if is_set and kind != needed:
            raise ConfigError(f"{text} needs {needed} data, which '{name}' is not: leave this option out")
    if options.augment_test and not (options.augment != "none" or options.audio_augment):
        raise ConfigError(
            "augment_test = true has nothing to do: set augment = 'static' or audio_augment = true with it"
        )
