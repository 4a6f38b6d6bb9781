"""Instants as commands print them: in the time zone of this machine, with its name."""

from datetime import datetime

from core.zones import MINUTES, SECONDS, instant_text


def local_seconds(instant_at: datetime | str | None) -> str:
    """Return an instant to the second, such as `2026-11-25 18:48:20 IST`, or a dash."""
    return _text(instant_at, SECONDS)


def local_minutes(instant_at: datetime | str | None) -> str:
    """Return an instant to the minute, such as `2026-11-25 18:48 IST`, or a dash."""
    return _text(instant_at, MINUTES)


def _text(instant_at: datetime | str | None, form: str) -> str:
    if not instant_at:
        return "-"
    aware = datetime.fromisoformat(instant_at) if isinstance(instant_at, str) else instant_at
    return instant_text(aware, None, form)
