"""What an InfluxDB's refusals mean for whoever asked."""

import re
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from core.errors import OverloadedError, VedetteError
from timeseries.influxdb.address import InfluxDBAddress
from timeseries.store import StoreUnavailableError
from timeseries.store_url import SOURCE

RETRY_AFTER_SECONDS = 5

_DROPPED = re.compile(r"\bdropped=(\d+)")
_MISSING_DATABASE = re.compile(r"database not found|bucket .*not found|not find bucket")
_NOT_ALLOWED = re.compile(r"not authorized|authorization failed")
_FULL = re.compile(r"cache-max-memory-size|cache maximum memory size")
_SHOWN_CHARACTERS = 300


class LinesRefusedError(Exception):
    """The server took the request and refused some of its lines, or all.

    Attributes:
        dropped: how many lines it says it dropped; None where it does not say.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        match = _DROPPED.search(message)
        self.dropped = int(match[1]) if match else None


class RequestTooLargeError(Exception):
    """The server takes no request of this size."""


def write_error(
    address: InfluxDBAddress, *, status: int, headers: Mapping[str, str], body: bytes
) -> Exception:
    """Return the error that an answer to a write means."""
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return LinesRefusedError(_message(body))
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLargeError(_message(body))
    return answer_error(address, status=status, headers=headers, message=_message(body))


def query_error(
    address: InfluxDBAddress, *, status: int, headers: Mapping[str, str], body: bytes
) -> VedetteError:
    """Return the error that an answer to a query means."""
    return answer_error(address, status=status, headers=headers, message=_message(body))


def answer_error(
    address: InfluxDBAddress, *, status: int, headers: Mapping[str, str], message: str
) -> VedetteError:
    """Return the error for an answer that is no success."""
    place = f"InfluxDB at {address.place}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or _NOT_ALLOWED.search(message):
        who = f"user {address.user!r}" if address.user and not address.token else "the token"
        if not address.user and not address.token:
            who = "a request without user or token"
        return StoreUnavailableError(
            f"{place} does not let {who} use database {address.database!r}: {message}. "
            f"Check user and password, or the token, in {SOURCE}."
        )
    if _MISSING_DATABASE.search(message):
        return StoreUnavailableError(
            f"{place} has no database {address.database!r}. Create it there "
            f"(1.x: CREATE DATABASE, later a bucket), or name another in {SOURCE}."
        )
    if status == HTTPStatus.TOO_MANY_REQUESTS or _FULL.search(message):
        return OverloadedError(
            f"{place} has too much to do: {message}; send the same points again later.",
            retry_after_seconds=_retry_after(headers),
        )
    told = f"answered {status}" if status != HTTPStatus.OK else "refused"
    return StoreUnavailableError(f"{place} {told}: {message}")


def no_answer(address: InfluxDBAddress, cause: Exception) -> StoreUnavailableError:
    """Return the error for a server that can't be reached or breaks off."""
    return StoreUnavailableError(
        f"InfluxDB at {address.place} does not answer ({type(cause).__name__}). "
        f"Check that it runs and that {SOURCE} names it."
    )


def _retry_after(headers: Mapping[str, str]) -> int:
    given = headers.get("Retry-After", "")
    return max(1, int(given)) if given.isascii() and given.isdecimal() else RETRY_AFTER_SECONDS


def _message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        answer = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        return text[:_SHOWN_CHARACTERS] or "no reason given"
    reason = answer.get("message") or answer.get("error") or text
    return str(reason)[:_SHOWN_CHARACTERS]
