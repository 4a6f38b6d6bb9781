"""Tickets by email: out through an SMTP server, and the reply in from Dovecot by IMAP."""

import imaplib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import EmailMessage
from pathlib import Path

import pytest
from sqlalchemy import select

from alerting.notification.messages import render
from alerting.notification.models import Notification
from alerting.notification.senders.notify import EmailSender
from core.db import SessionFactory
from core.errors import UnavailableError
from marketplace.support import inbound
from marketplace.support.desk import Desk
from marketplace.support.mailbox import MAX_EMAIL_BYTES, open_mailbox
from marketplace.support.models import Ticket, TicketEntry
from marketplace.support.states import TicketState
from tests.cast import Cast, FrozenClock
from tests.servers import free_port, require_program, require_root, running
from tests.unit.alerting.servers import mail_server
from tests.unit.marketplace.support_builders import SETTINGS, ask

pytestmark = pytest.mark.needs_root
PASSWORD = "p@ss/word"


@dataclass(frozen=True)
class Inbox:
    """A mailbox on a real server."""

    url: str
    port: int

    def add(self, mail: EmailMessage | bytes) -> None:
        """Deliver an email."""
        raw = mail if isinstance(mail, bytes) else mail.as_bytes()
        with imaplib.IMAP4("127.0.0.1", self.port) as server:
            server.login("support", PASSWORD)
            server.append("INBOX", "", "", raw)

    def unread(self) -> int:
        with open_mailbox(self.url) as mailbox:
            return len(mailbox.unread())


