"""Writes docs/benchmarks.md from the documents of a run: `python -m benchmarks.report [FOLDER]`.

The page holds measured figures and what they are of, and no others.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.agent_beside_collectd import CPU
from benchmarks.ingest import CPU as INGEST_CPU
from benchmarks.processes import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "var" / "bench"
CONTENDERS = {
    "agent": "agent, as collectd reads, to a gateway",
    "agent_to_sink": "the same, to a sink",
    "agent_defaults": "agent, host plugins at their defaults",
    "agent_as_enrolled": "agent, all plugins, as after enrollment",
    "collectd": "collectd 5.12 with write_http, to a sink",
    "psutil_loop": "bare psutil loop, which sends nothing",
}
HEAD = """# Benchmarks

What was measured, where, and with which command; [benchmarks/README.md](../benchmarks/README.md)
says how. `python -m benchmarks.report` writes the sections of the documents in `var/bench`, after
`make bench`, and leaves the others. The peers of a section ran in the same run on the same machine.
"""
LOSSES = {
    "agent_buffer": "agent's buffer",
    "influxdb_client_batching": "influxdb-client's batching WriteApi",
}

LOADS = {"large": "Batches of 5,000 lines", "small": "An appliance's 18 lines at a time"}
SERVERS = {
    "vedette": "Vedette on DuckDB",
    "vedette_unbatched": "Vedette without batching of small posts",
    "influxdb": "InfluxDB 1.6",
    "victoriametrics": "VictoriaMetrics",
}
STORES = {
    "duckdb": "DuckDB",
    "influxdb": "InfluxDB 1.6 by InfluxQL",
    "influxdb_store": "through our interface",
    "victoriametrics": "VictoriaMetrics by MetricsQL",
    "victoriametrics_store": "through our interface",
}
QUESTIONS = {
    "fleet": "mean utilization of a tenant's 400 GPUs, 6 h by the minute",
    "appliance": "raw utilization of 8 GPUs, 1 h",
    "latest": "latest temperature of every GPU",
    "p95": "p95 of power by appliance and day, the whole fleet, 1 h",
    "p95_day": "the same of one tenant, 24 h",
}
# A benchmark itself causes less load.
BUSY_LOAD_OF_A_CORE = 2.0
TUNNEL_FIGURES = {
    "round_trip_milliseconds": "WebSocket, there and back, ms",
    "request_milliseconds": "request, ms",
    "download_mebibytes_per_second": "download, MiB/s",
    "upload_mebibytes_per_second": "upload, MiB/s",
    "download_near_cpu_seconds_per_gibibyte": "CPU of the user's end, s per GiB of download",
    "download_far_cpu_seconds_per_gibibyte": "CPU of the appliance's end, s per GiB of download",
    "upload_near_cpu_seconds_per_gibibyte": "CPU of the user's end, s per GiB of upload",
    "upload_far_cpu_seconds_per_gibibyte": "CPU of the appliance's end, s per GiB of upload",
}
TITLES = {
    "idle": "An idle server",
    "hostile": "Beside a hostile tenant",
    "slow_receivers": "Beside slow receivers",
    "size": "Bytes of a value",
    "month": "Queries over 30 days",
    "usage": "Usage ledger",
    "backtest": "Backtest",
    "placement": "Placement",
    "polls": "10,000 agents that poll",
    "start": "Submit to start",
    "follow": "Following jobs",
}
_PROMISE = ("promise", "at most", "measured", "kept")

Document = Mapping[str, Any]


def page(documents: Mapping[str, Document], before: str = "") -> str:
    """Return the page with new documents; the other sections of the page before remain."""
    new = {
        name: SECTIONS.get(name, figures_of)(document).rstrip()
        for name, document in documents.items()
    }
    sections = {_heading(text): text for text in re.split(r"^(?=## )", before, flags=re.MULTILINE)}
    former_promises = sections.pop("Promises", "")
    sections.pop(_heading(HEAD), None)
    sections |= {_heading(text): text for text in new.values()}
    parts = [HEAD, promises(documents, former_promises), *sections.values()]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _heading(section: str) -> str:
    return section.partition("\n")[0].strip("# ")


def promises(documents: Mapping[str, Document], before: str = "") -> str:
    """Return the promises of all documents, and those of the section before."""
    rows = {
        cells[0]: cells
        for line in before.splitlines()[4:]
        if len(cells := [cell.strip() for cell in line.strip("| ").split(" | ")]) == len(_PROMISE)
    }
    for document in documents.values():
        for promise in document["promises"]:
            rows[promise["name"]] = [
                promise["name"],
                f"{shown(promise['bound'])} {promise['unit']}",
                f"{shown(promise['measured'])} {promise['unit']}",
                "yes" if promise["is_kept"] else "**no**",
            ]
    return f"## Promises\n\n{_table(_PROMISE, rows.values())}"


def figures_of(document: Document) -> str:
    """Return the section of a benchmark that has no section of its own form."""
    rows = [(name, shown(value)) for name, value in _leaves(document["results"])]
    settings = ", ".join(f"{name} {shown(value)}" for name, value in _leaves(document["settings"]))
    title = TITLES.get(document["benchmark"], _words(document["benchmark"]).capitalize())
    return f"## {title}\n\n{_origin(document)} {settings}.\n\n{_table(('', ''), rows)}"


def _leaves(tree: Mapping[str, Any], *path: str) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of a document with their names; readings in lists are left out."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, *path, _words(name))
        elif value is None or isinstance(value, int | float):
            yield ", ".join([*path, _words(name)]), value


def _words(name: str) -> str:
    return name.replace("_", " ")


def beside_collectd(document: Document) -> str:
    """Return the section on what reading a host costs."""
    settings, results = document["settings"], document["results"]
    rows = []
    for name, title in CONTENDERS.items():
        figures, ratios = results["medians"][name], results["ratios_to_collectd"].get(name, {})
        rows.append(
            (
                title,
                shown(figures["cpu_percent_of_a_core"]),
                shown(1.0 if name == "collectd" else ratios.get(CPU)),
                shown(figures["resident_mebibytes"]),
                shown(figures["proportional_mebibytes"]),
                shown(figures["samples_per_second"]),
                shown(figures["voluntary_switches_per_second"]),
                shown(figures["sent_body_bytes_per_second"]),
            )
        )
    columns = (
        "process",
        "CPU, % of a core",
        "times collectd",
        "RSS, MiB",
        "PSS, MiB",
        "samples/s",
        "wake-ups/s",
        "body bytes/s",
    )
    return (
        "## Reading a host every second\n\n"
        f"{_origin(document)} Medians of {settings['repetitions']} repetitions of "
        f"{settings['window_seconds']:.0f} s after {settings['warm_up_seconds']:.0f} s, all "
        "processes at once.\n\n"
        f"{_table(columns, rows)}\n"
        "RSS and CPU are those of the process and its children. A dash is what nobody counts.\n"
    )


def outage(document: Document) -> str:
    """Return the section on the week without the portal."""
    settings, results = document["settings"], document["results"]
    week, played = results["week"], results["played"]
    part = " Not the whole week was played: figures are in proportion." * bool(
        settings["is_extrapolated"]
    )
    rows = [
        ("points, samples", f"{week['points']:,}, {week['samples']:,}"),
        ("lines, plain", f"{shown(week['plain_mebibytes'])} MiB"),
        ("on disk", f"{shown(week['disk_mebibytes'])} MiB"),
        ("of the default bound", f"{shown(week['share_of_the_bound'])}"),
        ("a point, a sample", f"{week['bytes_per_point']} B, {week['bytes_per_sample']} B"),
        ("points dropped", f"{played['dropped_points']:,}"),
        ("CPU time of an append", f"{shown(played['append_milliseconds'])} ms"),
    ]
    text = (
        "## A week without the portal\n\n"
        f"{_origin(document)} Eight busy GPUs with 144 NVLinks, 96 cores, read every "
        f"{settings['interval_seconds']:.0f} s: {played['points'] // played['ticks']} points a "
        f"tick.{part}\n\n{_table(('week', ''), rows)}\n"
    )
    return f"{text}{_recovery(results['recovery'])}\n{_loss(results['loss'])}"


def readings(document: Document) -> str:
    """Return the section on what one reading of each plugin costs."""
    rows: list[tuple[str, ...]] = []
    for name, figures in document["results"].items():
        if "absent" in figures:
            rows.append((f"`{name}`", f"not here: {figures['absent']}", "", "", "", ""))
            continue
        keys = (
            "gather_paced_microseconds",
            "gather_hot_microseconds",
            "points",
            "samples",
            "line_bytes",
        )
        rows.append((f"`{name}`", *(shown(figures.get(key)) for key in keys)))
    columns = ("plugin", "paced, µs of CPU", "hot, µs of CPU", "points", "samples", "line bytes")
    return (
        "## One reading of each plugin\n\n"
        f"{_origin(document)} `nothing` is an empty reading.\n\n{_table(columns, rows)}"
    )


def taken_in(document: Document) -> str:
    """Return the section on what ingest costs."""
    parts = []
    for load, title in LOADS.items():
        results = document["results"][load]
        rows = [
            (
                SERVERS[name],
                *(
                    shown(figures[key])
                    for key in (
                        "values_per_second",
                        "posts_per_second",
                        "cpu_seconds_per_million_values",
                    )
                ),
                shown(
                    1.0 if name == "influxdb" else results["ratios_to_influxdb"][name][INGEST_CPU]
                ),
                *(
                    shown(figures[key])
                    for key in (
                        "ack_milliseconds_p50",
                        "ack_milliseconds_p99",
                        "disk_bytes_per_value",
                        "resident_mebibytes",
                    )
                ),
            )
            for name, figures in results["medians"].items()
        ]
        columns = (
            "server",
            "values/s",
            "posts/s",
            "CPU s per million values",
            "times InfluxDB",
            "ack, ms, p50",
            "p99",
            "disk bytes/value",
            "RSS, MiB",
        )
        parts.append(f"{title}, {results['bodies']['posts']:,} posts:\n\n{_table(columns, rows)}")
    settings = document["settings"]
    return (
        "## Ingest through HTTP\n\n"
        f"{_origin(document)} {settings['appliances']:,} appliances with 8 GPUs; medians of "
        f"{settings['repetitions']} repetitions, each server alone and anew. CPU time goes on "
        f"counting for {settings['settle_seconds']:.0f} s after the last answer, the driver's is "
        f"not in it. VictoriaMetrics acknowledges before its samples are on disk.\n\n"
        + "\n".join(parts)
    )


def asked(document: Document) -> str:
    """Return the section on queries."""
    results, history = document["results"], document["settings"]["history"]
    rows = [
        (
            QUESTIONS[name],
            *(
                f"{shown(store[name]['milliseconds'])} ({shown(store[name]['milliseconds_p95'])})"
                for store in results.values()
            ),
        )
        for name in QUESTIONS
    ]
    columns = ("question", *(STORES[name] for name in results))
    return (
        "## Queries\n\n"
        f"{_origin(document)} {history['appliances']:,} appliances with 8 GPUs for "
        f"{history['minutes']} minutes in steps of {history['step_ns'] // 10**9} s, one tenant of "
        f"50 for {history['tenant_hours']} h with a reading a minute before that; "
        f"{len(document['settings']['fields'])} fields. Milliseconds, median (p95).\n\n"
        f"{_table(columns, rows)}"
    )


def held(document: Document) -> str:
    """Return the section on the fleet that is held."""
    settings, results = document["settings"], document["results"]
    rows = [
        (
            "posts a second, due and acknowledged",
            f"{shown(settings['due_posts_per_second'])}, {shown(results['posts_per_second'])}",
        ),
        ("values a second, due", shown(settings["due_values_per_second"])),
        ("posts refused", f"{results['refused']:,} of {results['posts']:,}"),
        (
            "acknowledged after, p50, p99, longest",
            ", ".join(
                f"{shown(results[f'ack_milliseconds_{name}'])} ms" for name in ("p50", "p99", "max")
            ),
        ),
        ("server's CPU", f"{shown(results['server_cpu_percent_of_a_core'])} % of a core"),
        ("server's RSS", f"{shown(results['server_resident_mebibytes'])} MiB"),
        ("file grows", f"{shown(results['file_mebibytes_per_minute'])} MiB a minute"),
        (
            "driver's lateness, p99",
            f"{shown(results['driver_lateness_milliseconds_p99'])} ms",
        ),
        ("fell behind the schedule", results["fell_behind"]),
    ]
    return (
        "## A fleet held\n\n"
        f"{_origin(document)} {settings['appliances']:,} appliances with 8 GPUs every "
        f"{settings['interval_seconds']} s, held for {settings['seconds']} s by one embedded "
        f"server, driver on the same machine.\n\n{_table(('', ''), rows)}"
    )


def shown(value: float | None) -> str:
    """Return a figure for people: three digits, thousands set apart; a dash for none."""
    if value is None:
        return "-"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded.is_integer() else f"{rounded:g}"


def _recovery(recovery: Mapping[str, Document]) -> str:
    titles = {"agent_limit": "the agent's own limit", "no_limit": "no limit"}
    rows = [
        (
            titles[name],
            f"{shown(figures['slice_seconds'])} s",
            shown(figures["points_per_second"]),
            f"{shown(figures['whole_backlog_hours'])} h",
            shown(figures["live_delay_seconds_p50"]),
            shown(figures["live_delay_seconds_p99"]),
            f"{shown(figures['sender_cpu_percent'])} %",
            f"{shown(figures['server_cpu_percent'])} %",
        )
        for name, figures in recovery.items()
    ]
    columns = (
        "drain at",
        "measured for",
        "points/s",
        "whole backlog, computed",
        "delay of live samples, s, p50",
        "p99",
        "sender's CPU",
        "server's CPU",
    )
    opened = shown(recovery["agent_limit"]["open_seconds"])
    return f"Opening the full buffer took {opened} s.\n\n{_table(columns, rows)}"


def _loss(loss: Mapping[str, Document]) -> str:
    rows = [
        (LOSSES[name], f"{figures['given_points']:,}", f"{figures['lost_points']:,}")
        for name, figures in loss.items()
    ]
    return (
        "Killed (SIGKILL) while no portal answered, started again when it did:\n\n"
        f"{_table(('sender', 'points given', 'points lost'), rows)}\n"
        "The agent loses what was not flushed yet, no more than its flush interval.\n"
    )


def _origin(document: Document) -> str:
    machine = document["machine"]
    gibibytes = machine["memory_bytes"] / 2**30
    load = machine["load1"]
    is_busy = load > BUSY_LOAD_OF_A_CORE * machine["cpu_count"]
    busy = f" The machine was busy with other work (load of {shown(load)})." * is_busy
    return (
        f"{document['started_at'][:10]}, {machine['cpu_count']} cores of {machine['cpu_model']}, "
        f"{gibibytes:.0f} GiB, Linux {machine['kernel']}, Python {machine['python']}; "
        f"`{document['command'].partition(' --output')[0]}`.{busy}"
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(columns)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def accounts(document: Document) -> str:
    """Return the section on pages of people and accounts."""
    settings = document["settings"]
    rows = [
        (
            name,
            shown(figures["milliseconds"]),
            shown(figures["milliseconds_p95"]),
            shown(figures["statements"]),
            shown(figures["statements_of_a_small_database"]),
        )
        for name, figures in document["results"].items()
    ]
    columns = ("request", "ms, median", "p95", "statements", "of a small database")
    return (
        "## Accounts on MariaDB\n\n"
        f"{_origin(document)} One tenant with {settings['appliances']:,} appliances and "
        f"{settings['entries']:,} entries in its audit log; {settings['runs']} runs of each. The "
        "portal's whole answer without the network; signing in includes argon2id.\n\n"
        f"{_table(columns, rows)}"
    )


def tunnelled(document: Document) -> str:
    """Return the section on web pages of jobs."""
    settings, results = document["settings"], document["results"]
    ways, beside = results["medians"], results["tunnel_beside"]
    rows = [
        (
            title,
            *(shown(ways[way][figure]) for way in ways),
            *(shown(beside[way][figure]) for way in beside),
        )
        for figure, title in TUNNEL_FIGURES.items()
    ]
    return (
        "## Web pages of jobs\n\n"
        f"{_origin(document)} A web server on the same machine, directly, through `ssh -L` of "
        "OpenSSH, and through portal, tunnel and agent, in turns; both have the cipher "
        f"{settings['cipher']}. Medians of {settings['repetitions']} repetitions of "
        f"{settings['round_trips']} round trips of a WebSocket, {settings['requests']} requests "
        f"over one connection, and {settings['mebibytes']} MiB each way.\n\n"
        f"{_table(('', *ways, *(f'tunnel, times {way}' for way in beside)), rows)}\n"
    )


SECTIONS: dict[str, Callable[[Document], str]] = {
    "agent_beside_collectd": beside_collectd,
    "partition": outage,
    "plugins": readings,
    "ingest": taken_in,
    "queries": asked,
    "accounts": accounts,
    "fleet_hold": held,
    "tunnel": tunnelled,
}


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    PAGE.write_text(page(documents, PAGE.read_text("utf-8")), encoding="utf-8")
    print(f"{PAGE} is written.")


if __name__ == "__main__":
    main()
