"""A picture of scenarios as SVG: allocated GPUs and waiting jobs over time."""

from collections.abc import Sequence
from html import escape

from core.quantities import format_duration
from jobqueue.simulation.results import Results

_WIDTH, _LEFT, _PANEL, _GAP, _TOP = 900, 70, 200, 50, 30
_GRAY = "#7a8290"
_TITLE = "Allocated GPUs and waiting jobs of each scenario over time"
# Distinct in print and for people who confuse red and green; those of Okabe and Ito.
_COLORS = (_GRAY, "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def picture(results: Sequence[tuple[str, Results]], *, is_part_of_page: bool = False) -> str:
    """Return the picture, today's scenario in gray; as part of a page it has the page's colors."""
    longest = max(1.0, *(outcome.seconds for _, outcome in results))
    most_waiting = max(1.0, *(max(outcome.waiting_over_time) for _, outcome in results))
    allocated_at, waiting_at = _TOP, _TOP + _PANEL + _GAP
    legend_at = waiting_at + _PANEL + 50
    height = legend_at + 22 * len(results) + 10
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    font = 'fill="currentColor" font-family="sans-serif" font-size="13"'
    background = f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{_TITLE}">',
        *([] if is_part_of_page else [background]),
        *_frame("Allocated GPUs", allocated_at, "100 %", "0 %"),
        *_frame("Waiting jobs", waiting_at, f"{most_waiting:.0f}", "0"),
        (
            f'<text x="{_WIDTH - 20}" y="{waiting_at + _PANEL + 18}" text-anchor="end" '
            f'fill="{_GRAY}">{format_duration(longest)}</text>'
        ),
    ]
    for number, (name, outcome) in enumerate(results):
        color, label = _COLORS[number % len(_COLORS)], escape(name.replace("_", " "))
        width = (_WIDTH - _LEFT - 20) * outcome.seconds / longest
        parts += [
            _line(outcome.allocated_over_time, 1.0, allocated_at, width, color),
            _line(outcome.waiting_over_time, most_waiting, waiting_at, width, color),
            (
                f'<rect x="{_LEFT}" y="{legend_at + 22 * number}" width="22" height="4" '
                f'fill="{color}"/>'
            ),
            f'<text x="{_LEFT + 32}" y="{legend_at + 22 * number + 7}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(title: str, top: int, highest: str, lowest: str) -> list[str]:
    right, bottom = _WIDTH - 20, top + _PANEL
    return [
        f'<text x="{_LEFT}" y="{top - 10}" font-weight="bold">{title}</text>',
        (
            f'<path d="M{_LEFT} {top}H{right}M{_LEFT} {top + _PANEL // 2}H{right}" '
            f'stroke="{_GRAY}" stroke-opacity="0.3" fill="none"/>'
        ),
        f'<path d="M{_LEFT} {top}V{bottom}H{right}" stroke="{_GRAY}" fill="none"/>',
        f'<text x="{_LEFT - 8}" y="{top + 5}" text-anchor="end" fill="{_GRAY}">{highest}</text>',
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end" fill="{_GRAY}">{lowest}</text>',
    ]


def _line(values: Sequence[float], highest: float, top: int, width: float, color: str) -> str:
    step = width / len(values)
    points = " ".join(
        f"{_LEFT + step * (index + 0.5):.1f},{top + _PANEL * (1 - min(value / highest, 1)):.1f}"
        for index, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.8"/>'
