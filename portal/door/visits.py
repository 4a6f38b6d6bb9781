"""Keeps a support visit to looking: nothing is changed, and nothing of the user's own is shown."""

from flask import Flask, request

from core.errors import ForbiddenError
from portal.context import visitor

LEAVING = frozenset({"support.end", "session.logout", "static"})
# Secrets, second factors and sign-ins of the user that an operator has no business with.
PERSONAL_BLUEPRINTS = frozenset(
    {"settings", "second_factor", "password", "Tokens", "Sessions", "SecondFactor"}
)
_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
# Dashboards ask for their figures by POST.
_DASH_CALLS = "/dashboards/_dash-"


def install_visits(app: Flask) -> None:
    """Check every request behind the lock."""
    app.before_request(_only_look)


def _only_look() -> None:
    here = visitor()
    if here is None or here.visit is None or request.endpoint in LEAVING:
        return
    if request.blueprint in PERSONAL_BLUEPRINTS:
        raise ForbiddenError(
            "This is the user's own: a support visit does not show it. Go back, or end the visit.",
            code="support_visit",
        )
    if request.method not in _LOOKING and not request.path.startswith(_DASH_CALLS):
        raise ForbiddenError(
            "A support visit only looks. End it to change something under your own name.",
            code="support_visit",
        )
