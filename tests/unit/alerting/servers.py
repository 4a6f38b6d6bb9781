"""Real servers on loopback ports: one takes email, one takes webhooks, one resolves names."""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Network
from typing import Any

import dns.message
import dns.rdatatype
import dns.resolver
import dns.rrset
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from alerting.notification.senders.webhooks import AddressPolicy
from tests.servers import free_port

# The policy of senders that may reach these servers.
LOOPBACK = AddressPolicy(allowed=(IPv4Network("127.0.0.0/8"),))
MAIL_USER, MAIL_PASSWORD = "vedette", "p@ss/word"


@dataclass
class Mailbox:
    """The emails that a mail server accepted; addresses at `refused.example` are refused."""

    port: int
    mails: list[EmailMessage] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self,
        _server: SMTP,
        _session: Session,
        envelope: Envelope,
        address: str,
        _options: list[str],
    ) -> str:
        if address.endswith("@refused.example"):
            return "550 no such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append(BytesParser(EmailMessage, policy=default).parsebytes(envelope.content))
        return "250 OK"

    def authenticate(
        self,
        _server: SMTP,
        _session: Session,
        _envelope: Envelope,
        _mechanism: str,
        data: Any,  # noqa: ANN401 - aiosmtpd's type
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login.decode())
        return AuthResult(success=data.password.decode() == MAIL_PASSWORD, handled=False)


@contextmanager
def mail_server(
    *, tls: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None
) -> Iterator[Mailbox]:
    """Run a mail server that knows one user and asks nobody to sign in.

    With `tls` it speaks TLS from the start; with `starttls` it takes nothing before STARTTLS.
    """
    mailbox = Mailbox(free_port())
    server = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=mailbox.port,
        authenticator=mailbox.authenticate,
        auth_require_tls=False,
        ssl_context=tls,
        tls_context=starttls,
        require_starttls=starttls is not None,
    )
    server.start()
    try:
        yield mailbox
    finally:
        server.stop()


@dataclass
class Hook:
    """The requests that a webhook's server received, and the status that it answers with."""

    url: str = ""
    status: int = 204
    location: str = ""
    retry_after: str = ""
    content: bytes = b""
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def hook_server(context: ssl.SSLContext | None = None) -> Iterator[Hook]:
    """Run a web server that takes any POST; with a context it speaks TLS."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.posts.append((dict(self.headers), body))
            self.send_response(hook.status)
            if hook.location:
                self.send_header("Location", hook.location)
            if hook.retry_after:
                self.send_header("Retry-After", hook.retry_after)
            self.send_header("Content-Length", str(len(hook.content)))
            self.end_headers()
            self.wfile.write(hook.content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    scheme = "http" if context is None else "https"
    hook.url = f"{scheme}://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def dns_server(addresses: Mapping[str, list[str]]) -> Iterator[dns.resolver.Resolver]:
    """Run a DNS server that knows these names, and ignores all others.

    A name has its first address at the first query, and so on; the last one remains.
    """
    answers = {name: list(texts) for name, texts in addresses.items()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            with suppress(OSError):
                while data := server.recvfrom(512):
                    query = dns.message.from_wire(data[0])
                    question = query.question[0]
                    if texts := answers.get(str(question.name)):
                        reply = dns.message.make_response(query)
                        if question.rdtype == dns.rdatatype.A:
                            address = texts.pop(0) if len(texts) > 1 else texts[0]
                            reply.answer.append(
                                dns.rrset.from_text(question.name, 0, "IN", "A", address)
                            )
                        server.sendto(reply.to_wire(), data[1])

        threading.Thread(target=serve, daemon=True).start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = server.getsockname()[1]
        yield resolver
