"""Sound clips as log-mel spectrograms, with the settings of the FLea experiments."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.extras import need
from fewfed.data.readers.opening import size_of
from fewfed.errors import DataError

RATE = 44_100
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
"""Beyond these a filter between two rates takes any amount of memory."""
SAMPLES = 176_000
FFT = 1024
HOP = 512
MELS = 64
FRAMES = 1 + SAMPLES // HOP
TOP_DB = 80.0
FLOOR = 1e-10
ROLL = 0.4
MASKS = 2
MASK_SHARE = 0.1


def clip_features(path: Path, rng: np.random.Generator | None = None, limits: Limits | None = None) -> np.ndarray:
    """A sound file as (2, 64, 344) decibels. With `rng` it is padded, rolled and masked at random."""
    wave, rate = read_wave(path, limits)
    wave = fit_length(resampled(wave, rate), SAMPLES, rng)
    if rng is not None:
        wave = np.roll(wave, int(rng.random() * ROLL * SAMPLES))  # over the flattened channels, as released
    features = log_mel(wave)
    if rng is not None:
        features = masked(features, rng)
    return np.repeat(features, 2, axis=0) if len(features) == 1 else features


def read_wave(path: Path, limits: Limits | None = None) -> tuple[np.ndarray, int]:
    """Samples as (channels, n), at most two channels, and their rate."""
    soundfile = need("soundfile", "audio", "reading sound files")
    limits = limits or Limits()
    stored = size_of(path, limits)
    try:
        with soundfile.SoundFile(path) as sound:
            rate = sound.samplerate
            _check_header(path, sound.frames, sound.channels, rate, stored, limits)
            samples = sound.read(dtype="float32", always_2d=True)
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as sound ({error}): expected an undamaged audio file") from error
    if len(samples) == 0:
        raise DataError(f"{path} holds no sound: expected at least one sample; remove the clip or get it again")
    return np.ascontiguousarray(samples.T[:2]), int(rate)


def _check_header(path: Path, frames: int, channels: int, rate: int, stored: int, limits: Limits) -> None:
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise DataError(f"{path} has {rate} samples a second: expected {LOWEST_RATE} to {HIGHEST_RATE}")
    # Once as it is and once at our own rate.
    samples = frames * max(1, channels) * (1 + math.ceil(RATE / rate))
    limits.check(f"{path} with {frames} samples of {channels} channels", 4 * samples, stored)


def resampled(wave: np.ndarray, rate: int, target: int = RATE) -> np.ndarray:
    if rate == target:
        return wave
    signal = need("scipy.signal", "audio", "resampling sound")
    divisor = math.gcd(rate, target)
    out: np.ndarray = signal.resample_poly(wave, target // divisor, rate // divisor, axis=-1)
    return out.astype(wave.dtype, copy=False)


def fit_length(wave: np.ndarray, samples: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Cut after `samples`, or put into the middle (with `rng`: anywhere) of that much silence."""
    missing = samples - wave.shape[-1]
    if missing <= 0:
        return wave[:, :samples]
    before = missing // 2 if rng is None else int(rng.integers(missing + 1))
    return np.pad(wave, ((0, 0), (before, missing - before)))


def log_mel(wave: np.ndarray) -> np.ndarray:
    """(channels, samples) to (channels, mels, frames) in dB, at most 80 dB below the loudest cell of the clip."""
    power = power_spectrogram(wave)
    mel = mel_filters().astype(wave.dtype) @ power
    decibels = 10 * np.log10(np.maximum(mel, FLOOR))
    clipped: np.ndarray = np.maximum(decibels, decibels.max() - TOP_DB)
    return clipped.astype(np.float32)


def power_spectrogram(wave: np.ndarray) -> np.ndarray:
    """Squared magnitudes (channels, bins, frames) of frames centred on multiples of the hop, mirrored at the ends."""
    fft = need("scipy.fft", "audio", "computing spectrograms")
    edge = FFT // 2
    extended = np.pad(wave, ((0, 0), (edge, edge)), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(extended, FFT, axis=-1)[:, ::HOP]
    spectrum: np.ndarray = fft.rfft(frames * hann(wave.dtype), axis=-1)
    power: np.ndarray = spectrum.real**2 + spectrum.imag**2
    return power.swapaxes(-1, -2)


def hann(dtype: np.typing.DTypeLike) -> np.ndarray:
    """The periodic Hann window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(dtype)


def mel_filters() -> np.ndarray:
    """(mels, bins) triangles of height 1, evenly spaced on the HTK mel scale from 0 Hz to half the rate."""
    corners = mel_to_hertz(np.linspace(0, hertz_to_mel(RATE / 2), MELS + 2))
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    triangles: np.ndarray = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    return triangles.clip(min=0)


def hertz_to_mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def mel_to_hertz(mel: np.ndarray) -> np.ndarray:
    return 700 * (10 ** (mel / 2595) - 1)


def masked(features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two bands of frequencies, then two stretches of time, overwritten with the clip's mean."""
    out = features.copy()
    mean = features.mean()
    for axis in (1, 2):
        size = features.shape[axis]
        for _ in range(MASKS):
            width = rng.random() * MASK_SHARE * size
            start = int(rng.random() * (size - width))
            stretch = slice(start, start + int(width))
            out[(slice(None), stretch) if axis == 1 else (slice(None), slice(None), stretch)] = mean
    return out
