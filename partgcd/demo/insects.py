"""Draws one insect of the sample field guide: species, pose, light, background, and which part is where.

A projective map takes the body's polygons to a canvas three times the final size, where the colour of every
pixel is computed back in body coordinates. The canvas is then averaged down, which smooths all edges.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from partgcd.demo.anatomy import Individual, Points, Shape, Species
from partgcd.demo.backdrops import backdrop

OVERSAMPLE = 3
VIEW_SHARE = 0.875  # the insect stays inside this central share, which the evaluation view keeps


def _project(points: Points, matrix: Points) -> Points:
    """Projective map of points [n, 2] by matrix [3, 3]."""
    p = points @ matrix[:, :2].T + matrix[:, 2]
    return np.asarray(p[:, :2] / p[:, 2:])


def _place(shapes: list[Shape], pose: Points, rng: np.random.Generator, canvas: int) -> Points:
    """The pose followed by the scale and shift that put the insect inside the view: body -> canvas pixels."""
    everything = _project(np.concatenate([p for s in shapes for p in s.polygons]), pose)
    low, high = everything.min(0), everything.max(0)
    share = rng.triangular(0.46, 0.8, 0.85)
    scale = share / (high - low).max()
    slack = (VIEW_SHARE - (high - low) * scale) / 2
    centre = 0.5 + np.clip(rng.uniform(-1, 1, 2) * slack, -0.14, 0.14)
    move = centre - (low + high) / 2 * scale
    fit = np.array([[scale, 0, move[0]], [0, scale, move[1]], [0, 0, 1 / canvas]])
    return np.asarray(canvas * fit @ pose)


def _paint(
    shape: Shape, to_canvas: Points, to_body: Points, layer: NDArray[np.uint8], index: NDArray[np.uint8]
) -> None:
    """Paints a shape over the layer [4, S, S] (colour, then cover) and writes its part into index [S, S]."""
    outlines = [_project(p, to_canvas) for p in shape.polygons]
    everything = np.concatenate(outlines)
    side = layer.shape[1]
    x0, y0 = np.clip(np.floor(everything.min(0)).astype(int), 0, side - 1)
    x1, y1 = np.clip(np.ceil(everything.max(0)).astype(int) + 1, 1, side)
    cover = Image.new("L", (int(x1 - x0), int(y1 - y0)))
    brush = ImageDraw.Draw(cover)
    for outline in outlines:
        brush.polygon((outline - (x0, y0)).ravel().tolist(), fill=1)
    rows, columns = np.divmod(np.flatnonzero(np.asarray(cover)), cover.width)
    rows, columns = rows + y0, columns + x0
    m = [[float(v) for v in row] for row in to_body]  # plain numbers keep float32 float32
    px, py = columns.astype(np.float32) + 0.5, rows.astype(np.float32) + 0.5
    depth = m[2][0] * px + m[2][1] * py + m[2][2]
    x = (m[0][0] * px + m[0][1] * py + m[0][2]) / depth
    y = (m[1][0] * px + m[1][1] * py + m[1][2]) / depth
    colour = np.clip(shape.shader(x, y), 0, 255)
    at = rows * side + columns
    for channel in range(3):
        layer[channel].ravel()[at] = colour[channel]
    layer[3].ravel()[at] = 255
    index.ravel()[at] = shape.part


def draw(species: Species, rng: np.random.Generator, size: int) -> tuple[Image.Image, NDArray[np.uint8]]:
    """One photo-like picture of an individual and its part masks.

    Returns (RGB image of size x size, uint8 [size, size] with an index into `PARTS` per pixel). The pose, the
    light and the background come from `rng` alone; only the parts' kinds and the palette come from `species`.
    """
    angle, mirror = np.radians(rng.uniform(-55, 55)), rng.choice([-1.0, 1.0])
    c, s = np.cos(angle), np.sin(angle)
    squash = rng.uniform(0.84, 1.0, 2)
    pose = np.eye(3)
    pose[:2, :2] = np.array([[c, -s], [s, c]]) * (mirror * squash[0], squash[1])
    pose[2, :2] = rng.uniform(-0.11, 0.11, 2)  # perspective: one end a little nearer
    beam = np.radians(rng.uniform(200, 340))  # light from above
    light = (float(np.cos(beam)), float(np.sin(beam)))
    on_body = np.asarray(light) @ pose[:2, :2]
    insect = Individual(species, rng, (float(on_body[0]), float(on_body[1])))
    canvas = size * OVERSAMPLE
    to_canvas = _place(insect.shapes, pose, rng, canvas)
    to_body: Points = np.linalg.inv(to_canvas).astype(np.float64)
    layer = np.zeros((4, canvas, canvas), np.uint8)
    index = np.zeros((canvas, canvas), np.uint8)
    for shape in insect.shapes:
        _paint(shape, to_canvas, to_body, layer, index)
    # Each plane is averaged over black: colours come out multiplied by the cover, as edges need.
    small = np.stack([np.asarray(Image.fromarray(plane).reduce(OVERSAMPLE), np.float32) for plane in layer])
    alpha = small[3] / 255
    step = range(OVERSAMPLE)
    part = index[OVERSAMPLE // 2 :: OVERSAMPLE, OVERSAMPLE // 2 :: OVERSAMPLE]
    top = reduce(np.maximum, [index[i::OVERSAMPLE, j::OVERSAMPLE] for i in step for j in step])
    mask = np.where(alpha >= 0.4, np.where(part > 0, part, top), 0).astype(np.uint8)

    distance = size * rng.uniform(0.012, 0.04)
    soft = ImageFilter.GaussianBlur(size * rng.uniform(0.008, 0.02))
    cover = Image.fromarray(small[3].astype(np.uint8)).filter(soft)
    away = (1, 0, light[0] * distance, 0, 1, light[1] * distance)
    cover = cover.transform(cover.size, Image.Transform.AFFINE, away, Image.Resampling.BILINEAR)
    shadow = np.asarray(cover, np.float32) * (rng.uniform(0.25, 0.5) / 255)
    picture = backdrop(rng, size) * ((1 - shadow) * (1 - alpha)) + small[:3]
    cast = rng.uniform(0.84, 1.14) * rng.uniform(0.96, 1.04, (3, 1, 1)).astype(np.float32)
    line = np.linspace(-1, 1, size, dtype=np.float32)
    fall = 1 + 0.1 * (line[None, :] * light[0] + line[:, None] * light[1])  # brighter towards the light
    picture = np.clip(picture * (cast * fall) + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))), mask
