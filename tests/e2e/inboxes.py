"""A mail server and a webhook's server that keep what they are sent."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.servers import free_port


class MailServer:
    """An SMTP server on the loopback address; `messages` holds what arrived."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._port = free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self._port)

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self._port}"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        content = envelope.content
        self.messages.append(
            message_from_bytes(content if isinstance(content, bytes) else (content or "").encode())
        )
        return "250 OK"

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()


@dataclass(frozen=True, slots=True)
class Call:
    """One request that a webhook received."""

    headers: Mapping[str, str]
    body: bytes


class WebhookServer:
    """An HTTP server on the loopback address; `calls` holds what arrived."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                calls.append(Call({key.lower(): text for key, text in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/alerts"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def link_in_mail_to(mail: MailServer, address: str) -> str:
    """Return the link in the letter to somebody."""
    letter = next(message for message in mail.messages if message["To"] == address)
    text = next(part for part in letter.walk() if part.get_content_type() == "text/plain")
    payload = text.get_payload(decode=True)
    assert isinstance(payload, bytes)
    link = re.search(r"http\S+", payload.decode())
    assert link is not None
    return link[0]
