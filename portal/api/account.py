"""`/me`, `/tokens` and `/sessions`: the current user, their API tokens and browser sessions."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from core.zones import MAX_ZONE_LENGTH
from portal.api.blueprint import APIBlueprint, Own
from portal.api.objects import Objects
from portal.api.schemas import (
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    page_query,
    values_of,
)
from portal.api.users import UserSchema
from portal.auth import sign_in
from portal.auth.devices import device_name
from portal.context import current_principal, current_scope, current_user, database, now
from tenants.models import APIToken, LoginSession, User
from tenants.permissions import TOKEN_SCOPES
from tenants.users.members import Member, member_of
from tenants.users.passwords import MIN_PASSWORD_LENGTH
from tenants.users.sessions import (
    SESSION_SORTS,
    end_all_sessions,
    end_one_session,
    get_session,
    list_sessions,
)
from tenants.users.signin import record_for_user
from tenants.users.time_zones import choose_time_zone, zone_name_of
from tenants.users.tokens import (
    MAX_LIFETIME_DAYS,
    MAX_TOKEN_NAME_LENGTH,
    TOKEN_SORTS,
    TokenLimits,
    create_api_token,
    get_api_token,
    list_api_tokens,
    revoke_api_token,
    revoke_older_tokens,
)

MAX_SECRET_LENGTH = 1000

me = APIBlueprint("Me", "/me", "The current user.")
tokens = APIBlueprint("Tokens", "/tokens", "Your API tokens.")


class TokenSchema(Schema):
    """An API token, without its secret."""

    id = fields.String()
    name = fields.String()
    tenant_id = fields.String(
        allow_none=True, **about("Tenant that it acts in; null for an operator.")
    )
    scopes = fields.List(
        fields.String(validate=validate.OneOf(list(TOKEN_SCOPES))),
        **about("Allowed scopes; empty allows everything that its user may do."),
    )
    created_at = instant()
    expires_at = instant(**about("Null if it never expires."))
    last_used_at = instant(**about("Precise to a minute."))
    last_used_address = fields.String()
    revoked_at = instant()


_TOKEN_ETAG = TokenSchema(exclude=("last_used_at", "last_used_address"))


class NewTokenSchema(TokenSchema):
    """A new API token with its secret."""

    secret = fields.String(**about("Shown only once: save it."))


class TokenRequestSchema(StrictSchema):
    """A new token: name, scopes and lifetime."""

    name = fields.String(
        required=True,
        validate=validate.Length(min=1, max=MAX_TOKEN_NAME_LENGTH),
        metadata={"example": "nightly build"},
    )
    scopes = fields.List(
        fields.String(validate=validate.OneOf(list(TOKEN_SCOPES))),
        load_default=list,
        **about("Empty allows everything that you may do.", example=["read", "jobs"]),
    )
    lifetime_days = fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        validate=validate.Range(min=1, max=MAX_LIFETIME_DAYS),
        **about("Null never expires.", example=90),
    )
    is_replacing = fields.Boolean(
        load_default=False, **about("Revoke your other tokens with this name and tenant.")
    )


class MeSchema(UserSchema):
    """The current user with their settings."""

    time_zone = fields.Function(
        lambda member: member.user.time_zone,
        **about("In which times are shown; empty for that of the browser."),
    )
    shown_time_zone = fields.Function(
        lambda member: zone_name_of(member.user),
        **about("The chosen time zone, else the last of the browser, else UTC."),
    )


class SettingsSchema(StrictSchema):
    """The settings of a user."""

    time_zone = fields.String(
        required=True,
        validate=validate.Length(max=MAX_ZONE_LENGTH),
        **about("Empty for that of the browser.", example="Europe/Oslo"),
    )


class PasswordSchema(StrictSchema):
    """The current and the new password."""

    current = fields.String(
        required=True, load_only=True, validate=validate.Length(max=MAX_SECRET_LENGTH)
    )
    new = fields.String(
        required=True,
        load_only=True,
        validate=validate.Length(min=MIN_PASSWORD_LENGTH, max=MAX_SECRET_LENGTH),
    )


@me.operation("GET", answer=MeSchema, needs=Own.ANY, has_etag=True)
def show_me() -> Member:
    """Return the current user."""
    current = current_principal()
    return member_of(current.user, current.scope.tenant_id)


@me.operation("PATCH", body=SettingsSchema, answer=MeSchema, has_etag=True)
def change_settings(body: dict[str, str]) -> Member:
    """Change your settings."""
    current = current_principal()
    with database() as session:
        user = session.get_one(User, current.user.id)
        me.check_if_match(
            session,
            User,
            user.id,
            lambda: member_of(user, current.scope.tenant_id),
            MeSchema,
        )
        choose_time_zone(user, body["time_zone"])
        return member_of(user, current.scope.tenant_id)


@me.operation("POST", "/password", body=PasswordSchema, status=HTTPStatus.NO_CONTENT)
def change_own_password(body: dict[str, str]) -> None:
    """Change your password; ends your other sessions, API tokens stay valid."""
    sign_in.change_own_password(**body)


token_objects = Objects(
    tokens,
    "/<token_id>",
    read=get_api_token,
    answer=TokenSchema,
    model=APIToken,
    etag=_TOKEN_ETAG,
)
token_objects.lists(
    "List your tokens, including revoked ones.",
    list_api_tokens,
    query=page_query(TOKEN_SORTS, default="-created_at"),
    name="list_tokens",
)


@tokens.operation("POST", body=TokenRequestSchema, answer=NewTokenSchema, status=HTTPStatus.CREATED)
@tokens.doc(security=[{"token": []}, {"password": []}])  # type: ignore[untyped-decorator] # flask-smorest
def create_token(body: dict[str, Any]) -> dict[str, Any]:
    """Create a token; accepts HTTP Basic with email address and password too."""
    scope, days = current_scope(), body["lifetime_days"]
    limits = TokenLimits(tuple(body["scopes"]), None if days is None else timedelta(days=days))
    with database() as session:
        token, secret = create_api_token(
            session, scope, name=body["name"], limits=limits, now=now()
        )
        if body["is_replacing"]:
            revoke_older_tokens(session, scope, token, now=now())
    return values_of(TokenSchema, token) | {"secret": secret}


token_objects.shows("Return one of your tokens.", name="show_token")
token_objects.deletes(
    "Revoke one of your tokens; requests with it are rejected from now on.",
    revoke_api_token,
    name="revoke_token",
)


sessions = APIBlueprint("Sessions", "/sessions", "Your browser sessions.", reads=Own.UNLIMITED)


class SessionSchema(Schema):
    """A signed-in browser."""

    id = fields.String()
    device = fields.String(**about("Browser and operating system."))
    user_agent = fields.String()
    address = fields.String(**about("IP address of the last request."))
    created_at = instant()
    last_seen_at = instant(**about("Precise to a minute."))
    expires_at = instant()
    is_current = fields.Boolean(**about("Whether this request uses the session."))


_SESSION_ETAG = SessionSchema(exclude=("last_seen_at", "address"))


@sessions.operation(
    "GET", query=page_query(SESSION_SORTS, default="-last_seen_at"), answer=page_of(SessionSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List your browser sessions, most recently seen first."""
    current = current_principal()
    with database() as session:
        page = list_sessions(session, current.user.id, now=now(), **query)
    return envelope(page, [_shaped(login, current.credential_id) for login in page.items])


