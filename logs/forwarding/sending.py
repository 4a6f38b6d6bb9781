"""Sends lines to targets: by the checked client of webhooks, or a checked connection for syslog."""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from alerting.notification.senders.notify import DeliveryError, delivered, retry_after_seconds
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient, host_of
from core.errors import UnavailableError
from core.secretbox import SecretBox
from logs.forwarding.formats import (
    JSON_TYPE,
    NDJSON_TYPE,
    Line,
    bulk_body,
    loki_body,
    otlp_body,
    syslog_frames,
)
from logs.models import ForwardKind, LogForward

MAX_ANSWER_BYTES = 1024 * 1024
_SENT_BYTES = 64 * 1024
SYSLOG_PORTS = {"syslog": 514, "syslogs": 6514}
_HTTP: dict[ForwardKind, tuple[str, str, Callable[[Sequence[Line]], bytes]]] = {
    ForwardKind.OTLP: ("/v1/logs", JSON_TYPE, otlp_body),
    ForwardKind.LOKI: ("/loki/api/v1/push", JSON_TYPE, loki_body),
    ForwardKind.ELASTICSEARCH: ("/_bulk", NDJSON_TYPE, bulk_body),
}
# Sent again, the same lines would be refused again.
_REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_log_records: Annotated[int, msgspec.Meta(ge=0)] = 0


class _OTLPReply(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


class _BulkResult(msgspec.Struct):
    status: int = 0


class _BulkReply(msgspec.Struct):
    errors: bool = False
    items: list[dict[str, _BulkResult]] = []


class ForwardSender:
    """Sends lines to targets.

    Args:
        timeout_seconds: limit for connecting to an address, and then for the whole response.
        box: decrypts tokens.
        policy: which addresses may be reached.
    """

    def __init__(self, timeout_seconds: float, *, box: SecretBox, policy: AddressPolicy) -> None:
        self._timeout_seconds = timeout_seconds
        self._client = WebhookClient(timeout_seconds, policy=policy)
        self._policy = policy
        self._box = box

    def send(self, forward: LogForward, lines: Sequence[Line]) -> int:
        """Send lines; return how many the target does not accept.

        Raises:
            DeliveryError: it does not take them now.
        """
        host = urlsplit(forward.url).netloc.rpartition("@")[2]
        with delivered(f"The log target at {host}"):
            if forward.kind is ForwardKind.SYSLOG:
                self._send_syslog(forward.url, syslog_frames(lines))
                return 0
            return self._post(forward, lines, host)

    def _post(self, forward: LogForward, lines: Sequence[Line], host: str) -> int:
        path, media_type, body_of = _HTTP[forward.kind]
        headers = {"Content-Type": media_type, "User-Agent": "vedette", **self._token(forward)}
        url = forward.url.rstrip("/")
        target = url if url.endswith(path) else url + path
        response, answer = self._client.request(
            "POST",
            target,
            body=body_of(lines),
            headers=headers,
            max_answer_bytes=MAX_ANSWER_BYTES,
        )
        if response.status in _REFUSALS:
            return len(lines)
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise DeliveryError(
                f"The log target at {host} responded {response.status} {response.reason}",
                retry_after_seconds=retry_after_seconds(response),
            )
        return min(len(lines), _refused(forward.kind, answer))

    def _token(self, forward: LogForward) -> dict[str, str]:
        if not forward.token:
            return {}
        try:
            token = self._box.decrypt(forward.token)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error
        return {"Authorization": token if " " in token else f"Bearer {token}"}

    def _send_syslog(self, address: str, frames: bytes) -> None:
        url = urlsplit(address)
        host, port = host_of(url), url.port or SYSLOG_PORTS[url.scheme]
        addresses = self._policy.addresses(host)
        target = (str(addresses[0]), port)
        with socket.create_connection(target, self._timeout_seconds) as connection:
            if url.scheme == "syslog":
                _send_all(connection, frames, self._timeout_seconds)
                return
            context = ssl.create_default_context()
            with context.wrap_socket(connection, server_hostname=host) as secured:
                _send_all(secured, frames, self._timeout_seconds)


def _send_all(connection: socket.socket, frames: bytes, seconds: float) -> None:
    """Send, and wait until the target has read everything: the protocol has no answers.

    A target that reads, or writes, a byte at a time would hold up those of every other tenant.
    """
    deadline = time.monotonic() + seconds
    unsent = memoryview(frames)
    while unsent:
        _wait_until(connection, deadline)
        unsent = unsent[connection.send(unsent[:_SENT_BYTES]) :]
    # One that does not close has read what it acknowledged.
    with suppress(TimeoutError):
        if isinstance(connection, ssl.SSLSocket):
            _close_tls(connection, deadline)
            return
        connection.shutdown(socket.SHUT_WR)
        _wait_until(connection, deadline)
        while connection.recv(1024):
            _wait_until(connection, deadline)


def _close_tls(connection: ssl.SSLSocket, deadline: float) -> None:
    """End TLS as RFC 5425 demands, and read what the target still sends.

    A connection that is closed while its session tickets, which every server of TLS 1.3 sends, are
    unread is reset, and the target loses what it has not read.
    """
    _wait_until(connection, deadline)
    try:
        plain = connection.unwrap()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # it has closed without a word
        return
    except ssl.SSLError as error:
        if "APPLICATION_DATA_AFTER_CLOSE_NOTIFY" not in str(error):
            raise
        return  # it talks, which says nothing about what it has read
    plain.close()


def _wait_until(connection: socket.socket, deadline: float) -> None:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("it took too long")
    connection.settimeout(seconds)


def _refused(kind: ForwardKind, answer: bytes) -> int:
    """Return how many lines a target has refused, by its answer; 0 if that is something else.

    Raises:
        DeliveryError: it refuses some for now.
    """
    try:
        if kind is ForwardKind.OTLP:
            reply = msgspec.json.decode(answer, type=_OTLPReply, strict=False)
            return reply.partial_success.rejected_log_records if reply.partial_success else 0
        if kind is not ForwardKind.ELASTICSEARCH:
            return 0
        bulk = msgspec.json.decode(answer, type=_BulkReply)
    except (msgspec.MsgspecError, RecursionError):
        return 0
    if not bulk.errors:
        return 0
    statuses = [result.status for item in bulk.items for result in item.values()]
    if any(status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500 for status in statuses):  # noqa: PLR2004
        raise DeliveryError("Elasticsearch is overloaded, and has refused some lines for now.")
    # A line that is there already was sent before.
    return sum(
        status >= HTTPStatus.BAD_REQUEST and status != HTTPStatus.CONFLICT for status in statuses
    )
