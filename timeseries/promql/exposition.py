"""The newest samples as text that Prometheus scrapes, for its federation."""

from collections.abc import Sequence

from timeseries.promql.aggregation import number_text
from timeseries.promql.selection import Matchers, Source
from timeseries.promql.values import LOOKBACK_MS, NAME_LABEL, Grid, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(source: Source, selectors: Sequence[Matchers], *, at_ms: int) -> str:
    """Return the newest sample of each series that matches any selector, sorted by metric."""
    lines_of: dict[str, set[str]] = {}
    for matchers in selectors:
        samples = source.samples(matchers, start_ms=at_ms - LOOKBACK_MS, end_ms=at_ms)
        index, is_present = samples.newest(Grid(at_ms, 0, 1))
        for row, labels in enumerate(samples.labels):
            if is_present[row, 0]:
                at = index[row, 0]
                value = number_text(samples.values[at])
                line = f"{_series(labels)} {value} {samples.times_ms[at]}\n"
                lines_of.setdefault(labels[NAME_LABEL], set()).add(line)
    return "".join(
        text
        for name, lines in sorted(lines_of.items())
        for text in (f"# TYPE {name} untyped\n", *sorted(lines))
    )


def _series(labels: Labels) -> str:
    pairs = ",".join(
        f'{name}="{text.translate(_ESCAPES)}"'
        for name, text in sorted(labels.items())
        if name != NAME_LABEL
    )
    return f"{labels[NAME_LABEL]}{{{pairs}}}" if pairs else labels[NAME_LABEL]
