"""Time zones in which instants are shown, and the names that stand beside them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

# Longer than every name in the database of time zones.
MAX_ZONE_LENGTH = 64
# Browsers name these zones as CLDR does; some systems have only the newer names.
_RENAMED = {
    "Africa/Asmera": "Africa/Asmara",
    "America/Buenos_Aires": "America/Argentina/Buenos_Aires",
    "America/Catamarca": "America/Argentina/Catamarca",
    "America/Coral_Harbour": "America/Atikokan",
    "America/Cordoba": "America/Argentina/Cordoba",
    "America/Godthab": "America/Nuuk",
    "America/Indianapolis": "America/Indiana/Indianapolis",
    "America/Jujuy": "America/Argentina/Jujuy",
    "America/Louisville": "America/Kentucky/Louisville",
    "America/Mendoza": "America/Argentina/Mendoza",
    "Asia/Calcutta": "Asia/Kolkata",
    "Asia/Katmandu": "Asia/Kathmandu",
    "Asia/Rangoon": "Asia/Yangon",
    "Asia/Saigon": "Asia/Ho_Chi_Minh",
    "Atlantic/Faeroe": "Atlantic/Faroe",
    "Europe/Kiev": "Europe/Kyiv",
    "Pacific/Enderbury": "Pacific/Kanton",
    "Pacific/Ponape": "Pacific/Pohnpei",
    "Pacific/Truk": "Pacific/Chuuk",
}
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a time on the wall
_DAY = timedelta(days=1)
MINUTES, SECONDS = "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"


def zone_key(name: str) -> str:
    """Return the current name of a time zone; empty for an unknown one."""
    name = _RENAMED.get(name, name)
    try:
        return ZoneInfo(name).key if 0 < len(name) <= MAX_ZONE_LENGTH else ""
    except (ValueError, OSError, LookupError):
        return ""


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name, such as `Europe/Oslo`; UTC for an unknown one."""
    key = zone_key(name)
    return ZoneInfo(key) if key and key != "UTC" else UTC


def abbreviation(local: datetime) -> str:
    """Return the short name of a local time's zone: `CET`, or `UTC-03` where there is none."""
    name = local.tzname() or "UTC"
    return f"UTC{name}" if name[0] in "+-" else name


def instant_text(instant_at: datetime, zone: tzinfo | None, form: str = MINUTES) -> str:
    """Return an instant with the name of the zone, such as `2026-11-25 18:48 IST`.

    Without a zone it is that of this machine.
    """
    local = instant_at.astimezone(zone)
    return f"{local:{form}} {abbreviation(local)}"


def round_times(
    start_at: datetime, end_at: datetime, step: timedelta, zone: tzinfo
) -> Iterator[datetime]:
    """Yield the local times from one instant to another at which the clock shows round times.

    Where the clock is turned forward, it never shows some times; where it is turned back, it shows
    some twice.
    """
    start, end = (at.astimezone(zone).replace(tzinfo=None) for at in (start_at, end_at))
    wall = _WALL_EPOCH + (start - _DAY - _WALL_EPOCH) // step * step
    instants = set()
    while wall <= end + _DAY:
        for fold in (0, 1):
            instant_at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            is_shown = instant_at.astimezone(zone).replace(tzinfo=None, fold=0) == wall
            if is_shown and start_at <= instant_at <= end_at:
                instants.add(instant_at)
        wall += step
    return (instant_at.astimezone(zone) for instant_at in sorted(instants))
