"""The agent's side of `/agent/v1/*`: one HTTP session to whichever portal address answers."""

from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import requests

from collector.addresses import PortalAddresses
from collector.errors import PortalRefusedError, PortalUnreachableError
from jobqueue.executors.wire import (
    DesiredState,
    EnrolReply,
    EnrolRequest,
    Heartbeat,
    LogAck,
    ObservedReport,
)

T = TypeVar("T")

OVERLOADED = frozenset({429, 502, 503, 504})
NO_NEWS = frozenset({204, 304})
ANSWER_SLACK_SECONDS = 10.0


class PortalLink:
    """Speaks the agents' protocol. Not to be shared by threads: each opens its own.

    Every call may raise:
        PortalUnreachableError: no address answers, or the portal is overloaded.
        PortalRefusedError: the portal answered with another status.
    """

    def __init__(
        self, addresses: PortalAddresses, *, agent_token: str = "", timeout_seconds: float = 10.0
    ) -> None:
        self._addresses = addresses
        self._timeout_seconds = timeout_seconds
        self._session = requests.Session()
        if agent_token:
            self._session.headers["Authorization"] = f"Bearer {agent_token}"

    def enroll(self, request: EnrolRequest) -> EnrolReply:
        """Trade a one-time token for an identity."""
        return _decode(self._post("/agent/v1/enroll", request), EnrolReply)

    def heartbeat(self, beat: Heartbeat) -> None:
        """Say that this appliance is alive, and what it has."""
        self._post("/agent/v1/heartbeat", beat)

    def desired(self, generation: int, *, wait_seconds: float) -> DesiredState | None:
        """Return what should run, at once when `generation` is not current; None is no news."""
        response = self._request(
            "GET",
            "/agent/v1/desired",
            params={"generation": generation, "wait_seconds": f"{wait_seconds:g}"},
            timeout_seconds=wait_seconds + ANSWER_SLACK_SECONDS,
        )
        return None if response.status_code in NO_NEWS else _decode(response, DesiredState)

    def report(self, observed: ObservedReport) -> None:
        """Say what the executor sees."""
        self._post("/agent/v1/observed", observed)

    def ship_log(self, attempt_id: str, *, offset: int, chunk: bytes) -> LogAck:
        """Send output of an attempt; the answer says from where to go on."""
        response = self._request(
            "POST",
            f"/agent/v1/attempts/{quote(attempt_id, safe='')}/log",
            params={"offset": offset},
            data=chunk,
            headers={"Content-Type": "application/octet-stream"},
        )
        return _decode(response, LogAck)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _post(self, path: str, body: msgspec.Struct) -> requests.Response:
        headers = {"Content-Type": "application/json"}
        return self._request("POST", path, data=msgspec.json.encode(body), headers=headers)

    def _request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float | None = None,
        **details: Any,  # noqa: ANN401 - requests' own keywords
    ) -> requests.Response:
        """Ask the address in use, then each other one once."""
        failure: requests.RequestException | None = None
        for _ in range(len(self._addresses)):
            url = self._addresses.current
            try:
                response = self._session.request(
                    method,
                    f"{url}{path}",
                    timeout=(self._timeout_seconds, timeout_seconds or self._timeout_seconds),
                    allow_redirects=False,
                    **details,
                )
            except requests.RequestException as error:
                failure = error
                self._addresses.mark_failed(url)
            else:
                return _checked(response, f"{url}{path}")
        raise PortalUnreachableError(
            f"The portal at {url} does not answer: {root_cause(failure)}."
        ) from failure


def root_cause(error: BaseException | None) -> str:
    """Return the operating system's own words behind an HTTP client's error, where there are any.

    The clients wrap `Connection refused` in three layers that repeat the address.
    """
    seen = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return str(error)


def _checked(response: requests.Response, url: str) -> requests.Response:
    if response.ok or response.status_code in NO_NEWS:
        return response
    message = f"{url} answered {response.status_code}: {_message(response)}"
    if response.status_code in OVERLOADED:
        raise PortalUnreachableError(
            message, retry_after_seconds=retry_after_seconds(response.headers.get("Retry-After"))
        )
    raise PortalRefusedError(message, http_status=response.status_code)


def retry_after_seconds(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or when it is a date."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def _message(response: requests.Response) -> str:
    """Return the portal's own sentence, or the beginning of whatever came."""
    try:
        body = msgspec.json.decode(response.content)
        return str(body["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return response.text[:200] or response.reason


def _decode(response: requests.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.MsgspecError as error:
        raise PortalRefusedError(
            f"{response.url} gave an answer that is not a {kind.__name__}: {error}. "
            "Check that the address is a Vedette portal's.",
            http_status=response.status_code,
        ) from error
