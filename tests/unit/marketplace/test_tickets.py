"""Tickets: their states, clocks, rights, notes, files and ratings."""

from datetime import timedelta
from itertools import product

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    VedetteError,
)
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.support import opening, thread
from marketplace.support.evidence import response_cases
from marketplace.support.models import SubjectKind, Ticket
from marketplace.support.requests import MAX_FILES_BYTES, File, FileRequest, safe_name
from marketplace.support.service import (
    REOPEN_WITHIN,
    assign_ticket,
    call_operator,
    close_ticket,
    get_attachment,
    get_ticket,
    list_entries,
    list_subject_events,
    list_tickets,
    rate_ticket,
    reopen_ticket,
    solve_ticket,
)
from marketplace.support.states import (
    TICKET_TRANSITIONS,
    Party,
    Recipient,
    Step,
    TicketState,
    next_state,
)
from marketplace.support.tasks import escalate
from tenants.models import AuditEntry, Role, User
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import submit
from tests.unit.marketplace.support_builders import (
    DESK,
    HOUR,
    NO_MARKET,
    add_user,
    answer,
    ask,
    ask_about,
    mails,
    rent_with_promise,
    texts,
)

_S = TicketState


@pytest.mark.parametrize(("state", "step", "awaited"), list(product(_S, Step, Party)))
def test_every_step_ends_in_a_state_of_the_table_or_is_refused(
    state: TicketState, step: Step, awaited: Party
) -> None:
    try:
        after = next_state(state, step, awaited)
    except ConflictError:
        assert state is _S.CLOSED or step in {Step.SOLVE, Step.REOPEN, Step.CLOSE}
        return
    assert after is state or after in TICKET_TRANSITIONS[state]


def test_a_ticket_of_a_customer_waits_for_each_side_in_turn(session: Session, cast: Cast) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    assert (ticket.requester, ticket.responder) == (Party.CUSTOMER, Party.PROVIDER)
    assert (ticket.state, ticket.awaited) == (_S.OPEN, Party.PROVIDER)
    assert answer(session, cast.charlie, ticket, text="And again.").state is _S.OPEN
    assert answer(session, cast.alice, ticket).state is _S.WAITING_FOR_CUSTOMER
    assert answer(session, cast.charlie, ticket).state is _S.WAITING_FOR_PROVIDER
    solved = solve_ticket(session, scope_of(cast.alice), ticket.id, desk=DESK, now=NOON)
    assert (solved.state, solved.awaited, solved.due_at) == (_S.SOLVED, None, None)
    reopened = answer(session, cast.charlie, ticket, text="It is back.")
    assert (reopened.state, reopened.solved_at) == (_S.WAITING_FOR_PROVIDER, None)
    assert texts(session, ticket)[-2:] == ["Marked as solved", "It is back."]


def test_a_tenant_asks_its_operator_without_a_marketplace(session: Session, cast: Cast) -> None:
    ticket = ask(session, cast.bob, desk=NO_MARKET)
    assert (ticket.responder, ticket.has_operator) == (Party.OPERATOR, True)
    assert ticket.limit_seconds == 24 * 3600
    answer(session, cast.olivia, ticket, desk=NO_MARKET)
    assert ticket.state is _S.WAITING_FOR_CUSTOMER
    with pytest.raises(InvalidInputError, match="no contract"):
        ask(
            session,
            cast.bob,
            desk=NO_MARKET,
            subject_kind=SubjectKind.CONTRACT,
            subject_id="x",
        )


def test_tickets_with_providers_are_gone_while_the_marketplace_is_off(
    session: Session, cast: Cast
) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    for user in (cast.charlie, cast.alice):
        with pytest.raises(NotFoundError):
            get_ticket(session, scope_of(user), ticket.id, desk=NO_MARKET)
        assert get_ticket(session, scope_of(user), ticket.id, desk=DESK) is ticket