@pytest.fixture(scope="module")
def dovecot() -> Iterator[Inbox]:
    """A Dovecot server with one user, without TLS."""
    program = require_program("dovecot", package="dovecot-imapd")
    require_root("lets Dovecot change its user")
    folder, port = Path(tempfile.mkdtemp(prefix="dovecot-")), free_port()
    folder.chmod(0o755)
    mail = folder / "mail"
    mail.mkdir()
    shutil.chown(mail, "nobody", "nogroup")
    config = folder / "dovecot.conf"
    config.write_text(
        f"""
protocols = imap
listen = 127.0.0.1
base_dir = {folder}/run
state_dir = {folder}/state
log_path = /dev/stderr
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{mail}/%u
passdb {{
  driver = static
  args = password={PASSWORD}
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={mail}/%u
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""
    )
    log_path = folder / "log"
    with running([program, "-F", "-c", str(config)], log_path=log_path):
        inbox = Inbox(f"imap://support:p%40ss%2Fword@127.0.0.1:{port}/INBOX", port)
        _wait(inbox, log_path)
        yield inbox
    shutil.rmtree(folder, ignore_errors=True)


def _wait(inbox: Inbox, log_path: Path) -> None:
    end_at = time.monotonic() + 30
    while time.monotonic() < end_at:
        with suppress(UnavailableError):
            inbox.unread()
            return
        time.sleep(0.2)
    pytest.fail(log_path.read_text())


@pytest.fixture
def inbox(dovecot: Inbox) -> Inbox:
    """The mailbox, empty."""
    with imaplib.IMAP4("127.0.0.1", dovecot.port) as server:
        server.login("support", PASSWORD)
        _, (count,) = server.select("INBOX")
        if count != b"0":
            server.store("1:*", "+FLAGS", r"(\Deleted)")
            server.expunge()
    return dovecot


@pytest.fixture
def desk(inbox: Inbox) -> Desk:
    return Desk(replace(SETTINGS, support_imap_url=inbox.url))


@pytest.fixture
def ticket(sessions: SessionFactory, cast: Cast, desk: Desk) -> Ticket:
    """A ticket of bob's to the operator."""
    with sessions.begin() as session:
        return ask(session, cast.bob, desk=desk)


def receive(sessions: SessionFactory, desk: Desk, clock: FrozenClock) -> int:
    return inbound.receive(sessions, desk, clock=clock, is_stopping=lambda: False)


def reply(sender: str, to: str, text: str = "Done.", ident: str = "<1@x>") -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Message-ID"] = sender, to, ident
    mail["Subject"] = "Re: [Support] Jobs stop"
    mail.set_content(text)
    return mail


def thread(sessions: SessionFactory, ticket: Ticket) -> list[tuple[str, str, str]]:
    with sessions() as session:
        rows = session.scalars(
            select(TicketEntry).where(TicketEntry.ticket_id == ticket.id).order_by(TicketEntry.id)
        )
        return [(row.author_name, row.via, row.text) for row in rows]


def test_an_email_goes_out_and_its_reply_comes_in(
    sessions: SessionFactory, cast: Cast, desk: Desk, inbox: Inbox, ticket: Ticket
) -> None:
    clock = FrozenClock()
    with mail_server() as outbox, sessions() as session:
        sender = EmailSender(f"smtp://127.0.0.1:{outbox.port}", "vedette@portal.example")
        notification = session.scalars(select(Notification)).one()
        assert notification.tenant_id is None
        sender.deliver(notification.address, render(notification))
        (sent,) = outbox.mails
    assert sent["To"] == cast.olivia.email
    assert sent["References"] == f"<ticket-{ticket.id}@portal.example>"
    body = sent.get_body(("plain",))
    assert body is not None
    quoted = "\n".join(f"> {line}" for line in body.get_content().splitlines())
    answer = reply(
        cast.olivia.email,
        sent["Reply-To"],
        f"It is the driver.\n\nOn Mon, Vedette wrote:\n{quoted}",
    )
    answer.add_attachment(b"log", maintype="text", subtype="x", filename="driver.log")
    inbox.add(answer)
    assert receive(sessions, desk, clock) == 1
    assert thread(sessions, ticket)[1:] == [(cast.olivia.email, "email", "It is the driver.")]
    with sessions() as session:
        row = session.get_one(Ticket, ticket.id)
        assert row.state is TicketState.WAITING_FOR_CUSTOMER
        last = session.scalars(select(TicketEntry).order_by(TicketEntry.id.desc())).first()
        assert last is not None
        assert [file.name for file in last.attachments] == ["driver.log"]
    assert inbox.unread() == 0
    # The mail server delivers it again, or the portal was killed before it was marked as read.
    inbox.add(answer)
    assert receive(sessions, desk, clock) == 0
    assert len(thread(sessions, ticket)) == 2


def test_others_than_its_recipient_get_nothing(
    sessions: SessionFactory, cast: Cast, desk: Desk, inbox: Inbox, ticket: Ticket
) -> None:
    bobs = desk.reply_address(ticket.id, cast.bob.id)
    auto = reply(cast.bob.email, bobs)
    auto["Auto-Submitted"] = "auto-replied"
    for mail in (
        reply(cast.charlie.email, bobs),
        reply("stranger@example.com", bobs),
        reply(cast.charlie.email, desk.reply_address(ticket.id, cast.charlie.id)),
        reply(cast.bob.email, "support@portal.example"),
        reply(cast.bob.email, desk.reply_address(cast.bob.id, cast.bob.id)),
        auto,
        b"nonsense",
        b"From: bob@acme.example\n\n" + b"x" * (MAX_EMAIL_BYTES + 1),
    ):
        inbox.add(mail)
    with sessions() as session:
        before = len(session.scalars(select(Notification)).all())
    assert receive(sessions, desk, FrozenClock()) == 0
    assert inbox.unread() == 0
    assert len(thread(sessions, ticket)) == 1
    with sessions() as session:
        assert len(session.scalars(select(Notification)).all()) == before


def test_a_party_learns_why_its_reply_was_not_added(
    sessions: SessionFactory, cast: Cast, desk: Desk, inbox: Inbox, ticket: Ticket
) -> None:
    with sessions.begin() as session:
        session.get_one(Ticket, ticket.id).state = TicketState.CLOSED
    inbox.add(reply(cast.bob.email, desk.reply_address(ticket.id, cast.bob.id)))
    assert receive(sessions, desk, FrozenClock()) == 0
    with sessions() as session:
        last = session.scalars(select(Notification).order_by(Notification.id.desc())).first()
        assert last is not None
        assert last.address == cast.bob.email
        assert "was not added. The ticket is closed." in last.payload["text"]


def test_those_who_left_can_not_write(
    sessions: SessionFactory, cast: Cast, desk: Desk, inbox: Inbox, ticket: Ticket
) -> None:
    with sessions.begin() as session:
        session.merge(cast.bob).memberships[0].is_active = False
    inbox.add(reply(cast.bob.email, desk.reply_address(ticket.id, cast.bob.id)))
    assert receive(sessions, desk, FrozenClock()) == 0
    assert len(thread(sessions, ticket)) == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("p%40ss%2Fword", "wrong"), "refuses"),
        (("INBOX", "Nowhere"), "has no folder 'Nowhere'"),
        ((":1", ":9"), "fails"),
    ],
)
def test_a_mail_server_that_refuses_is_reported(
    inbox: Inbox, change: tuple[str, str], problem: str
) -> None:
    url = inbox.url
    if problem == "fails":
        url = url.replace(f":{inbox.port}/", f":{free_port()}/")
    else:
        url = url.replace(*change)
    with pytest.raises(UnavailableError, match=problem), open_mailbox(url):
        pass
