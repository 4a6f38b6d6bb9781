"""Senders against a real mail server and a real web server."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from alerting.models import Receiver
from alerting.notification.messages import Message, render
from alerting.notification.models import Notification
from alerting.notification.senders.notify import DeliveryError, EmailSender, WebhookSender
from alerting.states import NotificationState, ReceiverKind
from core.secretbox import SecretBox, new_key
from tests.cast import BOX, NOON, FrozenClock
from tests.servers import free_port
from tests.unit.alerting.helpers import PAYLOAD
from tests.unit.alerting.servers import (
    LOOPBACK,
    MAIL_PASSWORD,
    MAIL_USER,
    Hook,
    Mailbox,
    hook_server,
    mail_server,
)


def message(**changes: object) -> Message:
    return render(
        Notification(
            id="n1",
            payload=PAYLOAD | changes,
            state=NotificationState.WAITING,
            created_at=NOON,
        )
    )


def to(target: str) -> Receiver:
    kind = ReceiverKind.WEBHOOK if target.startswith("http") else ReceiverKind.EMAIL
    return Receiver(name="ops", kind=kind, target=target, secret=BOX.encrypt("vdw_secret"))


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A running mail server's mailbox."""
    with mail_server() as mailbox:
        yield mailbox


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A running web server that takes webhooks."""
    with hook_server() as hook:
        yield hook


def mail_by(mailbox: Mailbox, user: str = "") -> EmailSender:
    return EmailSender(f"smtp://{user}127.0.0.1:{mailbox.port}", "Vedette <alerts@portal.example>")


def test_an_email_arrives_with_proper_headers(mailbox: Mailbox) -> None:
    mail_by(mailbox).send(to("ops@acme.example"), message())
    (mail,) = mailbox.mails
    headers = {name: str(mail[name]) for name in ("From", "To", "Subject", "Date", "Message-ID")}
    assert headers == {
        "From": "Vedette <alerts@portal.example>",
        "To": "ops@acme.example",
        "Subject": "[CRITICAL] GPU <too> hot on gpu-01 (gpu 3): 91 °C",
        "Date": "Mon, 02 Mar 2026 12:00:00 +0000",
        "Message-ID": "<n1@portal.example>",
    }
    assert mail["Auto-Submitted"] == "auto-generated"


def test_an_email_says_the_same_in_text_and_html(mailbox: Mailbox) -> None:
    mail_by(mailbox).send(to("ops@acme.example"), message())
    plain, html = mailbox.mails[0].iter_parts()
    assert plain.get_content_type() == "text/plain"
    lines = plain.get_content().splitlines()
    assert {"Value:      91 °C", "Rule: https://portal.example/rules/r1?a=1&b=2"} <= set(lines)
    assert html.get_content_type() == "text/html"
    assert "GPU &lt;too&gt; hot" in html.get_content()
    assert 'href="https://portal.example/rules/r1?a=1&amp;b=2"' in html.get_content()


def test_the_user_and_password_of_the_url_sign_in(mailbox: Mailbox) -> None:
    user = f"{MAIL_USER}:{quote(MAIL_PASSWORD, safe='')}@"
    mail_by(mailbox, user).send(to("ops@acme.example"), message())
    assert (mailbox.logins, len(mailbox.mails)) == ([MAIL_USER], 1)


def test_a_wrong_mail_password_is_an_error_that_does_not_repeat_it(mailbox: Mailbox) -> None:
    with pytest.raises(DeliveryError, match="535") as caught:
        mail_by(mailbox, "vedette:guessed@").send(to("ops@acme.example"), message())
    assert "guessed" not in caught.value.message


def test_a_refused_address_is_an_error_with_the_servers_words(mailbox: Mailbox) -> None:
    with pytest.raises(DeliveryError, match="no such user here"):
        mail_by(mailbox).send(to("nobody@refused.example"), message())


def test_without_a_mail_server_the_error_names_the_setting() -> None:
    with pytest.raises(DeliveryError, match="Set VEDETTE_SMTP_URL"):
        EmailSender("", "alerts@portal.example").send(to("ops@acme.example"), message())


def test_a_mail_url_of_another_kind_is_an_error_that_hides_it() -> None:
    sender = EmailSender("http://user:hidden@mail.example", "alerts@portal.example")
    with pytest.raises(DeliveryError, match="VEDETTE_SMTP_URL") as caught:
        sender.send(to("ops@acme.example"), message())
    assert "hidden" not in caught.value.message


def test_a_mail_server_that_is_down_is_a_delivery_error() -> None:
    sender = EmailSender(f"smtp://127.0.0.1:{free_port()}", "alerts@portal.example")
    with pytest.raises(DeliveryError, match="connection refused"):
        sender.send(to("ops@acme.example"), message())


def test_a_webhook_gets_the_payload_as_json(hook: Hook) -> None:
    WebhookSender(5.0, policy=LOOPBACK, box=BOX).send(to(hook.url), message())
    ((headers, body),) = hook.posts
    assert headers["Content-Type"] == "application/json"
    subject = "[CRITICAL] GPU <too> hot on gpu-01 (gpu 3): 91 °C"
    added = {"id": "n1", "subject": subject, "text": message().text}
    assert json.loads(body) == PAYLOAD | added


def test_a_webhooks_signature_covers_time_and_body(hook: Hook) -> None:
    WebhookSender(5.0, policy=LOOPBACK, box=BOX, clock=FrozenClock()).send(to(hook.url), message())
    ((headers, body),) = hook.posts
    timestamp = headers["X-Vedette-Timestamp"]
    assert timestamp == str(int(NOON.timestamp()))
    signed = hmac.new(b"vdw_secret", timestamp.encode() + b"." + body, hashlib.sha256)
    assert headers["X-Vedette-Signature"] == f"sha256={signed.hexdigest()}"


def test_a_key_that_no_server_can_open_is_a_delivery_error(hook: Hook) -> None:
    sender = WebhookSender(5.0, policy=LOOPBACK, box=SecretBox([new_key()]))
    with pytest.raises(DeliveryError, match="Add the old key"):
        sender.send(to(hook.url), message())
    assert hook.posts == []


@pytest.mark.parametrize("status", [302, 400, 500])
def test_any_response_but_success_is_an_error_with_its_status(hook: Hook, status: int) -> None:
    hook.status, hook.location = status, hook.url
    with pytest.raises(DeliveryError, match=f"{status}"):
        WebhookSender(5.0, policy=LOOPBACK, box=BOX).send(to(hook.url), message())
    assert len(hook.posts) == 1


def test_an_error_does_not_repeat_the_secrets_of_a_webhooks_address() -> None:
    port = free_port()
    target = f"http://user:hidden@127.0.0.1:{port}/services/T0/hidden"
    with pytest.raises(DeliveryError, match=rf"127\.0\.0\.1:{port} did not respond") as caught:
        WebhookSender(5.0, policy=LOOPBACK, box=BOX).send(to(target), message())
    assert "hidden" not in caught.value.message
    assert "connection refused" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        (
            {"state": "resolved", "value": 70.0, "value_text": "70 °C"},
            "[RESOLVED] GPU <too> hot on gpu-01 (gpu 3): 70 °C",
        ),
        (
            {"state": "no_data", "value": None, "value_text": "no data", "tags": {}},
            "[NO DATA] GPU <too> hot",
        ),
    ],
)
def test_a_subject_says_what_happened_and_where(changes: dict[str, object], subject: str) -> None:
    assert message(**changes).subject == subject


def test_line_breaks_in_tags_never_reach_a_header(mailbox: Mailbox) -> None:
    breaking = message(tags={"mount": "a\r\nBcc: all@acme.example"})
    mail_by(mailbox).send(to("ops@acme.example"), breaking)
    assert mailbox.mails[0]["Bcc"] is None