def test_only_those_who_take_part_see_a_ticket(session: Session, cast: Cast) -> None:
    member = add_user(session, cast, "dan", Role.MEMBER)
    billing = add_user(session, cast, "erin", Role.BILLING)
    viewer = add_user(session, cast, "frank", Role.VIEWER)
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    for user in (cast.charlie, cast.alice):
        assert get_ticket(session, scope_of(user), ticket.id, desk=DESK) is ticket
    for user in (member, billing, cast.bob, cast.olivia):
        with pytest.raises(NotFoundError):
            get_ticket(session, scope_of(user), ticket.id, desk=DESK)
        assert list_tickets(session, scope_of(user), desk=DESK, now=NOON).total == 0
    with pytest.raises(ForbiddenError, match="open and answer support tickets"):
        list_tickets(session, scope_of(viewer), desk=DESK, now=NOON)
    # Whom their own side mentions, or assigns, sees it.
    answer(session, cast.charlie, ticket, text="Ask @dan@globex.example, not @bob@acme.example.")
    assert get_ticket(session, scope_of(member), ticket.id, desk=DESK)
    with pytest.raises(NotFoundError):
        get_ticket(session, scope_of(cast.bob), ticket.id, desk=DESK)
    assign_ticket(session, scope_of(cast.alice), ticket.id, "bob@acme.example", desk=DESK, now=NOON)
    assert get_ticket(session, scope_of(cast.bob), ticket.id, desk=DESK)
    with pytest.raises(InvalidInputError, match="no user"):
        assign_ticket(session, scope_of(cast.alice), ticket.id, member.id, desk=DESK, now=NOON)


def test_the_operator_sees_a_ticket_of_two_tenants_once_called_in(
    session: Session, cast: Cast
) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    call_operator(session, scope_of(cast.charlie), ticket.id, desk=DESK, now=NOON)
    answer(session, cast.olivia, ticket, waits_for=Party.PROVIDER)
    assert (ticket.state, ticket.first_response_seconds) == (_S.WAITING_FOR_PROVIDER, None)
    with pytest.raises(ConflictError, match="already"):
        call_operator(session, scope_of(cast.alice), ticket.id, desk=DESK, now=NOON)
    with pytest.raises(InvalidInputError, match="choose customer or provider"):
        answer(session, cast.olivia, ticket, waits_for=Party.OPERATOR)


def test_notes_and_their_files_are_for_one_side(session: Session, cast: Cast) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    files = [File("x.txt", b"secret")]
    answer(session, cast.alice, ticket, text="A hard one.", is_internal=True, files=files)
    assert ticket.state is _S.OPEN
    assert ticket.first_response_seconds is None
    own = list_entries(session, scope_of(cast.alice), ticket.id, desk=DESK)
    assert [entry.text for entry in own] == ["After a minute.", "A hard one."]
    others = list_entries(session, scope_of(cast.charlie), ticket.id, desk=DESK)
    assert [entry.text for entry in others] == ["After a minute."]
    (file,) = own[1].attachments
    shown = get_attachment(session, scope_of(cast.alice), ticket.id, file.id, desk=DESK)
    assert shown.content == b"secret"
    with pytest.raises(NotFoundError):
        get_attachment(session, scope_of(cast.charlie), ticket.id, file.id, desk=DESK)
    assert not [to for to, text in mails(session) if "hard one" in text]


def test_a_note_is_of_the_time_at_which_it_was_written(session: Session, cast: Cast) -> None:
    ticket = ask(session, cast.bob)
    answer(session, cast.alice, ticket, is_internal=True, now=NOON + HOUR)
    entries = list_entries(session, scope_of(cast.alice), ticket.id, desk=DESK)
    assert [entry.created_at for entry in entries] == [NOON, NOON + HOUR]
    assert ticket.updated_at == NOON, "the other side does not learn of it"


