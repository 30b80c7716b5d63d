"""The log-mel transform against a slow reference written from its definition."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fewfed.data import audio
from fewfed.errors import DataError


def slow_log_mel(wave: list[float], frame: int) -> list[float]:
    """One frame in plain Python: mirror, window, discrete Fourier sum, triangles, decibels (without the floor)."""
    n, half = 1024, 512

    def sample(position: int) -> float:
        if position < 0:
            position = -position
        if position >= len(wave):
            position = 2 * (len(wave) - 1) - position
        return wave[position]

    windowed = [
        sample(frame * 512 - half + i) * math.sin(math.pi * i / n) ** 2 for i in range(n)
    ]  # sin^2 is the periodic Hann window
    turn = [cmath.exp(-2j * math.pi * k / n) for k in range(n)]
    power = [abs(sum(windowed[i] * turn[i * k % n] for i in range(n))) ** 2 for k in range(half + 1)]
    top = 1127 * math.log(1 + 22050 / 700)
    corners = [700 * (math.exp(top * i / 65 / 1127) - 1) for i in range(66)]
    out = []
    for band in range(64):
        low, mid, high = corners[band : band + 3]
        total = 0.0
        for k in range(half + 1):
            f = 44100 * k / n
            if low < f <= mid:
                total += power[k] * (f - low) / (mid - low)
            elif mid < f < high:
                total += power[k] * (high - f) / (high - mid)
        out.append(10 * math.log10(max(total, 1e-10)))
    return out


def test_log_mel_equals_the_explicit_fourier_sum() -> None:
    wave = np.random.default_rng(0).normal(size=2100)
    fast = audio.log_mel(wave[None])
    assert fast.shape == (1, 64, 1 + 2100 // 512)
    reference = np.stack([slow_log_mel(wave.tolist(), frame) for frame in range(5)], axis=1)
    clipped = np.maximum(reference, reference.max() - 80)
    # HTK's 2595 log10 and 1127 ln agree to about four digits.
    np.testing.assert_allclose(fast[0], clipped, atol=0.02)


def test_a_clip_has_exactly_344_frames_64_bands_and_two_channels(tmp_path: Path) -> None:
    assert audio.FRAMES == 344
    assert audio.log_mel(np.zeros((1, 176_000), np.float32)).shape == (1, 64, 344)
    for rate, seconds, channels in [(44_100, 4, 2), (22_050, 1, 1), (8_000, 5, 1), (48_000, 4, 3)]:
        soundfile.write(tmp_path / "clip.wav", np.full((rate * seconds, channels), 0.1), rate)
        features = audio.clip_features(tmp_path / "clip.wav")
        assert features.shape == (2, 64, 344)
        assert features.dtype == np.float32


@pytest.mark.parametrize("hertz", [440.0, 1000.0, 5000.0, 15000.0])
def test_a_pure_tone_is_loudest_in_the_band_that_contains_it(hertz: float) -> None:
    wave = np.sin(2 * np.pi * hertz * np.arange(audio.SAMPLES) / audio.RATE)
    loudest = set(audio.log_mel(wave[None])[0, :, 10:330].argmax(axis=0).tolist())
    position = 2595 * math.log10(1 + hertz / 700) / (2595 * math.log10(1 + 22050 / 700)) * 65
    # Triangle b peaks at corner b + 1, so the tone lies nearest to the peak of band round(position) - 1.
    assert loudest <= {math.floor(position) - 1, math.ceil(position) - 1}


def test_ten_times_the_amplitude_is_twenty_decibels_more() -> None:
    wave = np.random.default_rng(1).normal(size=(1, 4096))
    np.testing.assert_allclose(audio.log_mel(10 * wave) - audio.log_mel(wave), 20, atol=1e-3)


def test_silence_is_at_the_floor_and_the_range_is_80_decibels_over_both_channels() -> None:
    assert (audio.log_mel(np.zeros((2, 4096))) == -100).all()
    loud = np.random.default_rng(2).normal(size=4096)
    both = audio.log_mel(np.stack([loud, np.zeros(4096)]))
    assert both[1].max() == pytest.approx(both[0].max() - 80, abs=1e-3)


def test_short_clips_are_centred_and_long_ones_cut() -> None:
    wave = np.arange(1.0, 4.0)[None]
    assert audio.fit_length(wave, 8).tolist() == [[0, 0, 1, 2, 3, 0, 0, 0]]
    assert audio.fit_length(wave, 2).tolist() == [[1, 2]]
    placed = {tuple(audio.fit_length(wave, 5, np.random.default_rng(seed))[0].tolist()) for seed in range(40)}
    assert placed == {(1, 2, 3, 0, 0), (0, 1, 2, 3, 0), (0, 0, 1, 2, 3)}


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_resampling_keeps_a_tone(rate: int) -> None:
    hertz, seconds = 1000, 0.5
    tone = np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)
    out = audio.resampled(tone[None], rate)[0]
    assert len(out) == int(44_100 * seconds)
    expected = np.sin(2 * np.pi * hertz * np.arange(len(out)) / 44_100)
    middle = slice(2000, -2000)
    assert np.abs(out[middle] - expected[middle]).max() < 0.01


def test_filters_rise_and_fall_to_a_sum_of_one_between_the_outer_peaks() -> None:
    filters = audio.mel_filters()
    assert filters.shape == (64, 513)
    assert filters.min() == 0
    assert filters.max() <= 1
    peaks = audio.mel_to_hertz(np.linspace(0, audio.hertz_to_mel(22_050), 66))
    bins = np.linspace(0, 22_050, 513)
    inner = (bins >= peaks[1]) & (bins <= peaks[64])
    np.testing.assert_allclose(filters[:, inner].sum(axis=0), 1, atol=1e-9)


def test_masks_overwrite_whole_bands_and_stretches_with_the_mean() -> None:
    features = np.random.default_rng(3).normal(size=(2, 64, 344)).astype(np.float32)
    for seed in range(20):
        out = audio.masked(features, np.random.default_rng(seed))
        changed = out != features
        bands = changed.all(axis=(0, 2))
        stretches = changed.all(axis=(0, 1))
        assert bands.sum() <= 2 * 6
        assert stretches.sum() <= 2 * 34
        assert not changed[:, ~bands][:, :, ~stretches].any()
        np.testing.assert_allclose(out[changed], features.mean(), atol=1e-6)


def test_the_roll_runs_over_both_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "clip.wav", np.stack([np.full(176_000, 0.5), np.zeros(176_000)], 1), 44_100)
    seen: list[np.ndarray] = []

    def keep(wave: np.ndarray) -> np.ndarray:
        seen.append(wave)
        return np.zeros((2, 64, 344), np.float32)

    monkeypatch.setattr(audio, "log_mel", keep)
    audio.clip_features(tmp_path / "clip.wav", np.random.default_rng(0))
    moved = int((seen[0][1] > 0.4).sum())
    assert 0 < moved <= 0.4 * 176_000
    assert (seen[0][1, :moved] > 0.4).all()
    assert (seen[0][0, :moved] == 0).all()


def test_unreadable_and_empty_sound(tmp_path: Path) -> None:
    (tmp_path / "noise.wav").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as sound"):
        audio.clip_features(tmp_path / "noise.wav")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 44_100)
    with pytest.raises(DataError, match="holds no sound"):
        audio.clip_features(tmp_path / "empty.wav")
