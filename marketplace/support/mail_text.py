"""Emails that come in, as text: what was written above the quote, files, and whether to ignore it.

Emails are not trusted: their size is bounded before they come here, their HTML is only read for its
text, and programs that answer by themselves are ignored.
"""

import re
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import getaddresses, parseaddr
from html.parser import HTMLParser

from core.quantities import format_size
from marketplace.support.emails import REPLY_ABOVE
from marketplace.support.models import MAX_TEXT_LENGTH
from marketplace.support.requests import MAX_FILES, MAX_FILES_BYTES, File

MAX_PARTS = 100
MAX_RECIPIENTS = 50
# Before the quote is cut off.
_MAX_READ_LENGTH = 500_000
_RECIPIENTS = ("Delivered-To", "X-Original-To", "Envelope-To", "To", "Cc")
_QUOTES = re.compile(
    r"^(?:"
    r"-{2,}\s*Write your reply above this line.*"
    r"|-{2,}\s*Original Message\s*-{2,}"
    r"|_{20,}"
    r"|(?:On|Am|Le|El) .{0,200}(?:wrote|schrieb.{0,200}|écrit|escribió)\s*:"
    r"|From: .{0,200}"
    r"|-- "
    r")$",
    re.IGNORECASE,
)
_SKIPPED_TAGS = {"blockquote", "style", "script", "head", "title"}
_BREAKS = {"br", "p", "div", "tr", "li", "h1", "h2", "h3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An email to the portal.

    Attributes:
        sender: its address, in lower case; "" if it has none.
        recipients: the addresses that it was sent to, in lower case.
        message_id: "" if it has none.
        text: what was written, without what it quotes, and with what was not taken.
        files: attached to it, within the bounds of messages.
        ignored: why nothing is done with it, such as that a program sent it; "" if it is.
    """

    sender: str
    recipients: list[str]
    message_id: str
    text: str
    files: list[File]
    ignored: str


def read_reply(raw: bytes) -> Reply:
    """Return what an email says; whatever is wrong with it, it raises nothing."""
    mail = message_from_bytes(raw, policy=policy.default)
    try:
        return _read(mail)
    except (LookupError, ValueError, AttributeError, TypeError, IndexError) as error:
        # The standard library's parser fails on some headers and charsets.
        return Reply(
            sender="",
            recipients=[],
            message_id="",
            text="",
            files=[],
            ignored=f"it can't be parsed: {type(error).__name__}",
        )


def without_quote(text: str) -> str:
    """Return what was written above the quoted message and the signature."""
    lines = text.replace("\r\n", "\n").replace(REPLY_ABOVE, f"\n{REPLY_ABOVE}").split("\n")
    written: list[str] = []
    for number, line in enumerate(lines):
        plain = line.lstrip("> ") if line.startswith(">") else line
        # Programs break `On ... wrote:` into two lines.
        joined = f"{line} {lines[number + 1]}" if number + 1 < len(lines) else line
        if _QUOTES.match(line if line == "-- " else plain.strip()) or _is_attribution(joined):
            break
        if not line.startswith(">"):
            written.append(line.rstrip())
    return "\n".join(written).strip()


def _is_attribution(text: str) -> bool:
    return bool(re.match(r"On .{5,200} wrote:\s*$", text.strip()))


def _read(mail: EmailMessage) -> Reply:
    text, files, dropped = _content(mail)
    if dropped:
        limit = format_size(MAX_FILES_BYTES)
        names = ", ".join(dropped[:10])
        text = f"{text}\n\n(Not attached, as a message has {MAX_FILES} files and {limit}: {names})"
    headers = [str(value) for name in _RECIPIENTS for value in mail.get_all(name, [])]
    addresses = [address.lower() for _, address in getaddresses(headers[:MAX_RECIPIENTS])]
    return Reply(
        sender=parseaddr(str(mail.get("From", "")))[1].lower(),
        recipients=addresses[:MAX_RECIPIENTS],
        message_id=str(mail.get("Message-ID", "")).strip(),
        text=text[:MAX_TEXT_LENGTH],
        files=files,
        ignored=_why_ignored(mail),
    )


def _why_ignored(mail: EmailMessage) -> str:
    """Return why an email is none that a person wrote to us; "" if it may be."""
    submitted = str(mail.get("Auto-Submitted", "no")).strip().lower()
    if submitted != "no":
        return f"Auto-Submitted is {submitted[:40]}"
    if str(mail.get("Precedence", "")).strip().lower() in {"bulk", "junk", "list", "auto_reply"}:
        return "it was sent in bulk"
    for name in ("List-Id", "X-Autoreply", "X-Autorespond", "X-Auto-Response"):
        if mail.get(name) is not None:
            return f"it has {name}"
    if mail.get_content_type() == "multipart/report":
        return "it is a report of a mail server"
    if str(mail.get("Return-Path", "x")).strip() == "<>":
        return "it has no return path"
    return ""


def _content(mail: EmailMessage) -> tuple[str, list[File], list[str]]:
    """Return the text of an email, its files, and the names of files above the bounds."""
    body = mail.get_body(("plain", "html"))
    text = ""
    if body is not None:
        text = str(body.get_content())[:_MAX_READ_LENGTH]
        text = _text_of(text) if body.get_content_subtype() == "html" else text
    files: list[File] = []
    dropped: list[str] = []
    size = 0
    for number, part in enumerate(mail.walk()):
        if number >= MAX_PARTS:
            break
        if part.is_multipart() or not (part.is_attachment() or part.get_filename()):
            continue
        name = part.get_filename() or "file"
        content = part.get_payload(decode=True)
        if not isinstance(content, bytes) or not content:
            continue
        if len(files) >= MAX_FILES or size + len(content) > MAX_FILES_BYTES:
            dropped.append(name[:100])
            continue
        files.append(File(name, content))
        size += len(content)
    return without_quote(text), files, dropped


class _Text(HTMLParser):
    """Collects the text of HTML that is no quote."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_quote = tag == "div" and "gmail_quote" in (dict(attrs).get("class") or "")
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.append(tag)
        elif tag in _SKIPPED_TAGS or is_quote:
            self._skipped.append(tag)
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped and tag == self._skipped[-1]:
            self._skipped.pop()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.parts.append(" ".join(data.split()) + (" " if data[-1:].isspace() else ""))


def _text_of(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    parser.close()
    return re.sub(r"\n{3,}", "\n\n", "".join(parser.parts)).strip()
