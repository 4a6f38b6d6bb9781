"""Writes docs/benchmarks.md from the documents of a run, as `python -m benchmarks --report`.

The page has measured figures and what they are of, and no others. Results that are figures by name
are rows of a table; results of several contenders, with the same figures each, are a table of
their own.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared import capacity

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
FOLDER = Path("var/bench")
HEAD = """# Benchmarks

What was measured, where, and with which command; [benchmarks/README.md](../benchmarks/README.md)
says how. `python -m benchmarks --report` writes the sections of the documents in `var/bench`, after
`make bench`, and leaves the others. The peers of a section ran in the same run on the same machine.
"""
TITLES = {
    "agent_beside_collectd": "Reading a host every second",
    "partition": "A week without the portal",
    "relay": "A relay without the portal for an hour",
    "ingest": "Ingest through HTTP",
    "exporters": "Metrics of Prometheus and OpenTelemetry",
    "accounts": "Accounts on MariaDB",
    "fleet_hold": "A fleet held",
    "idle": "An idle server",
    "hostile": "Beside a hostile tenant",
    "size": "Bytes of a value",
    "month": "Queries over 30 days",
    "start": "Submit to start",
    "follow": "Following jobs",
    "processes": "Processes beside each other",
    "logs": "Searching logs",
}
_PROMISE = ("promise", "at most", "measured", "kept")

Document = Mapping[str, Any]


def write(folder: Path) -> None:
    """Write the page."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    PAGE.write_text(page(documents, PAGE.read_text("utf-8")), encoding="utf-8")
    capacity.write(folder)


def page(documents: Iterable[Document], before: str = "") -> str:
    """Return the page with new documents; the other sections of the page before remain."""
    sections = {_heading(text): text for text in re.split(r"^(?=## )", before, flags=re.MULTILINE)}
    former_promises = sections.pop("Promises", "")
    sections.pop(_heading(HEAD), None)
    documents = list(documents)
    sections |= {_heading(text): text for text in map(section, documents)}
    parts = [HEAD, promises(documents, former_promises), *sections.values()]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _heading(text: str) -> str:
    return text.partition("\n")[0].strip("# ")


def promises(documents: Iterable[Document], before: str = "") -> str:
    """Return the promises of all documents, and those of the section before."""
    rows = {
        cells[0]: cells
        for line in before.splitlines()[4:]
        if len(cells := [cell.strip() for cell in line.strip("| ").split(" | ")]) == len(_PROMISE)
    }
    for document in documents:
        for promise in document["promises"]:
            rows[promise["name"]] = [
                promise["name"],
                f"{shown(promise['bound'])} {promise['unit']}",
                f"{shown(promise['measured'])} {promise['unit']}",
                "yes" if promise["is_kept"] else "**no**",
            ]
    return f"## Promises\n\n{_table(_PROMISE, rows.values())}"


def section(document: Document) -> str:
    """Return the section of a benchmark."""
    name = document["benchmark"]
    title = TITLES.get(name, _words(name).capitalize())
    settings = ", ".join(
        f"{_words(key)} {shown(value)}" for key, value in _figures(document["settings"])
    )
    tables = "\n".join(_tables(document["results"]))
    return f"## {title}\n\n{_origin(document)} {settings}.\n\n{tables}"


def _tables(results: Mapping[str, Any], *path: str) -> Iterator[str]:
    """Yield tables of results; readings in lists are left out."""
    caption = f"{', '.join(path)}:\n\n" if path else ""
    if figures := _figures(results):
        yield caption + _table(("", ""), ((_words(name), shown(value)) for name, value in figures))
    groups = _groups(results)
    if any(_figures(group) for group in groups.values()):
        names = list(
            dict.fromkeys(name for group in groups.values() for name, _ in _figures(group))
        )
        rows = (
            (_words(key), *(shown(group.get(name)) for name in names))
            for key, group in groups.items()
            if _figures(group)
        )
        yield caption + _table(("", *map(_words, names)), rows)
        groups = {key: _groups(group) for key, group in groups.items()}
    for name, group in groups.items():
        yield from _tables(group, *path, _words(name))


def _groups(results: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group for name, group in results.items() if isinstance(group, Mapping)}


def _figures(results: Mapping[str, Any]) -> list[tuple[str, float | str | None]]:
    return [
        (name, value)
        for name, value in results.items()
        if value is None or isinstance(value, int | float | str)
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")


def shown(value: float | str | None) -> str:
    """Return a figure for people: three digits, thousands set apart; a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded.is_integer() else f"{rounded:g}"


def _origin(document: Document) -> str:
    machine = document["machine"]
    gibibytes, load = machine["memory_bytes"] / 2**30, machine["load1"]
    is_busy = load > capacity.BUSY_LOAD_OF_A_CORE * machine["cpu_count"]
    busy = f" The machine was busy with other work (load of {shown(load)})." * is_busy
    return (
        f"{document['started_at'][:10]}, {machine['cpu_count']} cores of {machine['cpu_model']}, "
        f"{gibibytes:.0f} GiB, Linux {machine['kernel']}, Python {machine['python']}; "
        f"`python -m benchmarks {document['benchmark']}`.{busy}"
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(columns)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
