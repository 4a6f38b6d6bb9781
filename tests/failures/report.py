"""Writes docs/failures.md from the documents of the scenarios, when there is one of each."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.failures.run import GOAL_SECONDS
from tests.failures.scenarios import SCENARIOS, Scenario

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
HEAD = Path(__file__).with_name("page_head.md")
_ACCIDENTS = {
    r"\S+Z (WARNING|ERROR) +\S+ \S+: ": "",
    r"/\w+/v[a-z]+-\w+(?=/)": "",
    r"127\.0\.0\.1:\d+": "HOST",
    r"[0-9a-f]{8}-[0-9a-f-]{27}": "ID",
}
SEEN = "Operators see this in `/readyz` of a portal, or else as the newest warning in a log."
Document = Mapping[str, Any]


def write(folder: Path) -> list[str]:
    """Write the page; return the names of scenarios without a document, for which it is not."""
    paths = {name: folder / f"{name}.json" for name in SCENARIOS}
    missing = [name for name, path in paths.items() if not path.exists()]
    if not missing:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths.values()]
        PAGE.write_text(page(documents), encoding="utf-8")
    return missing


def page(documents: Sequence[Document]) -> str:
    """Return the page."""
    rows = [(SCENARIOS[document["benchmark"]], document["results"]) for document in documents]
    figures = _table(
        (
            "fault",
            "samples lost, doubled",
            "jobs lost, run twice",
            "alerts missed, doubled",
            "recovery",
        ),
        (_figures(scenario, results) for scenario, results in rows),
    )
    seen = _table(
        ("fault", "users see", "operators see"),
        (
            (scenario.text, scenario.users, _without_accidents(results["operators_see"]))
            for scenario, results in rows
        ),
    )
    parts = [HEAD.read_text(encoding="utf-8"), "## Figures", _origin(documents), figures]
    return "\n\n".join(part.strip() for part in [*parts, "## What is seen", SEEN, seen]) + "\n"


def _figures(scenario: Scenario, results: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{scenario.name}`: {scenario.text}"
    for pair in (("samples_lost", "samples_doubled"), ("jobs_lost", "jobs_run_twice"),
                 ("alerts_missed", "alerts_doubled")):  # fmt: skip
        yield ", ".join(str(results[name]) for name in pair)
    slowest, seconds = max(results["recovery_seconds"].items(), key=lambda item: item[1])
    mark = "**" if seconds > GOAL_SECONDS else ""
    yield f"{mark}{seconds:.0f} s{mark} ({slowest})"


def _without_accidents(text: str) -> str:
    """Return a text without times, ports and names of scratch folders: pages can be compared."""
    for pattern, replacement in _ACCIDENTS.items():
        text = re.sub(pattern, replacement, text)
    return " ".join(text.split())


def _origin(documents: Sequence[Document]) -> str:
    """Return when and where the figures were measured."""
    newest = max(documents, key=lambda document: str(document["ended_at"]))
    machine = newest["machine"]
    load = max(document["machine"]["load1"] for document in documents)
    return (
        f"{newest['ended_at'][:10]}, Vedette {newest['settings']['version']}, "
        f"{machine['cpu_count']} cores of {machine['cpu_model']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}; the load of the machine was up to {load:.0f}."
    )


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [
        columns,
        ["---"] * len(columns),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
