"""The portal's list of access points: checked, and kept on disk with the choice among them."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from collector.data_dir import load_json, save_json
from collector.errors import InvalidAccessPointsError
from protocol.access_points import AccessPointAddress, AccessPointList

FILE_NAME = "access-points.json"
# What no address has: spaces, other alphabets, a query or a fragment.
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}?#]")


class AccessPointState(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives a restart.

    Attributes:
        configured: the addresses in the configuration, from which the list came.
        listed: the portal's list; None before the first.
        current: the address in use; "" before the first choice.
        moves: how often the agent moved to a better address.
        failovers: how often it left one that failed.
        reason: why it did so last.
    """

    configured: list[str]
    listed: AccessPointList | None = None
    current: str = ""
    moves: int = 0
    failovers: int = 0
    reason: str = ""


class AccessPointFile:
    """The state in the data folder. For one thread at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME

    def load(self, configured: Sequence[str]) -> AccessPointState:
        """Return the stored state, without what is invalid or of another portal."""
        new = AccessPointState(configured=list(configured))
        stored = load_json(self._path, AccessPointState)
        if stored is None or stored.configured != new.configured:
            return new
        try:
            if stored.listed is not None:
                check_list(stored.listed, configured)
        except InvalidAccessPointsError:
            return new
        listed_urls = [point.url for point in stored.listed.points] if stored.listed else []
        is_current = stored.current in {*configured, *listed_urls}
        return stored if is_current else msgspec.structs.replace(stored, current="")

    def save(self, state: AccessPointState) -> None:
        """Store the state; a failure is logged."""
        save_json(self._path, state)


def parse_list(data: msgspec.Raw | bytes, configured: Sequence[str]) -> AccessPointList:
    """Return the list in an answer of the portal, with addresses as the agent compares them.

    Args:
        data: its JSON.
        configured: the agent's own addresses.

    Raises:
        InvalidAccessPointsError: an agent must not use it.
    """
    try:
        listed = msgspec.json.decode(data, type=AccessPointList)
    except msgspec.MsgspecError as error:
        raise InvalidAccessPointsError(str(error)) from error
    points = [msgspec.structs.replace(point, url=point.url.rstrip("/")) for point in listed.points]
    listed = msgspec.structs.replace(listed, points=points)
    check_list(listed, configured)
    return listed


def check_list(listed: AccessPointList, configured: Sequence[str]) -> None:
    """Check the addresses of a list.

    Raises:
        InvalidAccessPointsError: one of them can't be an address of the portal, or lacks the TLS
            of the configured ones.
    """
    if not listed.revision:
        raise InvalidAccessPointsError("it has no revision")
    needs_tls = any(url.startswith("https:") for url in configured)
    for point in listed.points:
        _check_address(point, needs_tls=needs_tls)
    if len({point.url for point in listed.points}) < len(listed.points):
        raise InvalidAccessPointsError("it has an address twice")


def _check_address(point: AccessPointAddress, *, needs_tls: bool) -> None:
    url = point.url
    if needs_tls and not url.startswith("https://"):
        raise InvalidAccessPointsError(f"{url} is not https, as the configured address is")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_address = bool(host) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        is_address = False
    if not is_address or _FORBIDDEN.search(url):
        raise InvalidAccessPointsError(f"{url!r} is not an address of a portal")