@sessions.operation("GET", "/<session_id>", answer=SessionSchema, etag=_SESSION_ETAG)
def show(session_id: str) -> dict[str, Any]:
    """Return one of your browser sessions."""
    current = current_principal()
    with database() as session:
        return _shaped(get_session(session, current.scope, session_id), current.credential_id)


@sessions.operation("DELETE", "/<session_id>", status=HTTPStatus.NO_CONTENT)
def end(session_id: str) -> None:
    """End one of your browser sessions."""
    current = current_principal()
    with database() as session:
        sessions.check_if_match(
            session,
            LoginSession,
            session_id,
            lambda: _shaped(get_session(session, current.scope, session_id), current.credential_id),
            _SESSION_ETAG,
        )
        end_one_session(session, current_scope(), session_id)
        record_for_user(session, current_user(), action="session.ended", now=now())


@sessions.operation("DELETE", status=HTTPStatus.NO_CONTENT)
def end_all() -> None:
    """End all your browser sessions including this one; API tokens stay valid."""
    current_scope().require_unlimited()
    with database() as session:
        end_all_sessions(session, current_user().id)
        record_for_user(session, current_user(), action="session.all_ended", now=now())


def _shaped(login: LoginSession, current_id: str | None) -> dict[str, Any]:
    device, is_current = device_name(login.user_agent), login.id == current_id
    return values_of(SessionSchema, login, device=device, is_current=is_current)
