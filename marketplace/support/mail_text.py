"""Emails that come in, as text: what was written above the quote, files, and whether to ignore it.

Emails are not trusted: their size is bounded before they come here, their HTML is only read for its
text, and programs that answer by themselves are ignored. Whatever makes the standard library's
parsers slow is bounded, too: anybody may write to the mailbox.
"""

import codecs
import re
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import getaddresses, parseaddr
from html.parser import HTMLParser
from itertools import islice
from typing import Any, cast

from core.quantities import format_size
from marketplace.support.emails import REPLY_ABOVE
from marketplace.support.models import MAX_TEXT_LENGTH
from marketplace.support.requests import MAX_FILES, MAX_FILES_BYTES, File

MAX_PARTS = 100
# The parser compares each line with the boundaries of all parts that it is in.
MAX_BOUNDARIES = 50
MAX_BOUNDARY_LINES = 2000
MAX_RECIPIENTS = 50
# Of a header; programs that send emails have lines of 998 characters at most.
MAX_HEADER_LENGTH = 10_000
# Before the quote is cut off.
_MAX_READ_LENGTH = 200_000
_RECIPIENTS = {"delivered-to", "x-original-to", "envelope-to", "to", "cc"}
# Decoding them takes quadratic time.
_SLOW_CHARSETS = {"punycode", "idna"}
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


class _Policy(EmailPolicy):
    """Parses only the beginning of long headers."""

    def header_fetch_parse(self, name: str, value: str) -> Any:  # noqa: ANN401 - as its base class
        return super().header_fetch_parse(name, value[:MAX_HEADER_LENGTH])


_POLICY = cast("EmailPolicy[EmailMessage]", _Policy())
_BOUNDARY = re.compile(rb"boundary[*0]*\s*=", re.IGNORECASE)


def read_reply(raw: bytes) -> Reply:
    """Return what an email says; whatever is wrong with it, it raises nothing."""
    try:
        return _read(raw)
    except Exception as error:  # noqa: BLE001 - others must be read after a stranger's email
        # The standard library's parser fails on some headers, charsets and deep nesting.
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


def _read(raw: bytes) -> Reply:
    lines = raw.count(b"\n--") + raw.count(b"\r--")
    if len(_BOUNDARY.findall(raw)) > MAX_BOUNDARIES or lines > MAX_BOUNDARY_LINES:
        raise ValueError
    mail = message_from_bytes(raw, policy=_POLICY)
    text, files, dropped = _content(mail)
    if dropped:
        limit = format_size(MAX_FILES_BYTES)
        names = ", ".join(dropped[:10])
        text = f"{text}\n\n(Not attached, as a message has {MAX_FILES} files and {limit}: {names})"
    headers = [
        value[:MAX_HEADER_LENGTH] for name, value in mail.raw_items() if name.lower() in _RECIPIENTS
    ]
    addresses = [address.lower() for _, address in getaddresses(headers[:MAX_RECIPIENTS])]
    return Reply(
        sender=parseaddr(str(mail.get("From", "")))[1].lower(),
        recipients=addresses[:MAX_RECIPIENTS],
        message_id=str(mail.get("Message-ID", "")).strip(),
        # Some charsets decode to halves of characters, which no database takes.
        text=text.encode(errors="replace").decode()[:MAX_TEXT_LENGTH],
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
    parts = list(islice(mail.walk(), MAX_PARTS + 1))
    if len(parts) > MAX_PARTS:
        raise ValueError
    body = mail.get_body(("plain", "html"))
    text = ""
    if isinstance(body, EmailMessage):
        text = _decoded(body)
        text = _text_of(text) if body.get_content_subtype() == "html" else text
    files: list[File] = []
    dropped: list[str] = []
    size = 0
    for part in parts:
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


def _decoded(part: EmailMessage) -> str:
    charset = part.get_content_charset("ascii")
    if codecs.lookup(charset).name in _SLOW_CHARSETS:
        raise LookupError(charset)
    content = part.get_payload(decode=True)
    data = content[: 4 * _MAX_READ_LENGTH] if isinstance(content, bytes) else b""
    return data.decode(charset, errors="replace")[:_MAX_READ_LENGTH]


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
    # The parser takes quadratic time for tags and comments that do not end.
    first, *others = html.split("<!--")
    html = "".join([first, *(other.partition("-->")[2] for other in others)])
    parser = _Text()
    parser.feed(re.sub(r"<(?![a-zA-Z/!][^<>]*>)", "&lt;", html))
    parser.close()
    return re.sub(r"\n{3,}", "\n\n", "".join(parser.parts)).strip()
