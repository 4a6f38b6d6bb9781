"""Senders of notifications: email and signed webhooks.

A sender delivers or raises `DeliveryError`; the outbox retries. Delivery is at least once, and
receivers detect duplicates by an email's Message-ID or the `id` in a webhook's body.
"""

import hashlib
import hmac
import ipaddress
import json
import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from html import escape
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from socket import gaierror
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from alerting.models import Receiver
from alerting.notification.messages import Message
from alerting.notification.receivers import signing_key
from alerting.notification.senders.webhooks import AddressPolicy, BlockedAddressError, WebhookClient
from core.clock import Clock, utc_now
from core.errors import UnavailableError
from core.network_errors import why_it_failed
from core.secretbox import SecretBox

SIGNATURE_HEADER = "X-Vedette-Signature"
TIMESTAMP_HEADER = "X-Vedette-Timestamp"
SMTP_TIMEOUT_SECONDS = 15.0
MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_PICTURES = 3
_PORTS = {"smtp": 25, "smtps": 465}


class DeliveryError(UnavailableError):
    """A delivery failed; the notification's row stores the message.

    `retry_after_seconds` is what the receiver asks for, as with 429 Too Many Requests.
    `may_have_arrived` is True if the answer is missing: the receiver may have got the message.
    `is_final` is True if another attempt would be refused alike.
    """

    default_code = "delivery_failed"

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float = 0.0,
        may_have_arrived: bool = False,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.may_have_arrived = may_have_arrived
        self.is_final = is_final


class Sender(Protocol):
    """Delivers messages of one kind."""

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver the message or raise `DeliveryError`."""


class EmailSender:
    """Sends email through one SMTP server.

    Args:
        smtp_url: `smtp://user:password@host:port`, or `smtps://` for implicit TLS. STARTTLS is used
            where the server offers it, except on this host.
        mail_from: the sender's address.
        picture_of: returns the picture of an alert's payload as PNG, with times in a zone, if there
            is one.
    """

    def __init__(
        self,
        smtp_url: str,
        mail_from: str,
        *,
        picture_of: Callable[[dict[str, Any], tzinfo], bytes | None] = lambda _payload, _zone: None,
    ) -> None:
        self._smtp_url = smtp_url
        self._mail_from = mail_from
        self._picture_of = picture_of

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one email, text and HTML."""
        self.deliver(receiver.target, message)

    def deliver(self, target: str, message: Message) -> None:
        """Deliver one email to an address."""
        mail = self._compose(target, message)
        with self._signed_in("did not accept the message") as server:
            server.send_message(mail)

    def check(self) -> None:
        """Sign in to the mail server, and send nothing.

        Raises:
            DeliveryError: it does not answer, or refuses the password.
        """
        with self._signed_in("can't be used") as server:
            server.noop()

    @contextmanager
    def _signed_in(self, failure: str) -> Iterator[smtplib.SMTP]:
        url = self._checked_url()
        try:
            with _connect(url) as server:
                if url.username:
                    server.login(unquote(url.username), unquote(url.password or ""))
                yield server
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryError(
                f"The mail server {url.hostname} {failure}: {_plain(error)}",
                may_have_arrived=isinstance(error, TimeoutError | smtplib.SMTPServerDisconnected),
            ) from error

    def _checked_url(self) -> SplitResult:
        if not self._smtp_url:
            raise DeliveryError(
                "No mail server is configured. Set VEDETTE_SMTP_URL, for example to "
                "smtp://user:password@mail.example.com:587, and restart the server."
            )
        url = urlsplit(self._smtp_url)
        if url.scheme not in _PORTS or not url.hostname:
            raise DeliveryError(
                "VEDETTE_SMTP_URL is invalid. "
                "Use the form smtp://user:password@host:port or smtps://..."
            )
        return url

    def _compose(self, target: str, message: Message) -> EmailMessage:
        domain = parseaddr(self._mail_from)[1].rpartition("@")[2] or "localhost"
        mail = EmailMessage()
        mail["From"] = self._mail_from
        mail["To"] = target
        mail["Subject"] = message.subject
        mail["Date"] = format_datetime(message.created_at)
        mail["Message-ID"] = f"<{message.id}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        if reply_to := message.payload.get("reply_to"):
            mail["Reply-To"] = reply_to
        if thread := message.payload.get("thread"):
            mail["References"] = f"<{thread}@{domain}>"
        mail.set_content(message.text)
        self._add_html(mail, message, domain)
        if message.file is not None:
            maintype, _, subtype = message.file.media_type.partition("/")
            mail.add_attachment(
                message.file.content, maintype=maintype, subtype=subtype, filename=message.file.name
            )
        return mail

    def _add_html(self, mail: EmailMessage, message: Message, domain: str) -> None:
        """Add the HTML with pictures of its first alerts, which are parts of the email."""
        alerts = message.payload.get("alerts", [message.payload])
        shown = [alert for alert in alerts if "alert_id" in alert][:MAX_PICTURES]
        drawn = [(alert, self._picture_of(alert, message.zone)) for alert in shown]
        pictures = [(alert, picture) for alert, picture in drawn if picture]
        images = "".join(
            f'<p><img src="cid:{alert["alert_id"]}@{domain}" width="600" style="max-width:100%" '
            f'alt="{escape(_alternative(alert))}"></p>'
            for alert, _ in pictures
        )
        before, body, after = message.html.rpartition("</body>")
        html = f"{before}{images}{body}{after}" if body else message.html + images
        mail.add_alternative(html, subtype="html")
        part = mail.get_body(("html",))
        for alert, picture in pictures:
            if isinstance(part, EmailMessage):
                part.add_related(picture, "image", "png", cid=f"<{alert['alert_id']}@{domain}>")


