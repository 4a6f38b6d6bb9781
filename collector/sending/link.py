"""The agent's side of `/agent/v1/*`: one HTTP session to whichever portal address answers."""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from collector.certificates.own_certificate import OwnCertificate
from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.addresses import PortalAddresses
from collector.sending.answers import is_web_page, retry_after_seconds, root_cause, sentence_of
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.tls import TLSContexts
from core.clock import Clock, utc_now
from jobqueue.executors.wire import (
    DesiredState,
    EnrolReply,
    EnrolRequest,
    Heartbeat,
    IssuedCertificate,
    LogAck,
    ObservedReport,
    RenewalRequest,
)

T = TypeVar("T")

OVERLOADED = frozenset({429, 502, 503, 504})
UNAUTHENTICATED = 401
NO_NEWS = frozenset({204, 304})
SUCCESS = range(200, 300)
ANSWER_SLACK_SECONDS = 10.0
JSON_BODY = {"Content-Type": "application/json"}
BINARY_BODY = {"Content-Type": "application/octet-stream"}


class PortalLink:
    """Speaks the agents' protocol. Not to be shared by threads: each opens its own.

    Every call may raise:
        PortalUnreachableError: no address answers, or the portal is overloaded.
        PortalRefusedError: the portal answered with another status.
    """

    def __init__(
        self,
        addresses: PortalAddresses,
        *,
        agent_token: str = "",
        timeout_seconds: float = 10.0,
        tls: TLSContexts | None = None,
        certificate: OwnCertificate | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._certificate = certificate
        self._addresses = addresses
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._connections = Connections(tls)
        self._headers = {"Authorization": f"Bearer {agent_token}"} if agent_token else {}

    def enroll(self, request: EnrolRequest) -> EnrolReply:
        """Trade a one-time token for an identity."""
        return _decode(*self._post("/agent/v1/enroll", request), EnrolReply)

    def renew(self, request: RenewalRequest) -> IssuedCertificate:
        """Trade the present certificate, or the secret, for a new certificate."""
        return _decode(*self._post("/agent/v1/certificate", request), IssuedCertificate)

    def heartbeat(self, beat: Heartbeat) -> None:
        """Say that this appliance is alive, and what it has."""
        self._post("/agent/v1/heartbeat", beat)

    def desired(self, generation: int, *, wait_seconds: float) -> DesiredState | None:
        """Return what should run, at once when `generation` is not current; None is no news."""
        query = urlencode({"generation": generation, "wait_seconds": f"{wait_seconds:g}"})
        response, url = self._request(
            "GET",
            f"/agent/v1/desired?{query}",
            timeout_seconds=wait_seconds + ANSWER_SLACK_SECONDS,
        )
        return None if response.status in NO_NEWS else _decode(response, url, DesiredState)

    def report(self, observed: ObservedReport) -> None:
        """Say what the executor sees."""
        self._post("/agent/v1/observed", observed)

    def ship_log(self, attempt_id: str, *, offset: int, chunk: bytes) -> LogAck:
        """Send output of an attempt; the answer says from where to go on."""
        path = (
            f"/agent/v1/attempts/{quote(attempt_id, safe='')}/log?{urlencode({'offset': offset})}"
        )
        return _decode(*self._request("POST", path, body=chunk, headers=BINARY_BODY), LogAck)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _post(self, path: str, body: msgspec.Struct) -> tuple[urllib3.BaseHTTPResponse, str]:
        return self._request("POST", path, body=msgspec.json.encode(body), headers=JSON_BODY)

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """Ask the address in use, then each other one once; return the answer and who gave it."""
        failure: BaseException | None = None
        for _ in range(len(self._addresses)):
            url = self._addresses.current
            try:
                response = self._connections.request(
                    method,
                    f"{url}{path}",
                    body=body,
                    headers={**self._proof(url), **(headers or {})},
                    timeout_seconds=(
                        self._timeout_seconds,
                        timeout_seconds or self._timeout_seconds,
                    ),
                )
            except HTTPFailure as error:
                failure = error
                self._addresses.mark_failed(url)
            else:
                address = f"{url}{path.partition('?')[0]}"
                self._check(response, address)
                return response, address
        raise PortalUnreachableError(
            f"The portal at {url} does not answer: {root_cause(failure)}."
        ) from failure

    def _proof(self, url: str) -> Mapping[str, str]:
        is_enough = self._certificate is not None and self._certificate.is_enough_for(url)
        return {} if is_enough else self._headers

    def _check(self, response: urllib3.BaseHTTPResponse, address: str) -> None:
        if response.status in SUCCESS or response.status in NO_NEWS:
            return
        sentence = sentence_of(response.data, otherwise=response.reason or "")
        message = f"{address} answered {response.status}: {sentence}"
        if response.status == UNAUTHENTICATED and self._certificate is not None:
            self._certificate.doubt()
        if response.status in OVERLOADED:
            asked = retry_after_seconds(response.headers.get("Retry-After"), now=self._clock())
            raise PortalUnreachableError(message, retry_after_seconds=asked)
        if is_web_page(response.data):
            message += ". A server in front of the portal said so; see client_certificate_file"
        raise PortalRefusedError(message, http_status=response.status)


def _decode(response: urllib3.BaseHTTPResponse, address: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.data, type=kind)
    except msgspec.MsgspecError as error:
        raise PortalRefusedError(
            f"{address} gave an answer that is not a {kind.__name__}: {error}. "
            "Check that the address is a Vedette portal's.",
            http_status=response.status,
        ) from error
