"""`/login/oidc`: signing in through the organisation's identity provider."""

import logging
import secrets
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from flask import Blueprint, redirect, render_template, request, session
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import IntegrityError, OperationalError

from core.errors import NotFoundError, UnauthenticatedError, VedetteError
from portal.context import database, now, portal
from portal.door.auth import safe_next
from portal.door.claims import RefusedIdentityError
from portal.door.entering import enter
from portal.door.oidc import CALLBACK_PATH, Provider, provider
from tenants.audit import Actor, record, set_actor
from tenants.models import User
from tenants.models.people import EMAIL_LENGTH
from tenants.people.oidc import Identity, user_of_identity
from tenants.people.signin import require_entry

log = logging.getLogger(__name__)

pages = Blueprint("oidc", __name__)

ATTEMPT_KEY = "oidc"
PATIENCE = timedelta(minutes=10)
TRIES = 4


@pages.get("/login/oidc")
def start() -> ResponseReturnValue:
    """Send the browser to the identity provider."""
    target = safe_next(request.args.get("next"))
    try:
        attempt = _provider().begin()
    except VedetteError as error:
        return _refuse(error)
    session[ATTEMPT_KEY] = asdict(attempt) | {"target": target, "at": now().timestamp()}
    return redirect(attempt.url)


@pages.get(CALLBACK_PATH)
def callback() -> ResponseReturnValue:
    """Take the browser back from the identity provider, and let its person in."""
    here = _provider()
    try:
        attempt = _attempt_of_state(request.args.get("state", ""))
        identity = here.finish(_code(), nonce=attempt["nonce"], verifier=attempt["verifier"])
        user = _user(identity, here)
    except VedetteError as error:
        return _refuse(error)
    return redirect(enter(user, target=safe_next(attempt["target"])))


def _provider() -> Provider:
    found = provider()
    if found is None:
        raise NotFoundError("This portal is connected to no identity provider.")
    return found


def _attempt_of_state(state: str) -> dict[str, str]:
    """Return the attempt that this browser began; it can come back once."""
    attempt = session.pop(ATTEMPT_KEY, None)
    if attempt is None or not secrets.compare_digest(attempt["state"].encode(), state.encode()):
        raise RefusedIdentityError(
            "This sign-in was not begun in this browser, or was used already. Sign in again."
        )
    if not timedelta(0) <= now() - datetime.fromtimestamp(attempt["at"], UTC) < PATIENCE:
        raise RefusedIdentityError("That took too long. Sign in again.")
    found: dict[str, str] = attempt
    return found


def _code() -> str:
    issuer = request.args.get("iss")
    if issuer is not None and issuer.rstrip("/") != portal().settings.oidc_issuer.rstrip("/"):
        raise RefusedIdentityError("This answer is another identity provider's. Sign in again.")
    if request.args.get("error") == "access_denied":
        raise RefusedIdentityError("The identity provider did not let you in, or you said no.")
    code = request.args.get("code")
    if not code or "error" in request.args:
        raise RefusedIdentityError("The identity provider reported a fault. Sign in again.")
    return code


def _user(identity: Identity, here: Provider) -> User:
    try:
        user = _user_of(identity, here)
        require_entry(user)
    except UnauthenticatedError as error:
        _tell_of_refusal(identity, error)
        raise
    return user


def _user_of(identity: Identity, here: Provider) -> User:
    """Return the user; tried again where the same person comes twice at the same moment.

    The database then refuses all but one: the others find what that one added.
    """
    for _ in range(TRIES - 1):
        try:
            return _user_once(identity, here)
        except (IntegrityError, OperationalError) as error:
            log.info("%s comes twice at the same moment: %s", _name(identity), error)
    return _user_once(identity, here)


def _user_once(identity: Identity, here: Provider) -> User:
    with database() as db:
        set_actor(db, _actor(identity), clock=portal().clock)
        return user_of_identity(db, identity, here.group_roles, now=now())


def _tell_of_refusal(identity: Identity, error: UnauthenticatedError) -> None:
    with database() as db:
        set_actor(db, _actor(identity), clock=portal().clock)
        record(
            db, action="session.failed", target_kind="user", target_id=None,
            target_name=_name(identity), tenant_id=None, reason=error.message, now=now(),
        )  # fmt: skip


def _actor(identity: Identity) -> Actor:
    return Actor(
        name=_name(identity),
        via="identity provider",
        address=request.remote_addr or "",
        user_agent=request.user_agent.string,
    )


def _name(identity: Identity) -> str:
    return (identity.email or identity.subject)[:EMAIL_LENGTH]


def _refuse(error: VedetteError) -> ResponseReturnValue:
    return render_template("login_oidc_refused.html", message=error.message), error.status