class WebhookSender:
    """Posts the payload as JSON, signed with the receiver's key.

    The signature is the hex HMAC-SHA256 of `timestamp.body`, with the timestamp of the header. A
    receiver computes the same and rejects old timestamps.

    Args:
        timeout_seconds: limit for connecting to an address, and then for the whole response.
        box: decrypts the keys of receivers.
        policy: which addresses may be reached; public ones by default.
        clock: time of the signature.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        box: SecretBox,
        policy: AddressPolicy | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._client = WebhookClient(timeout_seconds, policy=policy or AddressPolicy())
        self._box = box
        self._clock = clock

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message."""
        payload = message.payload | {"text": message.text}
        body = json.dumps(payload, ensure_ascii=False, sort_keys=True).encode()
        self.post(receiver, receiver.target, body)

    def post(self, receiver: Receiver, url: str, body: bytes) -> None:
        """Post JSON to a URL, signed with the receiver's key; any response but 2xx is a failure."""
        timestamp = str(int(self._clock().timestamp()))
        try:
            key = signing_key(receiver, self._box)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "vedette",
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: f"sha256={sign(key, timestamp, body)}",
        }
        host = urlsplit(url).netloc.rpartition("@")[2]
        with delivered(f"The webhook at {host}"):
            response, _ = self._client.request("POST", url, body=body, headers=headers)
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise DeliveryError(
                f"The webhook at {host} responded {response.status} {response.reason}",
                retry_after_seconds=retry_after_seconds(response),
            )


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the hex HMAC-SHA256 of timestamp and body."""
    signed = timestamp.encode() + b"." + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


@contextmanager
def delivered(name: str) -> Iterator[None]:
    """Raise `DeliveryError` if the block can't send a request to a receiver."""
    try:
        yield
    except BlockedAddressError as error:
        raise DeliveryError(error.message_for(name.rpartition(" ")[2])) from error
    except (OSError, HTTPException) as error:
        raise DeliveryError(
            f"{name} did not respond: {why_it_failed(error)}.",
            may_have_arrived=not isinstance(error, ConnectionRefusedError | gaierror),
        ) from error


def retry_after_seconds(response: HTTPResponse) -> float:
    """Return after how long a receiver asks for another attempt: a day at most."""
    try:
        seconds = Retry().parse_retry_after(response.headers.get("Retry-After", "0"))
    except (InvalidHeader, ValueError):  # the latter for thousands of digits
        return 0.0
    return min(seconds, MAX_RETRY_AFTER_SECONDS)


def _alternative(payload: dict[str, Any]) -> str:
    """Return what a picture shows, for those who don't see it."""
    threshold = payload.get("threshold_text")
    limit = f", threshold {threshold}" if threshold else ""
    return f"Series of {payload['rule']}: now {payload['value_text']}{limit}"


def _connect(url: SplitResult) -> smtplib.SMTP:
    host, port = url.hostname or "", url.port or _PORTS[url.scheme]
    if url.scheme == "smtps":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(host, port, timeout=SMTP_TIMEOUT_SECONDS, context=context)
    server = smtplib.SMTP(host, port, timeout=SMTP_TIMEOUT_SECONDS)
    try:
        server.ehlo()
        if server.has_extn("starttls") and not _is_this_host(host):
            server.starttls(context=ssl.create_default_context())
    except BaseException:
        server.close()
        raise
    return server


def _is_this_host(host: str) -> bool:
    """Return whether the server is local: such servers often have self-signed certificates."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _plain(error: Exception) -> str:
    if not isinstance(error, smtplib.SMTPResponseException):
        return why_it_failed(error)
    text = error.smtp_error
    answer = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"{error.smtp_code} {answer}"
