"""`/users`: people of a tenant."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from tenants.models import Role, User
from tenants.people.member_changes import (
    add_user,
    remove_operator,
    remove_user,
    set_role,
    set_user_active,
)
from tenants.people.members import USER_SORTS, Member, get_user, list_users
from tenants.people.second_factor import reset_second_factor
from tenants.permissions import Permission

users = resource("Users", "/users", "People who sign in.", changes=Permission.MANAGE_USERS)


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
    """A new user with a first password (operator); without a tenant, an operator."""

    tenant_id = fields.String(load_default=None, allow_none=True)
    email = fields.String(required=True)
    name = fields.String(required=True)
    role = fields.Enum(Role, by_value=True, load_default=Role.MEMBER)
    password = fields.String(required=True, load_only=True, validate=validate.Length(max=1000))


class UserQuery(PageQuery):
    """Which users."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(USER_SORTS, default="email")


class RoleRequestSchema(StrictSchema):
    """What somebody is from now on; the operator may name the tenant."""

    role = fields.Enum(Role, by_value=True, required=True)
    tenant_id = fields.String(load_default=None, allow_none=True)


class PlaceQuery(StrictSchema):
    """Where: in which tenant, for the operator; an admin's is their own anyway."""

    tenant_id = fields.String(load_default=None)


class RemovalQuery(PlaceQuery):
    """From where."""

    operators = fields.Boolean(
        load_default=False,
        metadata={"description": "From the operators, instead of from a tenant (operator)."},
    )


@users.operation("GET", query=UserQuery, answer=page_of(UserSchema), needs=Permission.MANAGE_USERS)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the users of your tenant; the operator sees all."""
    with database() as session:
        return envelope(list_users(session, current_scope(), **query))


@users.operation("POST", body=UserRequestSchema, answer=UserSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> Member:
    """Add a user with a first password (operator); admins invite: `POST /invitations`."""
    with database() as session:
        return add_user(session, current_scope(), now=now(), **body)


@users.operation("GET", "/<user_id>", query=PlaceQuery, answer=UserSchema)
def show(query: dict[str, Any], user_id: str) -> Member:
    """Return a user."""
    with database() as session:
        return get_user(session, current_scope(), user_id, **query)


@users.operation("PATCH", "/<user_id>", body=RoleRequestSchema, answer=UserSchema, row=User)
def change_role(body: dict[str, Any], user_id: str) -> Member:
    """Give a user another role; the last admin of a tenant stays one."""
    with database() as session:
        return set_role(
            session, current_scope(), user_id, body["role"], tenant_id=body["tenant_id"]
        )


@users.operation("DELETE", "/<user_id>", query=RemovalQuery, status=HTTPStatus.NO_CONTENT, row=User)
def remove(query: dict[str, Any], user_id: str) -> None:
    """Take a user out of a tenant: browsers are signed out, tokens there are revoked."""
    scope = current_scope()
    with database() as session:
        if query["operators"]:
            remove_operator(session, scope, user_id, now=now())
        else:
            remove_user(session, scope, user_id, tenant_id=query["tenant_id"], now=now())


@users.operation("POST", "/<user_id>/activate", query=PlaceQuery, answer=UserSchema)
def activate(query: dict[str, Any], user_id: str) -> Member:
    """Let a user sign in again."""
    with database() as session:
        return set_user_active(session, current_scope(), user_id, is_active=True, **query)


@users.operation("POST", "/<user_id>/deactivate", answer=UserSchema)
def deactivate(user_id: str) -> Member:
    """Lock a user out and end their sessions."""
    with database() as session:
        return set_user_active(session, current_scope(), user_id, is_active=False)


@users.operation("POST", "/<user_id>/reset-second-factor", answer=UserSchema)
def reset_factor(user_id: str) -> Member:
    """Take the second factor off a user who lost it: the password alone signs them in again."""
    with database() as session:
        return reset_second_factor(session, current_scope(), user_id, now())
