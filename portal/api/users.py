"""`/users`: the users of a tenant."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    instant,
    sort_field,
)
from portal.context import current_scope, database, now
from tenants.models import Role, User
from tenants.permissions import Permission
from tenants.users.member_changes import (
    add_user,
    remove_operator,
    remove_user,
    set_role,
    set_user_active,
)
from tenants.users.members import USER_SORTS, Member, get_user, list_users
from tenants.users.second_factor import reset_second_factor

users = APIBlueprint("Users", "/users", "Members and operators.", changes=Permission.MANAGE_USERS)


class UserSchema(Schema):
    """A user."""

    id = fields.String()
    tenant_id = fields.String(allow_none=True)
    tenant_name = fields.Function(lambda user: user.tenant.name if user.tenant else None)
    email = fields.String()
    name = fields.String()
    role = fields.Enum(Role, by_value=True)
    is_active = fields.Boolean()
    created_at = instant()


class UserRequestSchema(StrictSchema):
    """A new user with an initial password (operator); without a tenant, an operator."""

    tenant_id = fields.String(load_default=None, allow_none=True)
    email = fields.String(required=True)
    name = fields.String(required=True)
    role = fields.Enum(Role, by_value=True, load_default=Role.MEMBER)
    password = fields.String(required=True, load_only=True, validate=validate.Length(max=1000))


class UserQuery(PageQuery):
    """Filters of the list."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(USER_SORTS, default="email")


class RoleRequestSchema(StrictSchema):
    """A new role; operators may set the tenant."""

    role = fields.Enum(Role, by_value=True, required=True)
    tenant_id = fields.String(load_default=None, allow_none=True)


class TenantQuery(StrictSchema):
    """The tenant, for operators; admins act in their own."""

    tenant_id = fields.String(load_default=None)


class RemovalQuery(TenantQuery):
    """The tenant to remove the user from."""

    operators = fields.Boolean(
        load_default=False,
        **about("Remove an operator instead of a member of a tenant (operator)."),
    )


objects = Objects(users, "/<user_id>", read=get_user, answer=UserSchema)
objects.lists(
    "List the users of your tenant; operators see all.",
    list_users,
    query=UserQuery,
    needs=Permission.MANAGE_USERS,
)


@users.operation("POST", body=UserRequestSchema, answer=UserSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> Member:
    """Create a user with an initial password (operator); admins use `POST /invitations`."""
    with database() as session:
        return add_user(session, current_scope(), now=now(), **body)


@users.operation("GET", "/<user_id>", query=TenantQuery, answer=UserSchema)
def show(query: dict[str, Any], user_id: str) -> Member:
    """Return a user."""
    with database() as session:
        return get_user(session, current_scope(), user_id, **query)


@users.operation("PATCH", "/<user_id>", body=RoleRequestSchema, answer=UserSchema)
def change_role(body: dict[str, Any], user_id: str) -> Member:
    """Change the role of a user; the last admin of a tenant stays admin."""
    with database() as session:
        _check_if_match(session, user_id, body["tenant_id"])
        return set_role(
            session, current_scope(), user_id, body["role"], tenant_id=body["tenant_id"]
        )


@users.operation("DELETE", "/<user_id>", query=RemovalQuery, status=HTTPStatus.NO_CONTENT)
def remove(query: dict[str, Any], user_id: str) -> None:
    """Remove a user from a tenant: ends sessions and revokes the tokens for that tenant."""
    scope = current_scope()
    with database() as session:
        _check_if_match(session, user_id, query["tenant_id"])
        if query["operators"]:
            remove_operator(session, scope, user_id, now=now())
        else:
            remove_user(session, scope, user_id, tenant_id=query["tenant_id"], now=now())


objects.acts(
    "Activate a user.", partial(set_user_active, is_active=True), "activate", query=TenantQuery
)
objects.acts(
    "Deactivate a user and end their sessions.",
    partial(set_user_active, is_active=False),
    "deactivate",
)
objects.acts(
    "Reset the second factor of a user who lost it; the password alone signs them in.",
    reset_second_factor,
    "reset-second-factor",
    name="reset_factor",
)


def _check_if_match(session: Session, user_id: str, tenant_id: str | None) -> None:
    read = partial(get_user, session, current_scope(), user_id, tenant_id=tenant_id)
    users.check_if_match(session, User, user_id, read, UserSchema)