class TestClock:
    def test_it_runs_while_the_responder_is_waited_for(self, session: Session, cast: Cast) -> None:
        contract = rent_with_promise(session, cast, seconds=7200)
        ticket = ask_about(session, cast.charlie, contract)
        assert (ticket.limit_seconds, ticket.is_promised) == (7200, True)
        assert ticket.due_at == NOON + 2 * HOUR
        call_operator(session, scope_of(cast.charlie), ticket.id, desk=DESK, now=NOON)
        # The operator asks the customer: half an hour of the provider's time is used.
        at = NOON + HOUR / 2
        asked = answer(session, cast.olivia, ticket, waits_for=Party.CUSTOMER, now=at)
        assert (asked.due_at, asked.used_seconds) == (None, 1800)
        at = NOON + 10 * HOUR
        assert answer(session, cast.charlie, ticket, now=at).due_at == at + HOUR * 1.5
        at += HOUR
        answered = answer(session, cast.alice, ticket, now=at)
        assert (answered.first_response_seconds, answered.due_at) == (5400, None)
        # Each later wait begins at zero.
        answer(session, cast.charlie, ticket, now=at)
        assert ticket.due_at == at + 2 * HOUR

    def test_a_late_answer_is_a_breach_and_calls_the_operator(
        self, session: Session, cast: Cast
    ) -> None:
        contract = rent_with_promise(session, cast)
        ticket = ask_about(session, cast.charlie, contract)
        escalate(session, ticket.id, DESK, now=NOON + HOUR / 2)
        assert ticket.parties == [Party.CUSTOMER, Party.PROVIDER]
        at = NOON + HOUR
        escalate(session, ticket.id, DESK, now=at)
        escalate(session, ticket.id, DESK, now=at)
        assert ticket.has_operator
        assert texts(session, ticket)[1:] == [
            "No answer of Acme in 1h, due within 1h. The operator was called in"
        ]
        breach = session.scalars(select(ServiceBreach)).one()
        assert (breach.kind, breach.subject) == (BreachKind.SUPPORT_RESPONSE, ticket.id)
        assert (breach.promised, breach.measured) == (3600, 3600)
        answer(session, cast.alice, ticket, now=NOON + 3 * HOUR)
        session.flush()
        assert (breach.measured, breach.evidence["is_answered"]) == (3 * 3600, True)
        assert "olivia@vedette.example" in {to for to, _ in mails(session)}

    def test_without_a_promise_a_late_answer_is_no_breach(
        self, session: Session, cast: Cast
    ) -> None:
        ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast, seconds=0))
        assert (ticket.limit_seconds, ticket.is_promised) == (8 * 3600, False)
        escalate(session, ticket.id, DESK, now=NOON + 9 * HOUR)
        assert ticket.has_operator
        assert session.scalars(select(ServiceBreach)).all() == []

    def test_customers_have_no_clock(self, session: Session, cast: Cast) -> None:
        ticket = ask_about(session, cast.alice, rent_with_promise(session, cast))
        assert (ticket.requester, ticket.responder) == (Party.PROVIDER, Party.CUSTOMER)
        assert (ticket.limit_seconds, ticket.due_at) == (0, None)
        answer(session, cast.charlie, ticket)
        assert ticket.state is _S.WAITING_FOR_PROVIDER


def test_evidence_counts_answers_by_how_late_they_are(session: Session, cast: Cast) -> None:
    contract = rent_with_promise(session, cast)
    early, late, missing, waiting = (
        ask_about(session, cast.charlie, contract, title=title)
        for title in ("early", "late", "missing", "waiting")
    )
    answer(session, cast.alice, early, now=NOON + HOUR / 4)
    answer(session, cast.alice, late, now=NOON + 4 * HOUR)
    escalate(session, missing.id, DESK, now=NOON + HOUR)
    session.flush()
    cases = response_cases(session, cast.acme.id, since=NOON)
    assert [(case.kind, case.good, case.weight) for case in cases] == [
        ("answered", 1.0, 1.0),
        ("late_answer", 0.25, 1.0),
        ("unanswered", 0.0, 1.0),
    ]
    assert waiting.id not in {case.subject for case in cases}
    assert response_cases(session, cast.acme.id, since=NOON + HOUR) == []
    assert response_cases(session, cast.globex.id, since=NOON) == []


def test_many_tickets_of_a_customer_count_as_four(session: Session, cast: Cast) -> None:
    contract = rent_with_promise(session, cast)
    for number in range(8):
        ticket = ask_about(session, cast.charlie, contract, title=str(number))
        answer(session, cast.alice, ticket)
    cases = response_cases(session, cast.acme.id, since=NOON)
    assert sum(case.weight for case in cases) == pytest.approx(4)


