"""The page `docs/metric-map.md`, made from `timeseries/metric_map.toml` by `make generate`."""

from collections.abc import Iterator
from itertools import groupby

from timeseries.metric_map import MetricMapping, Use, all_derived, all_mappings

_HEAD = """# Metrics of other programs

Hosts without our agent send the metrics of Telegraf, collectd, node_exporter, dcgm-exporter, AMD's
exporter or OpenTelemetry's receiver `hostmetrics`. Those in these tables are also stored as
[ours](metrics.md), so that dashboards and rules work. Everything else, and the originals of
Prometheus metrics, is stored under its own name. The file behind this page is
`timeseries/metric_map.toml`.

A *rate* is that of a counter, per second, and starts with the second sample. An *age* is the time
since an instant.
"""
_USES = {Use.VALUE: "", Use.RATE: "rate", Use.AGE: "age"}


def metric_map_page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *_senders(), *_derived()])


def _senders() -> Iterator[str]:
    for sender, mappings in groupby(all_mappings(), key=lambda mapping: mapping.sender):
        yield f"## {sender}\n"
        yield "| metric | of series with | becomes | how | tags |\n| --- | --- | --- | --- | --- |"
        for mapping in mappings:
            yield _row(mapping)
        yield ""


def _row(mapping: MetricMapping) -> str:
    conditions = [f"`{name}={value}`" for name, value in mapping.where.items()]
    # A bar ends a cell, even in code.
    conditions += [
        f"`{name}` not `{pattern.pattern}`".replace("|", "\\|")
        for name, pattern in mapping.skip.items()
    ]
    how = _USES[mapping.use] + ("" if mapping.scale == 1 else f" times {mapping.scale:,g}")
    combined = "" if mapping.combine == "last" else f" ({mapping.combine})"
    tags = [
        f"`{name}`" if name == tag else f"`{name}` as `{tag}`" for name, tag in mapping.tags.items()
    ]
    cells = (
        f"`{mapping.source}`",
        ", ".join(conditions),
        f"`{mapping.metric}`",
        (how + combined).strip(),
        ", ".join(tags),
    )
    return "| " + " | ".join(cells) + " |"


def _derived() -> Iterator[str]:
    yield "## Derived\n"
    yield "Where a sender doesn't send them itself:\n"
    yield "| metric | is |\n| --- | --- |"
    for derived in all_derived():
        plus = [*derived.plus, *(f"{name} (if any)" for name in derived.optional)]
        whole = " + ".join([f"{derived.constant:g}"] * bool(derived.constant) + plus)
        whole += "".join(f" - {name}" for name in derived.minus)
        text = f"100 * {derived.percent} / ({whole})" if derived.percent else whole
        yield f"| `{derived.to}` | {text} |"
    yield ""
