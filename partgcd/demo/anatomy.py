"""The body of one insect of the sample field guide: its parts as polygons, each with its colours.

Body coordinates: the thorax at the origin, the head towards -y, a fore wing about 1 long. Colours are
computed from body or wing coordinates, so that markings follow whatever pose the body is drawn in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 where it is one value a pixel
Points = NDArray[np.float64]
Shader = Callable[[Array, Array], Array]  # body x [n] and y [n] of n pixels -> colour [3, n] in 0..255

PARTS = ("background", "antennae", "head", "thorax", "fore wings", "hind wings", "abdomen", "legs")
ANTENNAE, HEAD, THORAX, FORE, HIND, ABDOMEN, LEGS = range(1, 8)


@dataclass(frozen=True)
class Species:
    """What makes a species: a palette it shares with others, and the kind of each part."""

    name: str
    palette: Literal["amber", "moss", "dusk", "rust"]
    antennae: Literal["clubbed", "feathered", "straight", "long"]
    wings: Literal["round", "pointed", "narrow", "scalloped"]
    pattern: Literal["eyes", "stripes", "plain", "band", "dots"]
    abdomen: Literal["striped", "plain", "pointed", "spotted"]
    legs: Literal["short", "long", "stout"]
    head: Literal["round", "broad", "snouted"]


# inner wing, outer wing, dark markings, pale markings, thorax and head, abdomen
_PALETTES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "amber": ((236, 186, 98), (206, 124, 46), (66, 38, 24), (250, 232, 178), (104, 68, 40), (184, 122, 60)),
    "moss": ((184, 192, 122), (112, 136, 76), (44, 54, 34), (240, 232, 180), (84, 84, 52), (142, 138, 82)),
    "dusk": ((176, 192, 206), (98, 118, 152), (34, 40, 60), (240, 228, 196), (72, 74, 92), (128, 132, 150)),
    "rust": ((222, 150, 116), (162, 78, 62), (62, 28, 30), (248, 220, 188), (100, 56, 50), (172, 96, 76)),
}

# Outlines: x from the root to the tip, y from the leading edge (negative) to the trailing one.
_FORE: dict[str, tuple[tuple[float, float], ...]] = {
    "round": (
        (0, 0.05), (0.04, -0.05), (0.38, -0.17), (0.75, -0.23), (0.98, -0.14), (1.02, 0.06), (0.86, 0.24),
        (0.56, 0.32), (0.22, 0.22),
    ),
    "pointed": (
        (0, 0.05), (0.04, -0.05), (0.4, -0.15), (0.8, -0.23), (1.1, -0.2), (1.0, -0.04), (0.84, 0.1),
        (0.62, 0.26), (0.26, 0.22),
    ),
    "narrow": (
        (0, 0.03), (0.04, -0.05), (0.45, -0.11), (0.88, -0.13), (1.1, -0.03), (1.02, 0.09), (0.72, 0.15),
        (0.3, 0.11),
    ),
    "scalloped": (
        (0, 0.05), (0.04, -0.05), (0.4, -0.18), (0.8, -0.26), (0.99, -0.2), (0.92, -0.1), (1.0, -0.02),
        (0.88, 0.07), (0.9, 0.18), (0.74, 0.22), (0.68, 0.33), (0.5, 0.31), (0.2, 0.2),
    ),
}  # fmt: skip
_HIND: dict[str, tuple[tuple[float, float], ...]] = {
    "round": (
        (0, 0.05), (0.04, -0.08), (0.3, -0.2), (0.6, -0.16), (0.78, 0.02), (0.72, 0.2), (0.48, 0.29),
        (0.16, 0.18),
    ),
    "pointed": (
        (0, 0.05), (0.04, -0.08), (0.32, -0.19), (0.62, -0.12), (0.74, 0.02), (0.84, 0.1), (1.04, 0.15),
        (0.84, 0.2), (0.66, 0.22), (0.42, 0.27), (0.15, 0.16),
    ),
    "narrow": (
        (0, 0.03), (0.04, -0.06), (0.4, -0.12), (0.75, -0.1), (0.9, 0.01), (0.8, 0.12), (0.5, 0.15),
        (0.2, 0.1),
    ),
    "scalloped": (
        (0, 0.05), (0.04, -0.08), (0.32, -0.21), (0.6, -0.18), (0.78, -0.06), (0.71, 0.03), (0.79, 0.12),
        (0.66, 0.17), (0.64, 0.27), (0.5, 0.25), (0.42, 0.32), (0.16, 0.18),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    part: int
    polygons: Sequence[Points]  # each [n, 2] in body coordinates; one shader paints them all
    shader: Shader


def _smooth(points: Points, closed: bool, steps: int = 8) -> Points:
    """Catmull-Rom curve through the points [n, 2], `steps` samples a span."""
    if closed:
        p = np.concatenate([points[-1:], points, points[:2]])
    else:
        p = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    a, b, c, d = (p[i : len(p) - 3 + i, None] for i in range(4))
    t = np.linspace(0, 1, steps, endpoint=False)[None, :, None]
    curve = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    curve = curve.reshape(-1, 2)
    return curve if closed else np.concatenate([curve, points[-1:]])


def _stroke(line: Points, width: NDArray[np.float64] | float) -> Points:
    """Polygon about a line [n, 2] whose full width is `width` (a number, or one per point)."""
    side = _normal(line) * (np.broadcast_to(width, len(line))[:, None] / 2)
    return np.concatenate([line + side, (line - side)[::-1]])


def _normal(line: Points) -> Points:
    """Unit normals [n, 2] of a line [n, 2] from its neighbouring points."""
    tangent = np.concatenate([line[1:], line[-1:]]) - np.concatenate([line[:1], line[:-1]])
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], 1)
    return np.asarray(normal / np.maximum(np.hypot(normal[:, :1], normal[:, 1:]), 1e-9))


def _bar(start: Points, end: Points, first: float, last: float) -> Points:
    """Four corners of a straight limb from start [2] to end [2], `first` wide there and `last` at its end."""
    along = end - start
    side = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9) / 2
    return np.stack([start + side * first, end + side * last, end - side * last, start - side * first])


def _ellipse(x: float, y: float, rx: float, ry: float, turn: float = 0.0, points: int = 28) -> Points:
    t = np.arange(points) * (2 * np.pi / points)
    p = np.stack([rx * np.cos(t), ry * np.sin(t)], 1)
    c, s = np.cos(turn), np.sin(turn)
    return np.asarray(p @ np.array([[c, s], [-s, c]]) + (x, y))


def _step(x: Array, low: float, high: float) -> Array:
    t = np.clip((x - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def _lay(colour: Array, over: Array, share: Array) -> Array:
    """Blends colour [3, n] (or [3, 1]) towards another by a share [n]."""
    return colour + (over - colour) * share


class Individual:
    """One animal of a species: `shapes` in the order they are painted.

    `rng` gives what differs between individuals of a species (tone, wing opening, joints, size of markings);
    `light` is the direction that light comes from, x and y of the body.
    """

    def __init__(self, species: Species, rng: np.random.Generator, light: tuple[float, float]) -> None:
        self.species, self.rng, self.light = species, rng, light
        tone = rng.uniform(0.9, 1.08) * rng.uniform(0.95, 1.05, 3)
        palette = [np.clip(c * tone, 0, 255).astype(np.float32)[:, None] for c in _PALETTES[species.palette]]
        self.inner, self.outer, self.dark, self.pale, self.body, self.tail = palette
        self.closing = rng.uniform(0, 0.25) if rng.random() < 0.65 else rng.uniform(0.5, 0.9)
        self.scale = 0.9 + 0.2 * rng.random()  # of markings
        under = [*self.legs(), *self.wings(), *self.antennae()]
        self.shapes: list[Shape] = [*under, self.abdomen(), self.thorax(), *self.face()]

    def round_(self, colour: Array, x: Array, y: Array, rx: float, ry: float) -> Array:
        """Shades a rounded body with half-widths rx, ry about the origin of x, y."""
        u, v = x / rx, y / ry
        facing = u * self.light[0] + v * self.light[1]
        shine = np.exp(-((u - 0.4 * self.light[0]) ** 2 + (v - 0.4 * self.light[1]) ** 2) / 0.12)
        shade = 0.92 + 0.3 * facing - 0.3 * u * u
        return np.asarray(colour * shade + 38 * shine)

    def banded(self, colour: Array, second: Array, bands: float) -> Shader:
        """Two colours alternating with distance from the thorax (`bands` to the unit)."""

        def shader(x: Array, y: Array) -> Array:
            return _lay(colour, second, _step(np.sin(np.hypot(x, y) * (bands * 2 * np.pi)), -0.3, 0.3))

        return shader

    def legs(self) -> list[Shape]:
        lengths, thick = {
            "short": ((0.26, 0.22, 0.12), 0.05),
            "long": ((0.42, 0.48, 0.26), 0.042),
            "stout": ((0.34, 0.3, 0.14), 0.088),
        }[self.species.legs]
        polygons: list[Points] = []
        # Angles of femur, tibia and foot from straight ahead; the root on the thorax.
        for root, angles in (
            ((0.08, -0.14), (42, 18, 30)), ((0.1, 0.0), (88, 108, 96)), ((0.08, 0.1), (142, 166, 150)),
        ):  # fmt: skip
            for side in (-1, 1):
                turn = np.radians(np.asarray(angles) + self.rng.uniform(-9, 9) + self.rng.uniform(-7, 7, 3))
                steps = np.stack([np.sin(turn) * side, -np.cos(turn)], 1) * np.asarray(lengths)[:, None]
                joints = np.concatenate([[(root[0] * side, root[1])], steps]).cumsum(0)
                for i, (first, last) in enumerate(((0.9, 0.75), (0.65, 0.45), (0.45, 0.3))):
                    polygons.append(_bar(joints[i], joints[i + 1], first * thick, last * thick))
                    x, y = joints[i + 1]
                    polygons.append(_ellipse(x, y, last * thick / 2, last * thick / 2, points=8))
        colour = self.dark * 0.75 + self.body * 0.35
        return [Shape(LEGS, polygons, self.banded(colour, colour * 1.35 + 8, 3.2))]

    def wings(self) -> list[Shape]:
        shapes = []
        sweep = self.closing
        for part, table, root, rest, fold in (
            (HIND, _HIND, (0.09, 0.06), 44, 26), (FORE, _FORE, (0.09, -0.07), 0, 56),
        ):  # fmt: skip
            outline = _smooth(np.asarray(table[self.species.wings]), closed=True)
            for side in (-1.0, 1.0):
                turn = np.radians(rest - 8 + fold * sweep + self.rng.uniform(-4, 4))
                narrow = 1.0 - 0.3 * sweep  # a wing half raised looks narrower
                c, s = np.cos(turn), np.sin(turn)
                # Row vectors: wing -> body.
                to_body = np.array([[c * side, s], [-s * narrow * side, c * narrow]])
                origin = np.array([root[0] * side, root[1]])
                shader = self.wing(part, outline, to_body, origin)
                shapes.append(Shape(part, [outline @ to_body + origin], shader))
        return shapes

    def wing(self, part: int, outline: Points, to_body: Points, origin: Points) -> Shader:
        """Colours of one wing in polar coordinates: t across it, rho from root to edge, 0..1."""
        angle = np.arctan2(outline[:, 1], outline[:, 0])
        far = np.hypot(outline[:, 0], outline[:, 1])
        keep = far > 0.15
        order = np.argsort(angle[keep])
        angles, reach = angle[keep][order], far[keep][order]
        back = np.linalg.inv(to_body)
        pattern, scale, fore = self.species.pattern, self.scale, part == FORE
        shift, shift_y = (float(v) for v in self.rng.uniform(-0.025, 0.025, 2))
        wobble = self.rng.uniform(0, 2 * np.pi)
        first, last = float(angles[0]), float(angles[-1])
        m = [float(v) for v in back.ravel()]
        x0, y0 = (float(v) for v in origin)
        veins = 7 if fore else 6

        def shader(x: Array, y: Array) -> Array:
            wx, wy = (x - x0) * m[0] + (y - y0) * m[2], (x - x0) * m[1] + (y - y0) * m[3]
            turn, r = np.arctan2(wy, wx), np.hypot(wx, wy)
            edge = np.interp(turn, angles, reach).astype(np.float32)
            rho = r / edge
            t = (turn - first) / (last - first)
            colour = _lay(self.inner, self.outer, _step(rho, 0.15, 1.0))
            phase = t * veins + 0.35 * rho
            gap = np.abs(phase - np.round(phase)) / veins * (last - first) * r
            colour = colour * (1 + 0.05 * np.sin(2 * np.pi * phase))
            cross = np.abs(rho - 0.5 + 0.06 * t)
            lines = np.maximum(_step(-gap, -0.017, -0.004), _step(-cross, -0.03, -0.008))
            colour = _lay(colour, self.dark, 0.42 * lines)
            if pattern == "stripes":
                bars = np.sin((wx * (4.0 if fore else 4.6) - 0.8 * wy + shift) * 2 * np.pi)
                colour = _lay(colour, self.dark, 0.9 * _step(bars, 0.1, 0.45) * _step(rho, 0.1, 0.2))
            elif pattern == "band":
                middle = np.abs(rho - 0.66 - shift - 0.025 * np.sin(9 * t + wobble)) / scale
                colour = _lay(colour, self.dark, 0.85 * _step(-middle, -0.18, -0.14))
                colour = _lay(colour, self.pale, _step(-middle, -0.115, -0.085))
            elif pattern == "dots":
                near = np.abs(t * veins + 0.5 - np.round(t * veins + 0.5)) / veins
                near = near * (last - first) * r
                colour = _lay(colour, self.dark, 0.85 * _step(rho, 0.66, 0.72))
                dot = np.hypot(near, (rho - 0.82) * edge) / scale
                colour = _lay(colour, self.pale, _step(-dot, -0.042, -0.028))
            elif pattern == "eyes":
                cx, cy = (0.7 if fore else 0.5) + shift, (0.02 if fore else 0.04) + shift_y
                away = np.hypot(wx - cx, wy - cy) / scale
                for radius, ring in ((0.165, self.dark), (0.135, self.pale), (0.095, self.dark * 0.8)):
                    colour = _lay(colour, ring, _step(-away, -radius, 0.015 - radius))
                glint = np.hypot(wx - cx - 0.03, wy - cy + 0.03)
                colour = _lay(colour, np.full((3, 1), 250, np.float32), 0.9 * _step(-glint, -0.035, -0.02))
            colour = _lay(colour, self.dark, 0.75 * _step(rho, 0.925, 0.975))
            tilt = 1 + 0.09 * (x * self.light[0] + y * self.light[1])
            return np.asarray(colour * (tilt * (0.72 + 0.28 * _step(r, 0.0, 0.3))))

        return shader

    def antennae(self) -> list[Shape]:
        kind = self.species.antennae
        path = {
            "clubbed": ((0.05, -0.38), (0.11, -0.54), (0.19, -0.7), (0.29, -0.84)),
            "feathered": ((0.05, -0.38), (0.13, -0.52), (0.25, -0.66), (0.41, -0.76)),
            "straight": ((0.05, -0.38), (0.09, -0.47), (0.13, -0.56), (0.17, -0.65)),
            "long": ((0.05, -0.38), (0.16, -0.66), (0.42, -0.92), (0.8, -0.98), (1.08, -0.78), (1.16, -0.5)),
        }[kind]
        polygons: list[Points] = []
        for side in (-1, 1):
            line = _smooth(np.asarray(path), closed=False, steps=10)
            turn = self.rng.uniform(-0.14, 0.14)
            c, s = np.cos(turn), np.sin(turn)
            line = ((line - line[0]) @ np.array([[c, s], [-s, c]]) + line[0]) * (side, 1)
            along = np.linspace(0, 1, len(line))
            thick = {"clubbed": 0.036, "feathered": 0.04, "straight": 0.062, "long": 0.05}[kind]
            polygons.append(_stroke(line, thick * (1 - (0.2 if kind == "clubbed" else 0.6) * along)))
            tip = line[-1] - line[-3]
            if kind == "clubbed":
                turn = float(np.arctan2(tip[1], tip[0]))
                polygons.append(_ellipse(line[-1, 0], line[-1, 1], 0.085, 0.048, turn))
            if kind == "feathered":
                normal = _normal(line)
                forward = np.stack([normal[:, 1], -normal[:, 0]], 1)
                for i in range(4, len(line) - 1, 2):
                    barb = 0.15 * np.sin(np.pi * (0.15 + 0.75 * along[i])) ** 0.7
                    for way in (-1, 1):
                        end = line[i] + barb * (normal[i] * way + 0.55 * forward[i])
                        polygons.append(_bar(line[i], end, 0.03, 0.012))
        plain = self.dark * 0.8 + self.body * 0.2
        second = self.pale * 0.55 + self.body * 0.4 if kind == "long" else plain * 1.15
        return [Shape(ANTENNAE, polygons, self.banded(plain, second, 6.0))]

    def abdomen(self) -> Shape:
        kind = self.species.abdomen
        start, end, widths = 0.12, 0.86, (0.09, 0.14, 0.16, 0.155, 0.125, 0.06)
        if kind == "pointed":
            end, widths = 1.08, (0.09, 0.12, 0.115, 0.085, 0.05, 0.014)
        depth = np.linspace(start, end, len(widths))
        curve = _smooth(np.stack([np.asarray(widths), depth], 1), closed=False, steps=6)
        bend = self.rng.uniform(-0.12, 0.12)

        def lean(y: Array) -> Array:
            return np.asarray(bend * ((y - start) / (end - start)) ** 2)

        right = np.stack([curve[:, 0] + lean(curve[:, 1]), curve[:, 1]], 1)
        left = np.stack([-curve[:, 0] + lean(curve[:, 1]), curve[:, 1]], 1)
        count = 7

        def shader(x: Array, y: Array) -> Array:
            centre = x - lean(y)
            u = centre / np.interp(y, curve[:, 1], curve[:, 0]).astype(np.float32)
            step = (y - start) / (end - start) * count - 0.5 * u * u * 0.5
            within = step - np.floor(step)
            colour = self.tail
            if kind == "striped":
                colour = _lay(colour, self.dark, _step(np.abs(within - 0.5), 0.18, 0.26))
                colour = _lay(colour, self.pale, 0.85 * _step(-np.abs(within - 0.5), -0.22, -0.14))
            elif kind == "spotted":
                dot = np.hypot((np.abs(u) - 0.45) * 0.15, (within - 0.5) * (end - start) / count)
                colour = _lay(colour * 0.8, self.pale, _step(-dot, -0.046, -0.032))
            elif kind == "pointed":
                colour = _lay(colour, self.dark, 0.8 * _step(y, 0.45, 1.0))
            seam = _step(-np.minimum(within, 1 - within), -0.12, -0.03)
            colour = _lay(colour, self.dark, 0.5 * seam)
            shade = 0.95 + 0.3 * u * self.light[0] - 0.32 * u * u
            shine = np.exp(-((u - 0.4 * self.light[0]) ** 2) / 0.05)
            return np.asarray(colour * shade + 22 * shine)

        return Shape(ABDOMEN, [np.concatenate([right, left[::-1]])], shader)

    def thorax(self) -> Shape:
        rim = _smooth(_ellipse(0, 0.0, 0.175, 0.235), closed=True, steps=5)
        rim = rim * (1 + 0.045 * self.rng.standard_normal((len(rim), 1)))  # a furry edge

        def shader(x: Array, y: Array) -> Array:
            colour = _lay(self.body, self.tail, 0.55 * _step(-np.abs(np.abs(x) - 0.07), -0.035, -0.01))
            fur = 1 + 0.09 * np.sin(x * 190 + np.sin(y * 70) * 2)
            return np.asarray(self.round_(colour, x, y, 0.175, 0.235) * fur)

        return Shape(THORAX, [rim], shader)

    def face(self) -> list[Shape]:
        kind = self.species.head
        wide, tall, eye = {
            "round": (0.125, 0.115, 0.055), "broad": (0.17, 0.12, 0.09), "snouted": (0.1, 0.12, 0.045),
        }[kind]  # fmt: skip
        y0 = -0.31
        polygons = [_ellipse(0, y0, wide, tall)]
        if kind == "snouted":
            snout = np.array([(0.0, -0.38), (0.01, -0.5), (-0.005, -0.62), (0.0, -0.7)])
            polygons.append(_stroke(_smooth(snout, closed=False), np.linspace(0.1, 0.05, 25)))

        def skin(x: Array, y: Array) -> Array:
            return self.round_(self.body * 0.85 + self.tail * 0.2, x, y - y0, wide, tall * 2)

        shapes = [Shape(HEAD, polygons, skin)]
        for side in (-1, 1):
            cx, cy = wide * 0.82 * side, y0 - 0.03

            def look(x: Array, y: Array, cx: float = cx, cy: float = cy) -> Array:
                return self.round_(self.dark * 0.75, x - cx, y - cy, eye, eye * 1.2)

            shapes.append(Shape(HEAD, [_ellipse(cx, cy, eye, eye * 1.2, 0.25 * side)], look))
        return shapes
