"""Procedural backgrounds of the sample field guide: leaf, bark, sand, stone or sky, and soft clutter.

Nothing here knows which species will be put in front, so the background never tells the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Array = NDArray[np.floating[Any]]  # float32 throughout


def backdrop(rng: np.random.Generator, size: int) -> Array:
    """One background, float32 [3, size, size] in 0..255, drawn from `rng` alone."""
    kinds: tuple[Callable[[np.random.Generator, int], Array], ...] = (_leaf, _bark, _sand, _stone, _sky)
    scene = kinds[int(rng.integers(len(kinds)))](rng, size)
    scene = _clutter(rng, scene)
    return np.clip(scene + rng.normal(0, 2.0, scene.shape[1:]).astype(np.float32), 0, 255)


def noise(rng: np.random.Generator, rows: int, columns: int, size: int) -> Array:
    """Smooth noise, float32 [size, size] about 0 (sd 1): rows x columns normals, bicubic between."""
    grid = rng.standard_normal((max(rows, 2), max(columns, 2))).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)


def _axes(rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Coordinates along and across a random direction, both float32 [size, size] in about -0.7..0.7."""
    line = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    angle = rng.uniform(0, 2 * np.pi)
    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return c * line[None, :] + s * line[:, None], -s * line[None, :] + c * line[:, None]


def _tint(rng: np.random.Generator, *choices: tuple[int, int, int]) -> Array:
    colour = np.asarray(choices[int(rng.integers(len(choices)))], dtype=np.float32)
    return (colour * rng.uniform(0.96, 1.04, 3).astype(np.float32))[:, None, None]


def _mix(a: Array, b: Array, share: Array) -> Array:
    return a + (b - a) * np.clip(share, 0, 1)


def _leaf(rng: np.random.Generator, size: int) -> Array:
    along, across = _axes(rng, size)
    across = across + rng.uniform(-0.25, 0.25) + 0.12 * along**2
    dark = _tint(rng, (58, 96, 44), (74, 104, 50), (88, 96, 46), (48, 88, 62))
    scene = _mix(dark, dark * 1.45 + 14, 0.5 + 0.22 * noise(rng, 4, 4, size) - 0.5 * np.abs(across))
    slant = rng.uniform(0.6, 1.1)
    phase = (along - slant * np.abs(across) + 0.05 * across**2) * rng.uniform(7, 10)
    ridge = np.abs(phase - np.round(phase))  # 0 on a side vein, 0.5 between two
    scene *= 0.9 + 0.28 * ridge + 0.02 * noise(rng, size // 3, size // 3, size)
    vein = np.maximum(np.exp(-((ridge / 0.05) ** 2)) * 0.4, np.exp(-((across / 0.014) ** 2)) * 0.8)
    return _mix(scene, dark * 1.5 + 46, vein)


def _bark(rng: np.random.Generator, size: int) -> Array:
    dark = _tint(rng, (92, 72, 54), (104, 88, 70), (84, 76, 66))
    grain = noise(rng, 6, 34, size) + 0.6 * noise(rng, 20, 80, size)
    scene = _mix(dark, dark * 1.6 + 16, 0.45 + 0.22 * grain)
    crack = np.exp(-((noise(rng, 5, 14, size) / 0.12) ** 2))
    scene = _mix(scene, dark * 0.45, 0.6 * crack)
    lichen = noise(rng, 7, 7, size) + 0.5 * noise(rng, 40, 40, size)
    scene = _mix(scene, _tint(rng, (150, 160, 124), (168, 166, 132)), 0.45 * np.clip(lichen - 1.0, 0, 1))
    return np.ascontiguousarray(scene.transpose(0, 2, 1)) if rng.random() < 0.4 else scene


def _sand(rng: np.random.Generator, size: int) -> Array:
    along, _ = _axes(rng, size)
    base = _tint(rng, (206, 184, 144), (196, 172, 138), (214, 198, 166))
    ripple = np.sin((along * rng.uniform(5, 9) + 0.22 * noise(rng, 5, 5, size)) * 2 * np.pi)
    light = 0.94 + 0.05 * ripple + 0.03 * noise(rng, 6, 6, size)
    light += 0.045 * noise(rng, size // 2, size // 2, size)
    return base * light


def _stone(rng: np.random.Generator, size: int) -> Array:
    base = _tint(rng, (142, 140, 136), (128, 124, 118), (156, 148, 138))
    light = 0.95 + 0.09 * noise(rng, 5, 5, size) + 0.05 * noise(rng, 24, 24, size)
    light += 0.05 * noise(rng, size // 2, size // 2, size)
    moss = noise(rng, 4, 4, size) + 0.4 * noise(rng, 30, 30, size)
    scene = base * light
    return _mix(scene, _tint(rng, (96, 112, 62), (120, 118, 70)), 0.6 * np.clip(moss - 1.0, 0, 1))


def _sky(rng: np.random.Generator, size: int) -> Array:
    line = np.linspace(0, 1, size, dtype=np.float32)[:, None]
    top = _tint(rng, (104, 148, 190), (126, 164, 196), (150, 160, 176))
    low = _tint(rng, (214, 224, 224), (234, 218, 194), (196, 210, 190))
    scene = _mix(top, low, line + 0.08 * noise(rng, 3, 3, size))
    cloud = noise(rng, 4, 3, size) + 0.45 * noise(rng, 10, 8, size)
    return _mix(scene, np.full((3, 1, 1), 245, np.float32), 0.5 * np.clip(cloud - 0.3, 0, 1))


def _clutter(rng: np.random.Generator, scene: Array) -> Array:
    """A few soft petals, twigs and pebbles, out of focus, so that not every blob is an insect."""
    size = scene.shape[1]
    half = size // 2  # out of focus, so half the resolution is enough
    colours = ((96, 128, 60), (132, 104, 70), (188, 150, 92), (214, 196, 176), (142, 96, 86), (126, 128, 138))
    for _ in range(int(rng.integers(0, 4))):
        length = half * rng.uniform(0.12, 0.42)
        width = length * rng.choice([0.06, 0.35, 0.45, 0.8])
        turn = np.arange(48) * (2 * np.pi / 48)
        round_ = np.sin(turn) * np.abs(np.sin(turn)) ** 0.4
        shape = np.stack([np.cos(turn) * length / 2, round_ * width / 2], 1)
        angle = rng.uniform(0, np.pi)
        rotate = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        points = shape @ rotate + rng.uniform(0, half, 2)
        cover = Image.new("L", (half, half))
        ImageDraw.Draw(cover).polygon(points.ravel().tolist(), fill=255)
        cover = cover.filter(ImageFilter.GaussianBlur(half * rng.uniform(0.008, 0.03)))
        cover = cover.resize((size, size), Image.Resampling.BILINEAR)
        share = np.asarray(cover, np.float32) * (rng.uniform(0.6, 0.95) / 255)
        scene = _mix(scene, _tint(rng, *colours), share)
    return scene
