"""Small SVG charts, drawn as text: the report needs no plotting library and stays sharp at any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

# Readable beside each other, also with colour-blind eyes and on both backgrounds.
COLOURS = ("#3b7dd8", "#e07b39", "#3a9d5d", "#b04fb3", "#c9a227", "#6b7280")
_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40


def line_chart(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    x_label: str,
    mark: float | None = None,
    span: tuple[float, float] = (0, 1),
) -> str:
    """Percentages over x in `span`; `mark` is a vertical line."""

    def place(value: float) -> float:
        return _x((value - span[0]) / (span[1] - span[0]))

    parts = [_axes(x_label, span=span)]
    if mark is not None:
        parts.append(
            f'<line class="mark" x1="{place(mark):.1f}" x2="{place(mark):.1f}" y1="{_y(100)}" y2="{_y(0)}">'
            f"<title>threshold {mark:g}</title></line>"
        )
    coloured = list(zip(COLOURS, lines.items(), strict=False))
    for colour, (name, values) in reversed(coloured):  # where lines meet, the first is seen
        points = " ".join(f"{place(a):.1f},{_y(b):.1f}" for a, b in zip(x, values, strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}, best {max(values):.1f} %</title></polyline>"
        )
    return _svg(parts) + _legend(list(lines))


def histogram(values: Sequence[float], bins: int, x_label: str, mark: float | None = None) -> str:
    """Share in percent of values in [0, 1] in each of equal bins."""
    counts = [0] * bins
    for value in values:
        counts[min(int(value * bins), bins - 1)] += 1
    shares = [100 * count / max(1, len(values)) for count in counts]
    top = 5 * math.ceil(max(shares) / 5 + 0.1)  # five whole numbers on the axis
    parts = [_axes(x_label, top)]
    for position, share in enumerate(shares):
        x0, x1 = _x(position / bins), _x((position + 1) / bins)
        y = _y(100 * share / top)
        parts.append(
            f'<rect x="{x0 + 1:.1f}" y="{y:.1f}" width="{x1 - x0 - 2:.1f}" height="{_y(0) - y:.1f}" '
            f'fill="{COLOURS[0]}"><title>{position / bins:.2f} to {(position + 1) / bins:.2f}: '
            f"{counts[position]} images, {share:.1f} %</title></rect>"
        )
    if mark is not None:
        parts.append(
            f'<line class="mark" x1="{_x(mark):.1f}" x2="{_x(mark):.1f}" y1="{_y(100)}" y2="{_y(0)}"/>'
        )
    return _svg(parts)


def bar_chart(shares: Mapping[str, float]) -> str:
    """Horizontal bars of named percentages."""
    height, label_width = 30, 120
    parts = []
    for row, (name, share) in enumerate(shares.items()):
        y = row * height + 6
        width = (_WIDTH - label_width - 70) * share / 100
        parts.append(
            f'<text x="{label_width - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{label_width}" y="{y}" width="{max(width, 1):.1f}" height="{height - 10}" '
            f'fill="{COLOURS[row % len(COLOURS)]}"/>'
            f'<text x="{label_width + width + 6:.1f}" y="{y + 14}">{share:.1f} %</text>'
        )
    return _svg(parts, height * len(shares) + 6)


def _x(value: float) -> float:
    return _LEFT + value * (_WIDTH - _LEFT - _RIGHT)


def _y(percent: float) -> float:
    return _TOP + (1 - percent / 100) * (_HEIGHT - _TOP - _BOTTOM)


def _axes(x_label: str, top: float = 100, span: tuple[float, float] = (0, 1)) -> str:
    parts = []
    for tick in range(0, 101, 20):
        parts.append(
            f'<line class="grid" x1="{_x(0)}" x2="{_x(1)}" y1="{_y(tick):.1f}" y2="{_y(tick):.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{_y(tick) + 4:.1f}" text-anchor="end">{top * tick / 100:.0f}</text>'
        )
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        value = span[0] + share * (span[1] - span[0])
        parts.append(
            f'<text x="{_x(share):.1f}" y="{_y(0) + 16:.1f}" text-anchor="middle">{round(value, 6):g}</text>'
        )
    middle = (_x(0) + _x(1)) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _svg(parts: Sequence[str], height: int = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(COLOURS, names, strict=False)
    )
    return f'<div class="legend">{"".join(items)}</div>'
