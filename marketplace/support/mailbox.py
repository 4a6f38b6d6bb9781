"""The mailbox that replies by email come to, by IMAP: `imaps://user:password@host:993/INBOX`."""

import imaplib
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from core.errors import UnavailableError
from core.network_errors import why_it_failed

TIMEOUT_SECONDS = 20.0
# Of an email: base64 makes the files of a message longer by a third, and there is HTML.
MAX_EMAIL_BYTES = 4 * 1024**2
# Read in a turn; the next one reads on.
MAX_EMAILS = 50
_PORTS = {"imap": 143, "imaps": 993}
_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")


class Mailbox:
    """A signed-in IMAP connection with a folder selected."""

    def __init__(self, server: imaplib.IMAP4) -> None:
        self._server = server

    def unread(self) -> list[str]:
        """Return the UIDs of emails that were not read, the oldest first."""
        _, data = self._server.uid("SEARCH", "UNSEEN")
        return [uid.decode() for uid in (data[0] or b"").split()[:MAX_EMAILS]]

    def fetch(self, uid: str) -> bytes | None:
        """Return an email, which stays unread; None if it is gone, or larger than is read."""
        _, data = self._server.uid("FETCH", uid, "(RFC822.SIZE)")
        match = _SIZE.search(b" ".join(part for part in data if isinstance(part, bytes)))
        if match is None or int(match[1]) > MAX_EMAIL_BYTES:
            return None
        _, data = self._server.uid("FETCH", uid, "(BODY.PEEK[])")
        return next((bytes(part[1]) for part in data if isinstance(part, tuple)), None)

    def mark_read(self, uid: str) -> None:
        """Mark an email as read, so that it is not read again."""
        self._server.uid("STORE", uid, "+FLAGS.SILENT", r"(\Seen)")


@contextmanager
def open_mailbox(url: str) -> Iterator[Mailbox]:
    """Sign in to a mailbox; STARTTLS is used with `imap://` where the server offers it.

    Raises:
        UnavailableError: it does not answer, or refuses the password or the folder.
    """
    parts = urlsplit(url)
    host, folder = parts.hostname or "", unquote(parts.path.strip("/")) or "INBOX"
    try:
        server = _connect(parts.scheme, host, parts.port)
        try:
            if "STARTTLS" in server.capabilities and parts.scheme == "imap" and not _is_local(host):
                server.starttls(ssl.create_default_context())
            server.login(unquote(parts.username or ""), unquote(parts.password or ""))
            quoted = folder.replace("\\", "\\\\").replace('"', '\\"')
            status, answer = server.select(f'"{quoted}"')
            if status != "OK":
                text = answer[0].decode(errors="replace") if answer and answer[0] else status
                raise UnavailableError(f"The mail server {host} has no folder {folder!r}: {text}")
            yield Mailbox(server)
        finally:
            with suppress(OSError, imaplib.IMAP4.error):
                server.logout()
    except imaplib.IMAP4.error as error:
        raise UnavailableError(f"The mail server {host} refuses: {error}") from error
    except OSError as error:
        raise UnavailableError(f"The mail server {host} fails: {why_it_failed(error)}") from error


def _connect(scheme: str, host: str, port: int | None) -> imaplib.IMAP4:
    if scheme == "imaps":
        return imaplib.IMAP4_SSL(
            host,
            port or _PORTS[scheme],
            ssl_context=ssl.create_default_context(),
            timeout=TIMEOUT_SECONDS,
        )
    return imaplib.IMAP4(host, port or _PORTS[scheme], timeout=TIMEOUT_SECONDS)


def _is_local(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", "::1"}
