"""The time zone in which a user reads times: on pages, in emails, on the command line."""

from core.errors import InvalidInputError
from core.schedule_times import check_time_zone
from core.zones import zone_key
from tenants.models import User


def zone_name_of(user: User) -> str:
    """Return the user's choice, else the last zone of their browser, else UTC."""
    return zone_key(user.time_zone) or zone_key(user.browser_time_zone) or "UTC"


def choose_time_zone(user: User, name: str) -> None:
    """Store the time zone that a user chooses; empty for that of their browser.

    Raises:
        InvalidInputError: there is no such time zone.
    """
    try:
        if name:
            check_time_zone(name)
    except ValueError as error:
        raise InvalidInputError(str(error), errors={"time_zone": [str(error)]}) from None
    user.time_zone = name