def test_a_side_that_is_asked_solves_a_ticket_only_after_its_answer(
    session: Session, cast: Cast
) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    call_operator(session, scope_of(cast.charlie), ticket.id, desk=DESK, now=NOON)
    answer(session, cast.charlie, ticket, waits_for=Party.OPERATOR)
    answer(session, cast.alice, ticket, is_internal=True)
    for user in (cast.alice, cast.olivia):
        with pytest.raises(ConflictError, match="Answer the ticket first"):
            solve_ticket(session, scope_of(user), ticket.id, desk=DESK, now=NOON)
    answer(session, cast.alice, ticket)
    with pytest.raises(ConflictError, match="Answer the ticket first"):
        solve_ticket(session, scope_of(cast.olivia), ticket.id, desk=DESK, now=NOON)
    solve_ticket(session, scope_of(cast.alice), ticket.id, desk=DESK, now=NOON)
    assert ticket.state is _S.SOLVED


def test_solved_tickets_are_opened_again_for_two_weeks(session: Session, cast: Cast) -> None:
    ticket = ask(session, cast.bob)
    bob, alice = scope_of(cast.bob), scope_of(cast.alice)
    with pytest.raises(ConflictError, match="Solve it first"):
        close_ticket(session, bob, ticket.id, desk=DESK, now=NOON)
    solve_ticket(session, bob, ticket.id, desk=DESK, now=NOON)
    with pytest.raises(ConflictError, match="solved already"):
        solve_ticket(session, alice, ticket.id, desk=DESK, now=NOON)
    reopen_ticket(session, bob, ticket.id, desk=DESK, now=NOON + timedelta(days=13))
    assert ticket.state is _S.WAITING_FOR_OPERATOR
    at = NOON + timedelta(days=13)
    solve_ticket(session, bob, ticket.id, desk=DESK, now=at)
    with pytest.raises(ConflictError, match="more than 14 days ago"):
        reopen_ticket(session, bob, ticket.id, desk=DESK, now=at + REOPEN_WITHIN)
    with pytest.raises(ConflictError, match="more than 14 days ago"):
        answer(session, cast.bob, ticket, now=at + REOPEN_WITHIN)
    with pytest.raises(ConflictError, match="Only the side that opened"):
        close_ticket(session, scope_of(cast.olivia), ticket.id, desk=DESK, now=at)
    close_ticket(session, bob, ticket.id, desk=DESK, now=at)
    with pytest.raises(ConflictError, match="closed"):
        answer(session, cast.bob, ticket, now=at, is_internal=True)
    session.commit()
    actions = session.scalars(
        select(AuditEntry.action)
        .where(AuditEntry.target_id == ticket.id)
        .order_by(AuditEntry.number)
    ).all()
    assert actions == [
        *("ticket.opened", "ticket.solved", "ticket.reopened", "ticket.solved", "ticket.closed")
    ]


def test_a_customer_rates_solved_support(session: Session, cast: Cast) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    charlie, alice = scope_of(cast.charlie), scope_of(cast.alice)
    with pytest.raises(ConflictError, match="once the ticket is solved"):
        rate_ticket(session, charlie, ticket.id, 5, desk=DESK, now=NOON)
    answer(session, cast.alice, ticket)
    solve_ticket(session, alice, ticket.id, desk=DESK, now=NOON)
    with pytest.raises(ConflictError, match="Only a customer"):
        rate_ticket(session, alice, ticket.id, 5, desk=DESK, now=NOON)
    for rating, comment in ((0, ""), (6, ""), (5, "x" * 1001)):
        with pytest.raises(InvalidInputError):
            rate_ticket(session, charlie, ticket.id, rating, comment, desk=DESK, now=NOON)
    rate_ticket(session, charlie, ticket.id, 2, "Slow.", desk=DESK, now=NOON)
    rate_ticket(session, charlie, ticket.id, 4, "Good.", desk=DESK, now=NOON)
    assert (ticket.rating, ticket.rating_comment) == (4, "Good.")


