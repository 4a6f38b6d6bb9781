"""What servers answer, put into plain words: their own sentence, the cause, when to come back."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import RemoteDisconnected

import msgspec

_TITLE = re.compile(r"<title>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
_SHOWN_CHARACTERS = 200
# No server may silence an appliance for longer than this.
LONGEST_ASKED_SECONDS = 3600.0
_KEYS = ("message", "error")


def sentence_of(body: bytes, *, otherwise: str = "") -> str:
    """Return the sentence of an error's body, a web page's title, or the beginning of it."""
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    if isinstance(content, dict):
        for key in _KEYS:
            if isinstance(content.get(key), str):
                return str(content[key])
    text = body.decode(errors="replace")
    title = _TITLE.search(text)
    return (title[1] if title else text[:_SHOWN_CHARACTERS].strip()) or otherwise


def is_web_page(body: bytes) -> bool:
    """Return whether an answer is a page for people, as a proxy gives that stands in between."""
    return body.lstrip().startswith(b"<")


def named_lines(body: bytes) -> dict[int, str]:
    """Return the numbers of the lines that a portal refused, each with its reason."""
    try:
        faults = msgspec.json.decode(body)["errors"]
        return {int(fault["line"]): str(fault["reason"]) for fault in faults}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return {}


def retry_after_seconds(header: str | None, *, now: datetime) -> float | None:
    """Return how long a Retry-After header asks to wait, be it seconds or a date; None without.

    An hour at the most: a header that is wrong must not end the sending for days.
    """
    if not header:
        return None
    try:
        asked = float(header)
    except ValueError:
        asked = _seconds_until(header, now=now)
    return None if math.isnan(asked) else min(LONGEST_ASKED_SECONDS, max(0.0, asked))


def root_cause(error: BaseException | None) -> str:
    """Return the operating system's own words behind an HTTP client's error, where there are any.

    The clients wrap `Connection refused` in three layers that repeat the address. What is wrong
    with a certificate is said with what to do about it.
    """
    seen = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return _with_advice(seen.strerror)
        if isinstance(seen, RemoteDisconnected):
            return "it closed the connection without an answer"
        seen = seen.__cause__ or seen.__context__
    return _with_advice(str(error))


def _seconds_until(date: str, *, now: datetime) -> float:
    """Return the seconds until a date of HTTP; not a number where it is none."""
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return math.nan
    aware_at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (aware_at - now).total_seconds()


def _with_advice(cause: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in cause or "certificate verify failed" in cause:
        return f"{_without_source(cause)} (set ca_file to the authority that signed it)"
    if "alert certificate required" in cause or "alert handshake failure" in cause:
        return f"{_without_source(cause)} (set client_certificate_file)"
    return _without_source(cause)


def _without_source(cause: str) -> str:
    """Drop `(_ssl.c:1002)`, which helps nobody."""
    return re.sub(r"\s*\(_ssl\.c:\d+\)", "", cause)
