"""Access points with TLS: one that hangs, and one whose certificate is not trusted."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from collector.tls import TLSContexts, TLSFiles
from protocol.attempts import DesiredState
from protocol.heartbeat import Heartbeat
from tests.fixtures.certificates import Authority
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal


@contextmanager
def hanging_tls_server(authority: Authority) -> Iterator[str]:
    """Run a server that finishes the handshake, and never answers a request."""
    pair = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    accepted: list[socket.socket] = []

    def accept() -> None:
        try:
            accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))
        except OSError:
            return  # the client refuses the certificate

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=accept)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()
    for connection in accepted:
        connection.close()


def test_a_request_over_tls_that_hangs_is_repeated_at_the_next_address(
    tmp_path: Path, portal: RecordingPortal
) -> None:
    authority = Authority(tmp_path, "authority")
    portal.desire(DesiredState(generation=5))
    with hanging_tls_server(authority) as hanging:
        points = AccessPoints([hanging, portal.url])
        tls = TLSContexts(TLSFiles(authority.certificate))
        link = PortalConnection(points, agent_token=AGENT_TOKEN, tls=tls)
        received: list[DesiredState | None] = []
        thread = Thread(target=lambda: received.append(link.desired(4, wait_seconds=20.0)))
        thread.start()
        in_use = link.http
        eventually(lambda: bool(in_use._in_use and in_use._in_use.is_connected))  # noqa: SLF001
        points.judge("no response", {hanging: None, portal.url: 0.01})
        thread.join(10)
        assert received == [DesiredState(generation=5)]
        link.close()


def test_an_address_with_an_untrusted_certificate_is_left_at_once(
    tmp_path: Path, portal: RecordingPortal
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    trusted = Authority(tmp_path / "trusted", "trusted")
    with hanging_tls_server(stranger) as untrusted:
        points = AccessPoints([untrusted, portal.url])
        tls = TLSContexts(TLSFiles(trusted.certificate))
        link = PortalConnection(points, agent_token=AGENT_TOKEN, tls=tls)
        link.heartbeat(Heartbeat(agent_version="0.1.0", sent_at_ns=1))
        assert points.current == portal.url
        assert "certificate verify failed" in points.state.reason
        link.close()
