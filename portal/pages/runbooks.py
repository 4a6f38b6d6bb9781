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
    runbook = rule_pack().get(key)
    if runbook is None:
        raise NotFoundError.of("runbook", key)
    scope = current_scope()
    with database() as session:
        statement = scope.select(select(Rule).where(Rule.pack_key == key), Rule)
        own = session.scalars(statement.limit(1)).first() if scope.tenants else None
    return render_template("runbooks/show.html", runbook=runbook, rule=own, marked=marked)


def marked(text: str) -> Markup:
    """Return a text with its code in backquotes and its names in asterisks as HTML."""
    parts, end = [], 0
    for match in _MARKS.finditer(text):
        tag, inner = ("code", match[1]) if match[1] else ("em", match[2])
        parts += [escape(text[end : match.start()]), Markup(f"<{tag}>%s</{tag}>") % inner]  # noqa: S704 - the tag is a constant
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
