"""The audit log as a file: CSV for people with spreadsheets, JSON lines for programs."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from tenants.models import AuditEntry

COLUMNS = (
    "chain", "number", "at", "actor_id", "actor_name", "via", "action", "target_kind", "target_id",
    "target_name", "before", "after", "reason", "address", "user_agent", "id", "previous_hash",
    "hash",
)  # fmt: skip
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class AuditFormat(StrEnum):
    """The form of a file; its value is the name's ending."""

    CSV = "csv"
    JSONL = "jsonl"

    @property
    def media_type(self) -> str:
        """What HTTP calls it."""
        return "text/csv" if self is AuditFormat.CSV else "application/x-ndjson"


def as_file(batches: Iterable[Sequence[AuditEntry]], wanted: AuditFormat) -> Iterator[str]:
    """Return the entries as pieces of a file. JSON lines hold all that the hash is made of."""
    if wanted is AuditFormat.CSV:
        yield _csv([dict(zip(COLUMNS, COLUMNS, strict=True))])
    for batch in batches:
        rows = [values_of(entry) for entry in batch]
        yield _csv(rows) if wanted is AuditFormat.CSV else _json_lines(rows)


def values_of(entry: AuditEntry) -> dict[str, object]:
    """Return an entry's columns; its instant in RFC 3339."""
    values = {name: getattr(entry, name) for name in COLUMNS}
    return {**values, "at": entry.at.isoformat(timespec="microseconds")}


def _csv(rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([_cell(row[name]) for name in COLUMNS] for row in rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _json_lines(rows: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
