"""The way out of apprise: its modules get a `requests` that sends through the client of webhooks.

apprise has no transport of its own that could be replaced: its plugins call functions of the module
`requests`, which resolves names itself and follows redirects. What stands in its place in all
modules of apprise has the same functions, and sends to hosts of the service alone, over HTTPS, to
checked addresses, without redirects, in bounded time and memory.

Source: docs/decisions/0024-receivers.md.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partialmethod
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter

from alerting.notification.senders.chat_addresses import ChatService
from alerting.notification.senders.webhooks import BlockedAddressError, WebhookClient
from core.network_errors import why_it_failed

# Of one delivery, which may have several requests.
DELIVERY_SECONDS = 30.0
MAX_ANSWER_BYTES = 2**20


class ChatTraffic(BaseAdapter):
    """The requests of one delivery; `failure` is what the user should know of the last one."""

    def __init__(self, service: ChatService, client: WebhookClient) -> None:
        super().__init__()
        self.failure = ""
        self._service = service
        self._client = client
        self._ends_at = time.monotonic() + DELIVERY_SECONDS

    def send(
        self,
        request: requests.PreparedRequest,
        *_options: Any,  # noqa: ANN401 - requests'
        **_named_options: Any,  # noqa: ANN401
    ) -> requests.Response:
        """Send a request; its own options for time limits, certificates and proxies don't count."""
        url = request.url or ""
        host = urlsplit(url).hostname or ""
        if not self._service.has_host(host):
            raise self._failed(f"may not send to {host}")
        if time.monotonic() >= self._ends_at:
            raise self._failed(f"took longer than {DELIVERY_SECONDS:.0f} s")
        body = request.body or b""
        try:
            answer, content = self._client.request(
                request.method or "GET",
                url,
                body=body.encode() if isinstance(body, str) else body,
                headers=request.headers,
                max_answer_bytes=MAX_ANSWER_BYTES + 1,
            )
        except BlockedAddressError as error:
            raise self._failed(f"can't be reached: {error.message_for(host)}") from error
        except (OSError, HTTPException) as error:
            raise self._failed(f"did not respond: {why_it_failed(error)}") from error
        if len(content) > MAX_ANSWER_BYTES:
            raise self._failed("did not respond: the response is too large")
        is_sent = 200 <= answer.status < 300  # noqa: PLR2004 - 2xx
        self.failure = "" if is_sent else f"responded {answer.status}"
        return _response(request, answer.status, dict(answer.headers), content)

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    def _failed(self, why: str) -> requests.ConnectionError:
        self.failure = why
        return requests.ConnectionError(why)


class CheckedRequests:
    """The replacement of `requests` in modules of apprise."""

    # The names that they use, and no way past the checks.
    codes = requests.codes
    exceptions = requests.exceptions
    RequestException = requests.RequestException

    def request(self, method: str, url: str, **options: Any) -> requests.Response:  # noqa: ANN401 - requests'
        """Send a request of the delivery in progress.

        Raises:
            requests.RequestException: it was not sent, or not answered.
        """
        traffic = _traffic.get()
        if traffic is None:
            raise requests.ConnectionError("apprise sends only while a message is delivered")
        with requests.Session() as session:
            session.trust_env = False
            session.headers["Accept-Encoding"] = "identity"
            session.adapters.clear()
            session.mount("https://", traffic)
            return session.request(method, url, **options | {"allow_redirects": False})

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    put = partialmethod(request, "PUT")
    patch = partialmethod(request, "PATCH")
    delete = partialmethod(request, "DELETE")


@contextmanager
def delivering(traffic: ChatTraffic) -> Iterator[None]:
    """Let apprise send in this thread for the length of the block."""
    _replace_requests()
    token = _traffic.set(traffic)
    try:
        yield
    finally:
        _traffic.reset(token)


def _replace_requests() -> None:
    """Replace `requests` in what is loaded of apprise; its plugins are loaded when needed."""
    for name, module in list(sys.modules.items()):
        if name.startswith("apprise.") and getattr(module, "requests", None) is requests:
            module.requests = _CHECKED  # type: ignore[attr-defined] # of this module


def _response(
    request: requests.PreparedRequest, status: int, headers: Mapping[str, str], content: bytes
) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    response.request = request
    response.url = request.url or ""
    response._content = content  # noqa: SLF001 - requests has no other way to make one
    return response


_CHECKED = CheckedRequests()
_traffic: ContextVar[ChatTraffic | None] = ContextVar("traffic", default=None)
