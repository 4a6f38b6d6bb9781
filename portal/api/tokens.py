"""`/me` and `/tokens`: who is asking, and the secrets with which programs ask for them."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.needs import Own
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.api.users import UserSchema
from portal.context import current_scope, current_user, current_visitor, database, now
from portal.door.entering import session_secret
from portal.door.tries import counted_try
from tenants.accounts import change_password
from tenants.models import APIToken
from tenants.people.members import Member, member_of
from tenants.people.passwords import MIN_PASSWORD_LENGTH
from tenants.people.tokens import (
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
from tenants.permissions import TOKEN_SCOPES

MAX_SECRET_LENGTH = 1000

me = resource("Me", "/me", "The one who asks.")
tokens = resource("Tokens", "/tokens", "API tokens of the one who asks.")


class TokenSchema(Schema):
    """An API token; its secret is never shown again."""

    id = fields.String()
    name = fields.String()
    tenant_id = fields.String(
        allow_none=True, metadata={"description": "Where it acts; null is the operator's view."}
    )
    scopes = fields.List(
        fields.String(validate=validate.OneOf(list(TOKEN_SCOPES))),
        metadata={"description": "What it may do; none is all that its user may."},
    )
    created_at = instant()
    expires_at = instant(metadata={"description": "Null is never."})
    last_used_at = instant(metadata={"description": "Exact to a minute."})
    last_used_address = fields.String()
    revoked_at = instant()


class NewTokenSchema(TokenSchema):
    """An API token at the moment it is made."""

    secret = fields.String(metadata={"description": "Shown only now: keep it."})


class TokenRequestSchema(StrictSchema):
    """What a new token is called, what it may do and how long."""

    name = fields.String(
        required=True,
        validate=validate.Length(min=1, max=MAX_TOKEN_NAME_LENGTH),
        metadata={"example": "nightly build"},
    )
    scopes = fields.List(
        fields.String(validate=validate.OneOf(list(TOKEN_SCOPES))),
        load_default=list,
        metadata={"description": "None is all that you may.", "example": ["read", "jobs"]},
    )
    lifetime_days = fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        validate=validate.Range(min=1, max=MAX_LIFETIME_DAYS),
        metadata={"description": "Null is for ever.", "example": 90},
    )
    is_replacing = fields.Boolean(
        load_default=False,
        metadata={"description": "Revokes your other tokens of this name and tenant."},
    )


class PasswordSchema(StrictSchema):
    """The current password and the next one."""

    current = fields.String(
        required=True, load_only=True, validate=validate.Length(max=MAX_SECRET_LENGTH)
    )
    new = fields.String(
        required=True,
        load_only=True,
        validate=validate.Length(min=MIN_PASSWORD_LENGTH, max=MAX_SECRET_LENGTH),
    )


class TokenQuery(PageQuery):
    """In which order."""

    sort = sort_field(TOKEN_SORTS, default="-created_at")


@me.operation("GET", answer=UserSchema, needs=Own.ANY)
def show_me() -> Member:
    """Return the signed-in user."""
    here = current_visitor()
    return member_of(here.user, here.scope.tenant_id)


@me.operation("POST", "/password", body=PasswordSchema, status=HTTPStatus.NO_CONTENT)
def change_own_password(body: dict[str, str]) -> None:
    """Change your password; every other browser of yours is signed out, API tokens stay."""
    user = current_user()
    with counted_try(f"current password of {user.id}") as session:
        change_password(session, user, **body, keep_session=session_secret())


@tokens.operation("GET", query=TokenQuery, answer=page_of(TokenSchema))
def list_tokens(query: dict[str, Any]) -> dict[str, Any]:
    """List your own tokens, revoked ones included."""
    with database() as session:
        return envelope(list_api_tokens(session, current_scope(), **query))


@tokens.operation("POST", body=TokenRequestSchema, answer=NewTokenSchema, status=HTTPStatus.CREATED)
@tokens.doc(security=[{"token": []}, {"password": []}])  # type: ignore[untyped-decorator] # flask-smorest
def create_token(body: dict[str, Any]) -> dict[str, Any]:
    """Make a token; also open to HTTP Basic with email address and password."""
    scope, days = current_scope(), body["lifetime_days"]
    limits = TokenLimits(tuple(body["scopes"]), None if days is None else timedelta(days=days))
    with database() as session:
        token, secret = create_api_token(
            session, scope, name=body["name"], limits=limits, now=now()
        )
        if body["is_replacing"]:
            revoke_older_tokens(session, scope, token, now=now())
    return _shaped(token) | {"secret": secret}


@tokens.operation(
    "GET", "/<token_id>", answer=TokenSchema, volatile=("last_used_at", "last_used_address")
)
def show_token(token_id: str) -> APIToken:
    """Return one of your own tokens."""
    with database() as session:
        return get_api_token(session, current_scope(), token_id)


@tokens.operation("DELETE", "/<token_id>", status=HTTPStatus.NO_CONTENT, row=APIToken)
def revoke_token(token_id: str) -> None:
    """Revoke one of your own tokens: programs that use it are refused from now on."""
    with database() as session:
        revoke_api_token(session, current_scope(), token_id, now=now())


def _shaped(token: APIToken) -> dict[str, Any]:
    names = TokenSchema().fields
    return {name: getattr(token, name) for name in names}
