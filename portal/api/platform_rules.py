"""`/platform/rules`: rules that an operator writes for several tenants."""

from datetime import datetime
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
from portal.api.objects import Objects
from portal.api.rule_schemas import MAX_RULES
from portal.api.schemas import StrictSchema, about, instant, page_of, page_query, whole_list
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import current_scope, database, now, public_url
from tenants.permissions import Permission
from tenants.scope import Scope

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
        load_default=False, **about("Delete rules that the file doesn't have.")
    )
    is_dry_run = fields.Boolean(load_default=False, **about("Only return what would change."))


class PlatformRuleChangeSchema(Schema):
    """The change of a platform rule when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    before = fields.Nested(PlatformRuleRequestSchema, allow_none=True)
    after = fields.Nested(PlatformRuleRequestSchema, allow_none=True)


def _replace(
    session: Session,
    scope: Scope,
    rule_id: str,
    request: PlatformRuleRequest,
    *,
    now: datetime,
    public_url: str,
) -> PlatformRule:
    return save_platform_rule(
        session, scope, request, rule_id=rule_id, now=now, public_url=public_url
    )


objects = Objects(
    platform_rules,
    "/<platform_rule_id>",
    read=get_platform_rule,
    answer=PlatformRuleSchema,
    model=PlatformRule,
    body=PlatformRuleRequestSchema,
    request=PlatformRuleRequest,
)
objects.lists(
    "List the rules of the platform (operator).",
    list_platform_rules,
    query=page_query(PLATFORM_RULE_SORTS, default="name"),
)
objects.creates(
    "Create a rule of the platform; each tenant gets a copy that only operators change.",
    save_platform_rule,
)


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


objects.shows("Return a rule of the platform (operator).")
objects.replaces("Replace a rule of the platform and its copies.", _replace)
objects.deletes("Delete a rule of the platform, its copies and their alerts.", delete_platform_rule)
