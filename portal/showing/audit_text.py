"""What an entry of the audit log changed, as lines for people."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenants.models import AuditEntry

NOTHING = "\N{EN DASH}"
# An instant as JSON holds it, always in UTC.
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One value, as it was and as it is; None where it was not, or is no more."""

    name: str
    before: str | None
    after: str | None


def differences(entry: AuditEntry) -> list[Difference]:
    """Return what an entry changed, value by value, in the order in which they were told."""
    before, after = entry.before or {}, entry.after or {}
    return [
        Difference(
            name=name.replace("_", " "),
            before=_text(before[name]) if name in before else None,
            after=_text(after[name]) if name in after else None,
        )
        for name in dict.fromkeys([*before, *after])
    ]


def _text(value: Any) -> str:  # noqa: ANN401 - anything that JSON holds
    if value is None or value in ("", [], {}):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    instant = _INSTANT.fullmatch(str(value))
    return f"{instant[1]} {instant[2]} UTC" if instant else str(value)
