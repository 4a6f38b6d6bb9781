"""`/tickets`: requests for support, and their threads."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from marketplace.support.models import MAX_COMMENT_LENGTH, EntryKind, SubjectKind
from marketplace.support.requests import (
    MAX_RATING,
    FileRequest,
    MessageRequest,
    TicketRequest,
)
from marketplace.support.service import (
    TICKET_SORTS,
    add_message,
    assign_ticket,
    call_operator,
    close_ticket,
    create_ticket,
    get_attachment,
    get_ticket,
    list_entries,
    list_subject_events,
    list_tickets,
    rate_ticket,
    reopen_ticket,
    solve_ticket,
)
from marketplace.support.states import Party, TicketState
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    StrictSchema,
    about,
    file_response,
    instant,
    page_of,
    page_query,
    whole_list,
)
from portal.api.spec_schemas import request_schema
from portal.context import current_scope, database, now
from portal.presenters.artifacts import disposition
from portal.presenters.tickets import (
    ShownTicket,
    desk,
    shown_entries,
    shown_ticket,
    shown_tickets,
)
from tenants.permissions import Permission

tickets = APIBlueprint(
    "Tickets",
    "/tickets",
    "Requests for support of customers, providers and operators. Users see those that they take "
    "part in, admins all of their tenant, billing users those about invoices.",
    reads=Permission.USE_SUPPORT,
    changes=Permission.USE_SUPPORT,
)


class TicketFileSchema(request_schema(FileRequest)):  # type: ignore[misc] # a class made at run time
    """A file of a message."""


class TicketRequestSchema(request_schema(TicketRequest, {FileRequest: TicketFileSchema})):  # type: ignore[misc] # likewise
    """A new ticket."""


class TicketMessageSchema(request_schema(MessageRequest, {FileRequest: TicketFileSchema})):  # type: ignore[misc] # likewise
    """A message to all parties, or a note for your side."""


class TicketRatingSchema(StrictSchema):
    """How good the support was."""

    rating = fields.Integer(
        required=True,
        validate=validate.Range(min=1, max=MAX_RATING),
        **about("1 (bad) to 5 (very good)."),
    )
    comment = fields.String(load_default="", metadata={"maxLength": MAX_COMMENT_LENGTH})


class AssigneeSchema(StrictSchema):
    """Who of your side works on a ticket."""

    user = fields.String(required=True, **about("An ID or email address; empty for nobody."))


class TicketSchema(Schema):
    """A ticket as your side sees it."""

    id = fields.String()
    title = fields.String()
    state = fields.Enum(TicketState, by_value=True)
    side = fields.Enum(Party, by_value=True, **about("Yours."))
    requester = fields.Enum(Party, by_value=True, **about("Who opened it."))
    responder = fields.Enum(Party, by_value=True, **about("Who is asked."))
    awaited = fields.Enum(
        Party, by_value=True, allow_none=True, **about("Who is waited for; null once it is solved.")
    )
    customer_name = fields.String()
    provider_name = fields.String(**about("Empty if the operator is asked."))
    has_operator = fields.Boolean(**about("Whether the operator takes part."))
    subject_kind = fields.Enum(SubjectKind, by_value=True)
    subject_id = fields.String(**about("Empty where it is another tenant's."))
    subject_name = fields.String(**about("Empty where it is another tenant's."))
    contract_id = fields.String(allow_none=True)
    author_name = fields.String(**about("An email address, or the name of another side."))
    assignee = fields.String(**about("Of your side: an email address, or empty."))
    limit_seconds = fields.Integer(
        **about("Within which the responder should answer; 0 for no limit.")
    )
    is_promised = fields.Boolean(**about("Whether a contract promises it."))
    elapsed_seconds = fields.Float(**about("For which the responder was waited for, this time."))
    due_at = instant(**about("Null while the clock stands, or after the limit."))
    is_late = fields.Boolean()
    first_response_seconds = fields.Float(
        allow_none=True, **about("Null until the responder has answered.")
    )
    rating = fields.Integer(allow_none=True, **about("1 to 5."))
    rating_comment = fields.String()
    created_at = instant()
    updated_at = instant()
    solved_at = instant()
    closed_at = instant()


class AttachmentSchema(Schema):
    """A file of an entry."""

    id = fields.String()
    name = fields.String()
    media_type = fields.String(**about("By its content."))
    size_bytes = fields.Integer()


class TicketEntrySchema(Schema):
    """A message, a note of your side, or a change."""

    id = fields.String()
    kind = fields.Enum(EntryKind, by_value=True)
    party = fields.Enum(Party, by_value=True, allow_none=True, **about("Null for the portal."))
    author_name = fields.String(**about("An email address, or the name of another side."))
    via = fields.String(**about("`email`, or empty."))
    text = fields.String()
    created_at = instant()
    attachments = fields.List(fields.Nested(AttachmentSchema))


class SubjectEventSchema(Schema):
    """What happened to the subject of a ticket."""

    at = instant()
    text = fields.String()


class TicketQuery(page_query(TICKET_SORTS, default="")):  # type: ignore[misc] # a class made at run time
    """Which tickets are listed."""

    state = fields.Enum(TicketState, by_value=True, load_default=None)
    is_active = fields.Boolean(
        load_default=None,
        allow_none=True,
        **about("Only those that are not solved, or only those that are."),
    )
    needs_answer = fields.Boolean(
        load_default=None, allow_none=True, **about("Only those in which your side is waited for.")
    )
    is_late = fields.Boolean(
        load_default=None, allow_none=True, **about("Only those whose answer is late.")
    )
    subject_id = fields.String(load_default="", **about("Only those about this object."))
    search = fields.String(
        load_default="", validate=validate.Length(max=200), **about("Part of the title.")
    )


def _ticket(**body: Any) -> TicketRequest:  # noqa: ANN401 - of the schema
    return TicketRequest(**{**body, "files": _files(body)})


def _files(body: Mapping[str, Any]) -> list[FileRequest]:
    return [FileRequest(**file) for file in body["files"]]


objects = Objects(
    tickets,
    "/<ticket_id>",
    read=get_ticket,
    answer=TicketSchema,
    shown=shown_tickets,
    body=TicketRequestSchema,
    request=_ticket,
)
objects.lists(
    "List tickets: those that are due first, then the latest.", list_tickets, query=TicketQuery
)
objects.shows("Return a ticket.", has_etag=False)
objects.creates("Open a ticket; its recipient gets an email.", create_ticket)


@tickets.operation(
    "POST",
    "/<ticket_id>/messages",
    answer=TicketSchema,
    body=TicketMessageSchema,
    status=HTTPStatus.CREATED,
)
def add_ticket_message(ticket_id: str, body: Mapping[str, Any]) -> ShownTicket:
    """Add a message, which opens a solved ticket again, or a note for your side."""
    request = MessageRequest(**{**body, "files": _files(body)})
    with database() as session:
        ticket = add_message(session, current_scope(), ticket_id, request, desk=desk(), now=now())
        return shown_ticket(ticket, current_scope(), at=now())


objects.acts(
    "Mark a ticket as solved; the side that is asked has to answer it first.",
    solve_ticket,
    "solve",
)
objects.acts(
    "Open a ticket again that was solved within the last two weeks.", reopen_ticket, "reopen"
)
objects.acts("Close a solved ticket for good, as the side that opened it.", close_ticket, "close")
objects.acts(
    "Call in the operator, who then sees the whole thread but for notes.",
    call_operator,
    "call-operator",
    name="call",
)
objects.acts(
    "Say who of your side works on a ticket.", assign_ticket, "assign", body=AssigneeSchema
)
objects.acts(
    "Rate the support of a solved ticket, as the customer who opened it.",
    rate_ticket,
    "rate",
    body=TicketRatingSchema,
)


@tickets.operation("GET", "/<ticket_id>/entries", answer=page_of(TicketEntrySchema))
def list_thread(ticket_id: str) -> dict[str, Any]:
    """List the messages, notes of your side and changes of a ticket, the oldest first."""
    scope = current_scope()
    with database() as session:
        ticket = get_ticket(session, scope, ticket_id, desk=desk())
        entries = list_entries(session, scope, ticket_id, desk=desk())
        return whole_list(shown_entries(ticket, entries, scope))


objects.lists(
    "List the last events of a ticket's subject that your side may see, the newest first.",
    list_subject_events,
    path="/<ticket_id>/subject-events",
    answer=SubjectEventSchema,
    name="list_events",
)


@tickets.operation(
    "GET",
    "/<ticket_id>/attachments/<attachment_id>",
    has_etag=False,
    responses=file_response("The content.", "application/octet-stream"),
)
def download(ticket_id: str, attachment_id: str) -> Response:
    """Download a file of a message."""
    with database() as session:
        file = get_attachment(session, current_scope(), ticket_id, attachment_id, desk=desk())
        content, name = file.content, file.name
    # Never shown by browsers, whatever it is: it comes from another tenant.
    headers = {"Content-Disposition": disposition(name), "X-Content-Type-Options": "nosniff"}
    return Response(content, mimetype="application/octet-stream", headers=headers)
