"""`/runbooks`: what the alerts of the rule pack mean, and what to do."""

import re

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue
from markupsafe import Markup, escape
from sqlalchemy import select

from alerting.models import Rule
from alerting.rules.pack import rule_pack
from core.errors import NotFoundError
from portal.context import current_scope, database

pages = Blueprint("runbooks", __name__)

_MARKS = re.compile(r"`([^`]+)`|\*([^*]+)\*")


@pages.get("/runbooks")
def index() -> ResponseReturnValue:
    """List the runbooks."""
    return render_template("runbooks/index.html", rules=rule_pack().values())


@pages.get("/runbooks/<key>")
def show(key: str) -> ResponseReturnValue:
    """Show a runbook, with the current tenant's rule."""
    found = rule_pack().get(key)
    if found is None:
        raise NotFoundError.of("runbook", key)
    scope = current_scope()
    with database() as session:
        statement = scope.select(select(Rule).where(Rule.pack_key == key), Rule)
        own = session.scalars(statement.limit(1)).first() if scope.tenants else None
    return render_template("runbooks/show.html", runbook=found, rule=own, marked=marked)


def marked(text: str) -> Markup:
    """Return a text with its code in backquotes and its names in asterisks as HTML."""
    parts, end = [], 0
    for found in _MARKS.finditer(text):
        tag, inner = ("code", found[1]) if found[1] else ("em", found[2])
        parts += [escape(text[end : found.start()]), Markup(f"<{tag}>%s</{tag}>") % inner]  # noqa: S704 - the tag is a constant
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])
