"""Writes the model of docs/capacity.md, with `python -m benchmarks --report`.

The page has a table of measured figures with their sources. A document of a run in `var/bench`
replaces those that it has; all other figures stay, so that the page can be written anew on any
machine. The tables below are computed from that table and from the assumptions on the page.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
FLEETS = (1_000, 10_000, 100_000)
MOST_BUSY = 0.6
"""The share of a core that a process may use on average: what is left is for bursts."""
DAY_SECONDS = 86_400
# A benchmark itself causes less load.
BUSY_LOAD_OF_A_CORE = 2.0
_MARK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| ([\d,.]+) \|", re.MULTILINE)
Document = Mapping[str, Any]
Figures = Mapping[str, float]
# The figures that a document has, and where.
_SOURCES: Mapping[str, tuple[str, Callable[[Document], float | None]]] = {
    "access_cpu": (
        "processes",
        lambda results: results["posts"]["1 access"]["access_1_cpu_seconds_per_million_values"],
    ),
    "access_memory": (
        "processes",
        lambda results: results["posts"]["1 access"]["access_resident_mebibytes"],
    ),
    "samples_cpu": (
        "processes",
        lambda results: results["posts"]["1 access"][
            "victoriametrics_cpu_seconds_per_million_values"
        ],
    ),
    "polls_cpu": (
        "processes",
        lambda results: (
            results["polls"]["1 access"]["cpu_percent_of_a_core_each"]
            / results["polls"]["1 access"]["agents"]
            * 1_000
        ),
    ),
    "database_cpu": (
        "processes",
        lambda results: results["polls"]["1 access"]["mariadb_cpu_percent_of_a_core"],
    ),
    "rules_cpu": ("alert_rules", lambda results: results["vedette"]["cpu_seconds"]),
    "bytes_duckdb": ("size", lambda results: results["simulated"]["vedette"]),
    "bytes_victoriametrics": ("size", lambda results: results["simulated"]["victoriametrics"]),
    "embedded_cpu": ("fleet_hold", lambda results: results["server_cpu_percent_of_a_core"]),
}


def write(folder: Path) -> None:
    """Write the page with the documents of a folder."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    PAGE.write_text(page(PAGE.read_text("utf-8"), documents), encoding="utf-8")


def page(before: str, documents: Sequence[Document]) -> str:
    """Return the page with new figures, and the tables that follow from them."""
    text = figures(before, documents)
    values = {name: float(number.replace(",", "")) for name, number in _ROW.findall(text)}
    tables = {"fleets": fleets(values), "cost": cost(values)}
    return _MARK.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", text)


def figures(text: str, documents: Sequence[Document]) -> str:
    """Return the page with the figures of documents.

    A quick run, or one on a busy machine, says nothing about capacity.
    """
    usable = {
        document["benchmark"]: document
        for document in documents
        if document["machine"]["load1"] <= BUSY_LOAD_OF_A_CORE * document["machine"]["cpu_count"]
        and "--quick" not in document["command"]
    }
    for name, (benchmark, read) in _SOURCES.items():
        document = usable.get(benchmark)
        value = read(document["results"]) if document else None
        if document and value is not None:
            source = f"`{benchmark}`, {document['started_at'][:10]}"
            row = re.compile(rf"^(\| `{name}` \|) [\d,.]+ (\| .* \|) [^|]* \|$", re.MULTILINE)
            text = row.sub(rf"\g<1> {value:.4g} \g<2> {source} |", text)
    return text


def fleets(values: Figures) -> str:
    """Return the table of what fleets need."""
    needs = [need(values, appliances) for appliances in FLEETS]
    header = ["", *(f"{appliances:,} appliances" for appliances in FLEETS)]
    rows = [[name, *(of_fleet[name] for of_fleet in needs)] for name in needs[0]]
    return _table([header, *rows])


def need(values: Figures, appliances: int) -> dict[str, str]:
    """Return what a fleet needs, by words."""
    rate = samples_rate(values, appliances)
    access, samples, scheduler = cores(values, appliances)
    processes = ceil(access / MOST_BUSY)
    per_day = rate * DAY_SECONDS
    days = values["retention_days"]
    bits = appliances / values["interval_seconds"] * values["post_bytes"] * 8
    return {
        "values a second": f"{rate:,.0f}",
        "active series": f"{appliances * values['series']:,.0f}",
        "posts a second": f"{appliances / values['interval_seconds']:,.0f}",
        "samples, network in": f"{bits / 1e6:,.1f} Mbit/s",
        "`vedette access`, cores": f"{access:,.2f}",
        "`vedette access`, processes": f"{processes:,}",
        "`vedette access`, memory": f"{processes * values['access_memory'] / 1024:,.1f} GiB",
        "sample store, cores": f"{samples:,.2f}",
        "sample store, disk (VictoriaMetrics)": _bytes(
            per_day * days * values["bytes_victoriametrics"]
        ),
        "embedded store instead, disk": _bytes(per_day * days * values["bytes_duckdb"]),
        "`vedette scheduler`, cores for rules": f"{scheduler:,.2f}",
    }


def samples_rate(values: Figures, appliances: int) -> float:
    """Return how many values a fleet sends a second."""
    return appliances * values["series"] / values["interval_seconds"]


def cores(values: Figures, appliances: int) -> tuple[float, float, float]:
    """Return the cores of access processes, of the sample store, and of the rules."""
    millions = samples_rate(values, appliances) / 1e6
    polls = values["polls_cpu"] / 100 * appliances / 1_000
    rules = values["rules_cpu"] / values["interval_seconds"] * appliances / 1_000
    return millions * values["access_cpu"] + polls, millions * values["samples_cpu"], rules


def cost(values: Figures) -> str:
    """Return the table of what fleets cost by the example's prices, a month."""
    rows = [["", "cores", "disk", "a month", "an appliance and month"]]
    for appliances in FLEETS:
        busy = sum(cores(values, appliances)) / MOST_BUSY
        rate = samples_rate(values, appliances)
        disk = rate * DAY_SECONDS * values["retention_days"] * values["bytes_victoriametrics"]
        price = busy * values["core_price"] + disk / 1e9 * values["disk_price"]
        rows.append(
            [
                f"{appliances:,} appliances",
                f"{busy:,.1f}",
                _bytes(disk),
                f"{price:,.0f}",
                f"{price / appliances:,.3f}",
            ]
        )
    return _table(rows)


def _bytes(count: float) -> str:
    terabytes = count / 1e12
    return f"{terabytes:,.2f} TB" if terabytes >= 1 else f"{count / 1e9:,.1f} GB"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "".join(_lines(rows))


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |\n"
        if number == 0:
            yield f"|{' --- |' * len(row)}\n"
