"""`/me` and `/tokens`: who is asking, and the secrets with which programs ask for them."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.schemas import StrictSchema, instant, page_of, whole_list
from portal.api.users import UserSchema
from portal.context import current_scope, current_visitor, database, now
from tenants.members import Member, member_of
from tenants.models import APIToken
from tenants.signin import create_api_token, list_api_tokens, revoke_api_token

me = resource("Me", "/me", "The one who asks.")
tokens = resource("Tokens", "/tokens", "API tokens of the one who asks.")


class TokenSchema(Schema):
    """An API token; its secret is never shown again."""

    id = fields.String()
    name = fields.String()
    created_at = instant()
    revoked_at = instant()


class NewTokenSchema(TokenSchema):
    """An API token at the moment it is made."""

    secret = fields.String(metadata={"description": "Shown only now: keep it."})


class TokenRequestSchema(StrictSchema):
    """What a new token is called."""

    name = fields.String(required=True, validate=validate.Length(min=1, max=100))


@me.operation("GET", answer=UserSchema)
def show_me() -> Member:
    """Return the signed-in user."""
    here = current_visitor()
    return member_of(here.user, here.scope.tenant_id)


@tokens.operation("GET", answer=page_of(TokenSchema))
def list_tokens() -> dict[str, Any]:
    """List your own tokens, revoked ones included."""
    with database() as session:
        return whole_list(list_api_tokens(session, current_scope()))


@tokens.operation("POST", body=TokenRequestSchema, answer=NewTokenSchema, status=HTTPStatus.CREATED)
def create_token(body: dict[str, Any]) -> dict[str, Any]:
    """Make a token; also open to HTTP Basic with email address and password."""
    with database() as session:
        token, secret = create_api_token(session, current_scope(), name=body["name"], now=now())
    return _shaped(token) | {"secret": secret}


@tokens.operation("DELETE", "/<token_id>", status=HTTPStatus.NO_CONTENT)
def revoke_token(token_id: str) -> None:
    """Revoke one of your own tokens: programs that use it are refused from now on."""
    with database() as session:
        revoke_api_token(session, current_scope(), token_id, now=now())


def _shaped(token: APIToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "created_at": token.created_at,
        "revoked_at": token.revoked_at,
    }
