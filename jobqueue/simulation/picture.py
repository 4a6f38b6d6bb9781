"""A picture of scenarios as SVG: allocated GPUs and waiting jobs over time."""

from collections.abc import Sequence
from html import escape

from core.quantities import format_duration
from jobqueue.simulation.results import Results

WIDTH, LEFT, PANEL, _GAP, TOP = 900, 70, 200, 50, 30
GRAY = "#7a8290"
_TITLE = "Allocated GPUs and waiting jobs of each scenario over time"
# Distinct in print and for people who confuse red and green; those of Okabe and Ito.
COLORS = (GRAY, "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def picture(results: Sequence[tuple[str, Results]], *, is_part_of_page: bool = False) -> str:
    """Return the picture, today's scenario in gray; as part of a page it has the page's colors."""
    longest = max(1.0, *(outcome.seconds for _, outcome in results))
    most_waiting = max(1.0, *(max(outcome.waiting_over_time) for _, outcome in results))
    allocated_at, waiting_at = TOP, TOP + PANEL + _GAP
    legend_at = waiting_at + PANEL + 50
    height = legend_at + 22 * len(results) + 10
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'fill="currentColor" font-family="sans-serif" font-size="13"'
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{_TITLE}">',
        *([] if is_part_of_page else [background]),
        *frame("Allocated GPUs", allocated_at, "100 %", "0 %"),
        *frame("Waiting jobs", waiting_at, f"{most_waiting:.0f}", "0"),
        (
            f'<text x="{WIDTH - 20}" y="{waiting_at + PANEL + 18}" text-anchor="end" '
            f'fill="{GRAY}">{format_duration(longest)}</text>'
        ),
    ]
    for number, (name, outcome) in enumerate(results):
        color, label = COLORS[number % len(COLORS)], escape(name.replace("_", " "))
        width = (WIDTH - LEFT - 20) * outcome.seconds / longest
        parts += [
            line(outcome.allocated_over_time, 1.0, allocated_at, width, color),
            line(outcome.waiting_over_time, most_waiting, waiting_at, width, color),
            (
                f'<rect x="{LEFT}" y="{legend_at + 22 * number}" width="22" height="4" '
                f'fill="{color}"/>'
            ),
            f'<text x="{LEFT + 32}" y="{legend_at + 22 * number + 7}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def frame(title: str, top: int, highest: str, lowest: str) -> list[str]:
    """Return the axes of a panel with its title and the labels of its upper and lower end."""
    right, bottom = WIDTH - 20, top + PANEL
    return [
        f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{title}</text>',
        (
            f'<path d="M{LEFT} {top}H{right}M{LEFT} {top + PANEL // 2}H{right}" '
            f'stroke="{GRAY}" stroke-opacity="0.3" fill="none"/>'
        ),
        f'<path d="M{LEFT} {top}V{bottom}H{right}" stroke="{GRAY}" fill="none"/>',
        f'<text x="{LEFT - 8}" y="{top + 5}" text-anchor="end" fill="{GRAY}">{highest}</text>',
        f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end" fill="{GRAY}">{lowest}</text>',
    ]


def line(values: Sequence[float], highest: float, top: int, width: float, color: str) -> str:
    """Return the line of values in a panel, which are evenly distributed over its width."""
    step = width / len(values)
    points = " ".join(
        f"{LEFT + step * (index + 0.5):.1f},{top + PANEL * (1 - min(value / highest, 1)):.1f}"
        for index, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.8"/>'