def test_emails_go_to_whoever_follows_and_name_nobody_of_the_other_side(
    session: Session, cast: Cast
) -> None:
    ticket = ask_about(session, cast.charlie, rent_with_promise(session, cast))
    session.query(Notification).filter(Notification.address != "alice@acme.example").delete()
    (to, text) = mails(session)[-1]
    assert to == "alice@acme.example"
    assert "Globex wrote:\n\nAfter a minute." in text
    assert "charlie" not in text
    payload = session.scalars(select(Notification).order_by(Notification.id.desc())).first()
    assert payload is not None
    reply_to = payload.payload["reply_to"]
    assert DESK.ticket_of(reply_to) is not None
    assert len(reply_to.partition("@")[0]) <= 64
    before = len(mails(session))
    answer(session, cast.alice, ticket)
    assert [to for to, _ in mails(session)[before:]] == ["charlie@globex.example"]
    before = len(mails(session))
    answer(session, cast.charlie, ticket, desk=NO_MARKET.__class__(DESK.settings))
    assert [to for to, _ in mails(session)[before:]] == ["alice@acme.example"]


class TestSubjects:
    def test_a_job_of_another_tenant_is_unknown(self, session: Session, cast: Cast) -> None:
        job = submit(session, cast.bob)
        ticket = ask(session, cast.bob, subject_kind=SubjectKind.JOB, subject_id=job.id)
        assert (ticket.subject_name, ticket.responder) == (job.name, Party.OPERATOR)
        events = list_subject_events(session, scope_of(cast.bob), ticket.id, desk=DESK)
        assert events
        with pytest.raises(InvalidInputError, match="There is no job"):
            ask(session, cast.charlie, subject_kind=SubjectKind.JOB, subject_id=job.id)
        about = {"subject_kind": SubjectKind.JOB, "subject_id": job.id}
        with pytest.raises(InvalidInputError, match="no provider to ask"):
            ask(session, cast.bob, recipient=Recipient.PROVIDER, **about)

    @pytest.mark.parametrize("kind", [kind for kind in SubjectKind if kind != SubjectKind.OTHER])
    def test_every_kind_refuses_unknown_ids(
        self, session: Session, cast: Cast, kind: SubjectKind
    ) -> None:
        with pytest.raises(VedetteError, match=f"There is no {kind.value} 'x' here"):
            ask(session, cast.alice, subject_kind=kind, subject_id="x")

    def test_an_offer_is_asked_about_before_a_contract(self, session: Session, cast: Cast) -> None:
        contract = rent_with_promise(session, cast)
        about = {"subject_kind": SubjectKind.OFFER, "subject_id": contract.offer_id}
        ticket = ask(session, cast.charlie, **about)
        assert (ticket.provider_id, ticket.contract_id) == (cast.acme.id, None)
        assert not ticket.is_promised
        own = ask(session, cast.alice, **about)
        assert (own.responder, own.provider_id) == (Party.OPERATOR, None)

    def test_an_operator_writes_to_a_tenant(self, session: Session, cast: Cast) -> None:
        ticket = ask(session, cast.olivia, tenant_id=cast.acme.id)
        assert (ticket.requester, ticket.responder) == (Party.OPERATOR, Party.CUSTOMER)
        assert get_ticket(session, scope_of(cast.alice), ticket.id, desk=DESK)
        with pytest.raises(InvalidInputError, match="Name the tenant"):
            ask(session, cast.olivia)
        with pytest.raises(InvalidInputError, match="Only an operator"):
            ask(session, cast.bob, tenant_id=cast.globex.id)


