"""The time zone of a request: the user's choice, that of the browser, or UTC.

`theme.js` stores the browser's time zone in a cookie, before the first page that needs it.
"""

from datetime import UTC, datetime, tzinfo

from flask import request

from core.zones import MINUTES, instant_text, zone_key, zone_of
from portal.context import principal
from tenants.models import User

ZONE_COOKIE = "vedette-zone"


def viewer() -> User | None:
    """Return who reads the response: in a support session the operator."""
    current = principal()
    if current is None:
        return None
    return current.support_session.operator if current.support_session else current.user


def current_zone_name() -> str:
    """Return the name of the time zone of who reads the response."""
    person = viewer()
    return zone_key(person.time_zone if person else "") or browser_zone_name()


def browser_zone_name() -> str:
    """Return the name of the time zone of the browser, or where unknown of the last browser."""
    person = viewer()
    last = person.browser_time_zone if person else ""
    return zone_key(request.cookies.get(ZONE_COOKIE, "")) or zone_key(last) or "UTC"


def current_zone() -> tzinfo:
    """Return the time zone of who reads the response."""
    return zone_of(current_zone_name())


def local_time(instant_at: datetime) -> datetime:
    """Return an instant in the reader's time zone."""
    return instant_at.astimezone(current_zone())


def time_text(instant_at: datetime, form: str = MINUTES) -> str:
    """Return an instant in the reader's time zone, such as `2026-11-25 18:48 IST`."""
    return instant_text(instant_at, current_zone(), form)


def in_reader_zone(entered: datetime) -> datetime:
    """Return what a reader entered as an instant: without an offset, it is in their time zone."""
    local = entered if entered.tzinfo else entered.replace(tzinfo=current_zone())
    return local.astimezone(UTC)
