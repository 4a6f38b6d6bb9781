"""Server-sent events of a portal: read one by one, and continued after a broken connection."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import requests

from core.errors import UnavailableError
from vedette.errors import PortalError

log = logging.getLogger(__name__)

# The portal sends a comment every 15 seconds.
SILENCE_SECONDS = 60.0
MAX_WAIT_SECONDS = 15.0
# Attempts to reconnect in a row: about two minutes.
MAX_FAILURES = 10
# `internal_error` includes what a proxy says while the portal restarts.
_TEMPORARY = frozenset({"unavailable", "overloaded", "internal_error"})


class Event(NamedTuple):
    """An event: its id, its name and its JSON."""

    ident: str
    name: str
    data: Any


def follow_events(open_stream: Callable[[str], requests.Response]) -> Iterator[Event]:
    """Yield events until the one named `end`; reconnect where the connection breaks.

    Args:
        open_stream: opens the stream behind the event with this id; an empty id is the beginning.

    Raises:
        UnavailableError: it can't be reconnected.
        PortalError: the portal refuses to go on.
    """
    ident, failures = "", 0
    while True:
        try:
            with open_stream(ident) as response:
                for event in _events(response):
                    ident, failures = event.ident or ident, 0
                    if event.name == "problem":
                        raise PortalError(event.data["message"], code=event.data["code"])  # noqa: TRY301
                    yield event
                    if event.name == "end":
                        return
        except (requests.RequestException, UnavailableError, PortalError) as error:
            failures += 1
            if isinstance(error, PortalError) and error.code not in _TEMPORARY:
                raise
            if failures > MAX_FAILURES:
                raise UnavailableError(f"The connection to the portal broke: {error}") from error
            if failures == 1:
                log.warning("The connection to the portal broke. Connecting again.")
            time.sleep(min(0.5 * 2**failures, MAX_WAIT_SECONDS))


def _events(response: requests.Response) -> Iterator[Event]:
    """Yield the events of a stream.

    Source: "Interpreting an event stream" of the HTML standard, as far as the portal uses it.
    """
    ident = name = data = ""
    for line in response.iter_lines(decode_unicode=False):
        field, _, value = line.decode().partition(": ")
        if field == "id":
            ident = value
        elif field == "event":
            name = value
        elif field == "data":
            data = value
        elif not line and data:
            yield Event(ident, name, json.loads(data))
            ident = name = data = ""
