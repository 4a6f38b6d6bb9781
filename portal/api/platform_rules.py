"""`/platform/rules`: rules that an operator writes for several tenants."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from alerting.language.parser import EXAMPLE
from alerting.models import PlatformRule
from alerting.rules.files import ChangeAction
from alerting.rules.platform_rules import (
    PLATFORM_RULE_SORTS,
    PlatformRuleRequest,
    apply_platform_rules,
    delete_platform_rule,
    get_platform_rule,
    list_platform_rules,
    save_platform_rule,
)
from portal.api.blueprint import APIBlueprint
from portal.api.rule_schemas import MAX_RULES
from portal.api.schemas import (
    StrictSchema,
    envelope,
    instant,
    page_of,
    page_query,
    whole_list,
)
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import current_scope, database, now, public_url
from tenants.permissions import Permission

platform_rules = APIBlueprint(
    "Platform rules",
    "/platform/rules",
    "Alert rules of the platform, evaluated for several tenants (operators only).",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)


class PlatformRuleRequestSchema(request_schema(PlatformRuleRequest)):  # type: ignore[misc] # a class made at run time
    """A new rule of the platform, or the replacement of one."""

    expression = fields.String(required=True, metadata={"example": EXAMPLE})


class PlatformRuleSchema(response_schema(PlatformRuleRequest)):  # type: ignore[misc] # a class made at run time
    """A rule of the platform."""

    id = fields.String()
    created_at = instant()


class PlatformRuleFileSchema(StrictSchema):
    """The rules of a file."""

    rules = fields.List(
        fields.Nested(PlatformRuleRequestSchema),
        required=True,
        validate=validate.Length(max=MAX_RULES),
    )
    deletes_others = fields.Boolean(
        load_default=False, metadata={"description": "Delete rules that the file doesn't have."}
    )
    is_dry_run = fields.Boolean(
        load_default=False, metadata={"description": "Only return what would change."}
    )


class PlatformRuleChangeSchema(Schema):
    """The change of a platform rule when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    before = fields.Nested(PlatformRuleRequestSchema, allow_none=True)
    after = fields.Nested(PlatformRuleRequestSchema, allow_none=True)


@platform_rules.operation(
    "GET",
    query=page_query(PLATFORM_RULE_SORTS, default="name"),
    answer=page_of(PlatformRuleSchema),
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the rules of the platform (operator)."""
    with database() as session:
        return envelope(list_platform_rules(session, current_scope(), **query))


@platform_rules.operation(
    "POST", body=PlatformRuleRequestSchema, answer=PlatformRuleSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> PlatformRule:
    """Create a rule of the platform; each tenant gets a copy that only operators change."""
    with database() as session:
        return _save(session, body)


@platform_rules.operation(
    "POST", "/apply", body=PlatformRuleFileSchema, answer=page_of(PlatformRuleChangeSchema)
)
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Make the rules of the platform those of a file, by name: all of it or nothing."""
    entries = [PlatformRuleRequest(**entry) for entry in body["rules"]]
    with database() as session:
        undo = session.begin_nested()
        changes = apply_platform_rules(
            session,
            current_scope(),
            entries,
            deletes_others=body["deletes_others"],
            now=now(),
            public_url=public_url(),
        )
        if body["is_dry_run"]:
            undo.rollback()
    return whole_list(changes)


@platform_rules.operation("GET", "/<platform_rule_id>", answer=PlatformRuleSchema)
def show(platform_rule_id: str) -> PlatformRule:
    """Return a rule of the platform (operator)."""
    with database() as session:
        return get_platform_rule(session, current_scope(), platform_rule_id)


@platform_rules.operation(
    "PUT", "/<platform_rule_id>", body=PlatformRuleRequestSchema, answer=PlatformRuleSchema
)
def replace(platform_rule_id: str, body: dict[str, Any]) -> PlatformRule:
    """Replace a rule of the platform and its copies."""
    with database() as session:
        _check_if_match(session, platform_rule_id)
        return _save(session, body, platform_rule_id)


@platform_rules.operation("DELETE", "/<platform_rule_id>", status=HTTPStatus.NO_CONTENT)
def delete(platform_rule_id: str) -> None:
    """Delete a rule of the platform, its copies and their alerts."""
    with database() as session:
        _check_if_match(session, platform_rule_id)
        delete_platform_rule(
            session, current_scope(), platform_rule_id, now=now(), public_url=public_url()
        )


def _save(session: Session, body: dict[str, Any], rule_id: str | None = None) -> PlatformRule:
    return save_platform_rule(
        session,
        current_scope(),
        PlatformRuleRequest(**body),
        rule_id=rule_id,
        now=now(),
        public_url=public_url(),
    )


def _check_if_match(session: Session, rule_id: str) -> None:
    read = partial(get_platform_rule, session, current_scope(), rule_id)
    platform_rules.check_if_match(session, PlatformRule, rule_id, read, PlatformRuleSchema)