class TestBounds:
    def test_of_texts_and_files(self, session: Session, cast: Cast) -> None:
        for changes, problem in (
            ({"title": " "}, "title is empty"),
            ({"title": "x" * 201}, "201 characters"),
            ({"text": "\n"}, "message is empty"),
            ({"text": "x" * 16_001}, "16,001 characters"),
            ({"files": [File("a", b"")]}, "is empty"),
            ({"files": [File("a", b"x")] * 6}, "at most 5"),
            ({"files": [File("a", b"x" * (MAX_FILES_BYTES + 1))]}, "2 MiB at most"),
        ):
            with pytest.raises(InvalidInputError, match=problem):
                ask(session, cast.bob, **changes)
            session.rollback()

    def test_of_what_is_stored(
        self, session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(thread, "MAX_STORED_BYTES", 10)
        ask(session, cast.bob, files=[File("a", b"x" * 8)])
        with pytest.raises(ConflictError, match="the most that is stored"):
            ask(session, cast.alice, files=[File("a", b"x" * 3)])

    def test_of_tickets_and_messages(
        self, session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(opening, "MAX_NEW_TICKETS_PER_DAY", 3)
        tickets = [ask(session, cast.bob) for _ in range(3)]
        with pytest.raises(OverloadedError, match="within a day"):
            ask(session, cast.alice)
        monkeypatch.setattr(opening, "MAX_ACTIVE_TICKETS", 3)
        with pytest.raises(ConflictError, match="Solve one first"):
            ask(session, cast.alice, now=NOON + timedelta(days=2))
        monkeypatch.setattr(thread, "MAX_MESSAGES_PER_HOUR", 4)
        answer(session, cast.bob, tickets[0])
        with pytest.raises(OverloadedError, match="within an hour"):
            answer(session, cast.bob, tickets[0])
        monkeypatch.setattr(thread, "MAX_ENTRIES", 2)
        with pytest.raises(ConflictError, match="thread has 2 entries"):
            answer(session, cast.alice, tickets[0])

    def test_of_opening_again(
        self, session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(thread, "MAX_MESSAGES_PER_HOUR", 4)
        ticket, bob = ask(session, cast.bob), scope_of(cast.bob)
        solve_ticket(session, bob, ticket.id, desk=DESK, now=NOON)
        reopen_ticket(session, bob, ticket.id, desk=DESK, now=NOON)
        solve_ticket(session, bob, ticket.id, desk=DESK, now=NOON)
        with pytest.raises(OverloadedError, match="within an hour"):
            reopen_ticket(session, bob, ticket.id, desk=DESK, now=NOON)

    def test_files_are_named_and_typed_by_what_they_are(self, session: Session, cast: Cast) -> None:
        page = FileRequest(name="../../a\n<b>.html", content="PGh0bWw+")
        ticket = ask(session, cast.bob, files=[File("x.png", b"\x89PNG\r\n\x1a\nrest")])
        entry = list_entries(session, scope_of(cast.bob), ticket.id, desk=DESK)[0]
        assert entry.attachments[0].media_type == "image/png"
        assert safe_name(page.name) == "a__b_.html"
        assert safe_name("...") == "file"
        assert File("x.html", b"<html>").media_type == "text/plain"
        assert File("x", b"\0\1").media_type == "application/octet-stream"


def test_lists_are_filtered(session: Session, cast: Cast) -> None:
    contract = rent_with_promise(session, cast)
    first = ask_about(session, cast.charlie, contract, title="First")
    second = ask_about(session, cast.charlie, contract, title="Second")
    answer(session, cast.alice, first)
    escalate(session, second.id, DESK, now=NOON + HOUR)
    session.flush()

    def titles(user: User, **filters: object) -> list[str]:
        page = list_tickets(session, scope_of(user), desk=DESK, now=NOON, **filters)  # type: ignore[arg-type]
        return [ticket.title for ticket in page.items]

    assert titles(cast.alice, needs_answer=True) == ["Second"]
    assert titles(cast.charlie, needs_answer=True) == ["First"]
    assert titles(cast.alice, is_late=True) == ["Second"]
    assert titles(cast.alice, is_late=False) == ["First"]
    assert titles(cast.alice, search="fir") == ["First"]
    assert titles(cast.alice, subject_id="x") == []
    assert titles(cast.alice, sort="title") == ["First", "Second"]
    assert titles(cast.olivia) == ["Second"]
    solve_ticket(session, scope_of(cast.charlie), first.id, desk=DESK, now=NOON)
    assert titles(cast.charlie, is_active=False) == ["First"]
    assert titles(cast.charlie, state=TicketState.SOLVED) == ["First"]
    assert isinstance(session.get(Ticket, first.id), Ticket)
