"""What an entry of the audit log changed, as lines for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenants.models import AuditEntry

NOTHING = "\N{EN DASH}"


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
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
