"""Email over TLS, from the start and by STARTTLS, to a real mail server."""

import ssl
from pathlib import Path

import pytest

from alerting.notification.senders.notify import DeliveryError, EmailSender
from tests.fixtures.certificates import Authority
from tests.unit.alerting.servers import mail_server
from tests.unit.alerting.test_notify import message, to

# Loopback, but not named like this host, where STARTTLS is not used.
ELSEWHERE = "127.1"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a server whose authority this process trusts."""
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("mail")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_smtps_speaks_tls_from_the_start(context: ssl.SSLContext) -> None:
    with mail_server(tls=context) as mailbox:
        sender = EmailSender(f"smtps://127.0.0.1:{mailbox.port}", "alerts@portal.example")
        sender.send(to("ops@acme.example"), message())
    assert [mail["To"] for mail in mailbox.mails] == ["ops@acme.example"]


def test_starttls_is_used_where_the_server_offers_it(context: ssl.SSLContext) -> None:
    with mail_server(starttls=context) as mailbox:
        sender = EmailSender(f"smtp://{ELSEWHERE}:{mailbox.port}", "alerts@portal.example")
        sender.send(to("ops@acme.example"), message())
    assert [mail["To"] for mail in mailbox.mails] == ["ops@acme.example"]


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_certificate_that_is_not_trusted_is_an_error(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    other = Authority(tmp_path / "other", "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(other.certificate))
    contexts = {"tls": context} if scheme == "smtps" else {"starttls": context}
    with mail_server(**contexts) as mailbox:
        sender = EmailSender(f"{scheme}://{ELSEWHERE}:{mailbox.port}", "alerts@portal.example")
        with pytest.raises(DeliveryError, match=r"(?i)certificate"):
            sender.send(to("ops@acme.example"), message())
    assert mailbox.mails == []
