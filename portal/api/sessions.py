"""`/sessions`: the browsers of the one who asks."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import resource
from portal.api.needs import Own
from portal.api.schemas import PageQuery, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, current_user, current_visitor, database, now
from portal.door.devices import device_name
from tenants.models import LoginSession
from tenants.people.sessions import (
    SESSION_SORTS,
    end_all_sessions,
    end_one_session,
    get_session,
    list_sessions,
)
from tenants.people.signin import record_of_person

sessions = resource("Sessions", "/sessions", "Browsers of the one who asks.", reads=Own.UNLIMITED)


class SessionSchema(Schema):
    """A browser that is signed in."""

    id = fields.String()
    device = fields.String(metadata={"description": "Browser and system, as it names itself."})
    user_agent = fields.String()
    address = fields.String(metadata={"description": "The network address it was seen from last."})
    created_at = instant()
    last_seen_at = instant(metadata={"description": "Exact to a minute."})
    expires_at = instant()
    is_current = fields.Boolean(metadata={"description": "Whether it is the one that asks."})


class SessionQuery(PageQuery):
    """In which order."""

    sort = sort_field(SESSION_SORTS, default="-last_seen_at")


@sessions.operation("GET", query=SessionQuery, answer=page_of(SessionSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List your browsers that are signed in, the one seen last first."""
    here = current_visitor()
    with database() as session:
        page = list_sessions(session, here.user.id, now=now(), **query)
    return envelope(page, [_shaped(one, here.credential_id) for one in page.items])


@sessions.operation(
    "GET", "/<session_id>", answer=SessionSchema, volatile=("last_seen_at", "address")
)
def show(session_id: str) -> dict[str, Any]:
    """Return one of your browsers that is signed in."""
    here = current_visitor()
    with database() as session:
        return _shaped(get_session(session, here.scope, session_id), here.credential_id)


@sessions.operation("DELETE", "/<session_id>", status=HTTPStatus.NO_CONTENT, row=LoginSession)
def end(session_id: str) -> None:
    """Sign one of your browsers out."""
    with database() as session:
        end_one_session(session, current_scope(), session_id)
        record_of_person(session, current_user(), action="session.ended", now=now())


@sessions.operation("DELETE", status=HTTPStatus.NO_CONTENT)
def end_all() -> None:
    """Sign all of your browsers out, the one that asks too; API tokens stay."""
    current_scope().require_unlimited()
    with database() as session:
        end_all_sessions(session, current_user().id)
        record_of_person(session, current_user(), action="session.all_ended", now=now())


def _shaped(one: LoginSession, current_id: str | None) -> dict[str, Any]:
    return {
        "id": one.id,
        "device": device_name(one.user_agent),
        "user_agent": one.user_agent,
        "address": one.address,
        "created_at": one.created_at,
        "last_seen_at": one.last_seen_at,
        "expires_at": one.expires_at,
        "is_current": one.id == current_id,
    }
