"""Emails that come in: what is read of them, and what is ignored."""

import time
from email.message import EmailMessage

import pytest

from core.settings import ServerSettings
from marketplace.support.desk import Desk
from marketplace.support.emails import REPLY_ABOVE
from marketplace.support.mail_text import read_reply, without_quote
from marketplace.support.requests import MAX_FILES_BYTES
from tests.unit.marketplace.support_builders import DESK

TICKET = "01998c5e-3c2a-7b1e-9f6d-2a4b8c0d1e2f"
USER = "01998c5e-3c2a-7b1e-9f6d-2a4b8c0d1e30"


def mail(text: str = "It works.", **headers: str) -> EmailMessage:
    """Return an email; underscores in names of headers are hyphens."""
    message = EmailMessage()
    values = {"From": "Bob <Bob@acme.example>", "To": "support@portal.example", **headers}
    for name, value in values.items():
        message[name.replace("_", "-")] = value
    message.set_content(text)
    return message


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("It works.", "It works."),
        ("It works.\n\nOn Mon, 2 Mar 2026, Vedette wrote:\n> no\n> yes", "It works."),
        ("It works.\n\nOn Mon, 2 Mar 2026 at 12:00, Vedette <a@b>\nwrote:\n> no", "It works."),
        ("It works.\n-----Original Message-----\nFrom: x", "It works."),
        ("It works.\n\nAm Mo., 2. März 2026 schrieb Vedette:\n> nein", "It works."),
        ("It works.\r\n________________________________\r\nFrom: x", "It works."),
        (f"It works.\n{REPLY_ABOVE}\nold", "It works."),
        (f"It works.\n> {REPLY_ABOVE}\n> old", "It works."),
        ("It works.\n-- \nBob\nAcme", "It works."),
        ("> You asked\nNo.\n> and\nYes.", "No.\nYes."),
        ("On it.\nIt wrote: nothing", "On it.\nIt wrote: nothing"),
        ("", ""),
    ],
)
def test_only_what_was_written_above_the_quote_is_kept(text: str, written: str) -> None:
    assert without_quote(text) == written


def test_html_is_read_for_its_text() -> None:
    message = EmailMessage()
    message["From"] = "bob@acme.example"
    message.set_content(
        "<html><head><title>no</title><style>p{}</style></head><body><p>It <b>works</b>.</p>"
        "<div>Thanks</div><script>alert(1)</script><div class='gmail_quote'>On x wrote:"
        "<div>old</div></div></body></html>",
        subtype="html",
    )
    assert read_reply(message.as_bytes()).text == "It works.\nThanks"


def test_files_above_the_bounds_are_named_but_not_taken() -> None:
    message = mail()
    for name, content in (("a.log", b"x" * 10), ("big.bin", b"x" * MAX_FILES_BYTES)):
        message.add_attachment(content, maintype="application", subtype="x", filename=name)
    reply = read_reply(message.as_bytes())
    assert [(file.name, len(file.content)) for file in reply.files] == [("a.log", 10)]
    assert reply.text.startswith("It works.\n\n(Not attached")
    assert "big.bin" in reply.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto_Submitted": "auto-replied"},
        {"Auto_Submitted": "auto-generated"},
        {"Precedence": "bulk"},
        {"List_Id": "<x.example>"},
        {"X_Autoreply": "yes"},
        {"Return_Path": "<>"},
    ],
)
def test_programs_are_ignored(headers: dict[str, str]) -> None:
    assert read_reply(mail(**headers).as_bytes()).ignored
    assert not read_reply(mail().as_bytes()).ignored


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe\x00",
        b"From: x\n\n",
        b"From: =?utf-9?q?x?= <x@\nTo: <<<>>>@,;\n\nx",
        b"Content-Type: text/plain; charset=nonsense\n\nx",
        b"Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: multipart/mixed\n\n",
        b"From: a@b.example\nContent-Transfer-Encoding: base64\n\n%%%",
        b"From: " + b"a" * 100_000 + b"\n\nx",
        b"To: " + b"a@b.example, " * 10_000 + b"\n\nx",
        b"To: a@b.example\n" * 50_000 + b"\nx",
        b"From: " + b"(" * 5000 + b"\n\nx",
        b"".join(
            b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (number, number)
            for number in range(2000)
        ),
        b"Content-Type: message/rfc822\n\n" * 2000,
        b"Content-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\nx\n" * 400_000,
        b"Content-Type: text/plain; charset=punycode\n\na-" + b"b9c" * 1_000_000,
        *(
            b"Content-Type: text/html\n\n" + tag * (3_000_000 // len(tag))
            for tag in (b"<a ", b"<!--", b'<a b="c" ', b"<a a='")
        ),
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_broken_emails_raise_nothing_and_are_read_in_seconds(raw: bytes) -> None:
    began_at = time.process_time()
    reply = read_reply(raw)
    assert time.process_time() - began_at < 10
    assert isinstance(reply.text, str)
    assert len(reply.recipients) <= 50


def test_halves_of_characters_are_not_stored() -> None:
    raw = b"From: a@b.example\nContent-Type: text/plain; charset=unicode_escape\n\nx\\ud800y"
    assert read_reply(raw).text == "x?y"


def test_an_address_is_for_a_ticket_and_its_recipient() -> None:
    address = DESK.reply_address(TICKET, USER)
    local, _, domain = address.partition("@")
    assert len(local) <= 64
    assert domain == "portal.example"
    named = DESK.ticket_of(address.upper())
    assert named is not None
    ticket_id, signature = named
    assert ticket_id == TICKET
    assert DESK.is_signed_for(TICKET, USER, signature)
    assert not DESK.is_signed_for(TICKET, TICKET, signature)
    assert not DESK.is_signed_for(USER, USER, signature)
    for other in ("support@portal.example", "support+x@portal.example", "a+b@c", "", f"x{address}"):
        assert DESK.ticket_of(other) is None
    assert Desk(ServerSettings(secret_key="x")).reply_address(TICKET, USER) == ""
