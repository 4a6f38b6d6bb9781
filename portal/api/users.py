"""`/users`: people of a tenant."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.context import current_scope, database, now
from tenants.members import Member, add_user, get_user, list_users, set_user_active
from tenants.models import Role

users = resource("Users", "/users", "People who sign in.")


class UserSchema(Schema):
    """A person who signs in."""

    id = fields.String()
    tenant_id = fields.String(allow_none=True)
    tenant_name = fields.Function(lambda user: user.tenant.name if user.tenant else None)
    email = fields.String()
    name = fields.String()
    role = fields.Enum(Role, by_value=True)
    is_active = fields.Boolean()
    created_at = instant()


class UserRequestSchema(StrictSchema):
    """A new user; only the operator names a tenant."""

    tenant_id = fields.String(load_default=None, allow_none=True)
    email = fields.String(required=True)
    name = fields.String(required=True)
    role = fields.Enum(Role, by_value=True, load_default=Role.MEMBER)
    password = fields.String(required=True, load_only=True, validate=validate.Length(max=1000))


class UserQuery(PageQuery):
    """Which users."""

    tenant_id = fields.String(load_default=None)


@users.operation("GET", query=UserQuery, answer=page_of(UserSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the users of your tenant; the operator sees all."""
    with database() as session:
        return envelope(list_users(session, current_scope(), **query))


@users.operation("POST", body=UserRequestSchema, answer=UserSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> Member:
    """Add a user to your tenant, or to the named one as the operator."""
    scope = current_scope()
    tenant_id = body.pop("tenant_id") or scope.tenant_id
    with database() as session:
        return add_user(session, scope, tenant_id=tenant_id, now=now(), **body)


@users.operation("GET", "/<user_id>", answer=UserSchema)
def show(user_id: str) -> Member:
    """Return a user."""
    with database() as session:
        return get_user(session, current_scope(), user_id)


@users.operation("POST", "/<user_id>/activate", answer=UserSchema)
def activate(user_id: str) -> Member:
    """Let a user sign in again."""
    with database() as session:
        return set_user_active(session, current_scope(), user_id, is_active=True)


@users.operation("POST", "/<user_id>/deactivate", answer=UserSchema)
def deactivate(user_id: str) -> Member:
    """Lock a user out and end their sessions."""
    with database() as session:
        return set_user_active(session, current_scope(), user_id, is_active=False)
