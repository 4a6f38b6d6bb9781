"""A picture of a simulated market as SVG: the share of work on bad providers over time."""

from collections.abc import Mapping

from jobqueue.simulation.picture import COLORS, GRAY, LEFT, PANEL, TOP, WIDTH, frame, line
from marketplace.simulation.market import MarketResults

_TITLE = "Share of work on bad providers over time"


def market_picture(results: Mapping[str, MarketResults]) -> str:
    """Return the picture, with a line for each strategy."""
    series = {name: _weekly(result.bad_share) for name, result in results.items()}
    highest = max(0.01, *(max(values) for values in series.values()))
    legend_at = TOP + PANEL + 50
    height = legend_at + 22 * len(series) + 10
    days = max(len(result.bad_share) for result in results.values())
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'fill="currentColor" font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{_TITLE}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *frame(_TITLE, TOP, f"{100 * highest:.0f} %", "0 %"),
        (
            f'<text x="{WIDTH - 20}" y="{TOP + PANEL + 18}" text-anchor="end" fill="{GRAY}">'
            f"{days} days</text>"
        ),
    ]
    for number, (name, values) in enumerate(series.items()):
        color, at = COLORS[number % len(COLORS)], legend_at + 22 * number
        parts += [
            line(values, highest, TOP, WIDTH - LEFT - 20, color),
            f'<rect x="{LEFT}" y="{at}" width="22" height="4" fill="{color}"/>',
            f'<text x="{LEFT + 32}" y="{at + 7}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _weekly(values: list[float]) -> list[float]:
    """Return the means of weeks: days differ by chance."""
    weeks = [values[start : start + 7] for start in range(0, len(values), 7)]
    return [sum(week) / len(week) for week in weeks]
