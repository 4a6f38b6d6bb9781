"""`/login/oidc`: single sign-on with an OpenID Connect identity provider."""

import logging
import secrets
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flask import Blueprint, g, redirect, render_template, request, session
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import IntegrityError

from core.errors import DeadlockError, NotFoundError, UnauthenticatedError, VedetteError
from portal.auth.guard import safe_next
from portal.auth.identity_errors import RefusedIdentityError
from portal.auth.oidc import CALLBACK_PATH, provider
from portal.auth.sign_in import continue_sign_in
from portal.context import database, now, portal
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import record, set_actor
from tenants.models import User
from tenants.models.users import EMAIL_LENGTH
from tenants.users.oidc import Identity, user_for_identity
from tenants.users.signin import require_can_sign_in

if TYPE_CHECKING:
    from portal.auth.oidc_provider import Provider

log = logging.getLogger(__name__)

pages = Blueprint("oidc", __name__)

ATTEMPT_KEY = "oidc"
SIGN_IN_TIMEOUT = timedelta(minutes=10)
MAX_TRIES = 4


@pages.get("/login/oidc")
def start() -> ResponseReturnValue:
    """Redirect to the identity provider."""
    target = safe_next(request.args.get("next"))
    try:
        attempt = _provider().begin()
    except VedetteError as error:
        return _refuse(error)
    session[ATTEMPT_KEY] = asdict(attempt) | {"target": target, "at": now().timestamp()}
    return redirect(attempt.url)


@pages.get(CALLBACK_PATH)
def callback() -> ResponseReturnValue:
    """Sign the user in with the identity provider's response."""
    source = _provider()
    try:
        attempt = _attempt_of_state(request.args.get("state", ""))
        identity = source.finish(_code(), nonce=attempt["nonce"], verifier=attempt["verifier"])
        user = _user(identity, source)
    except VedetteError as error:
        return _refuse(error)
    return redirect(continue_sign_in(user, target=safe_next(attempt["target"])))


def _provider() -> "Provider":
    configured = provider()
    if configured is None:
        raise NotFoundError("No identity provider is configured for this portal.")
    return configured


def _attempt_of_state(state: str) -> dict[str, str]:
    """Return this browser's sign-in attempt, once."""
    attempt = session.pop(ATTEMPT_KEY, None)
    if attempt is None or not secrets.compare_digest(attempt["state"].encode(), state.encode()):
        raise RefusedIdentityError(
            "This sign-in was started in another browser or is already complete. Sign in again."
        )
    if not timedelta(0) <= now() - datetime.fromtimestamp(attempt["at"], UTC) < SIGN_IN_TIMEOUT:
        raise RefusedIdentityError("The sign-in timed out. Sign in again.")
    claims: dict[str, str] = attempt
    return claims


def _code() -> str:
    issuer = request.args.get("iss")
    if issuer is not None and issuer.rstrip("/") != portal().settings.oidc_issuer.rstrip("/"):
        raise RefusedIdentityError("The response is from another identity provider. Sign in again.")
    if request.args.get("error") == "access_denied":
        raise RefusedIdentityError("The identity provider denied access.")
    code = request.args.get("code")
    if not code or "error" in request.args:
        raise RefusedIdentityError("The identity provider reported an error. Sign in again.")
    return code


def _user(identity: Identity, source: "Provider") -> User:
    try:
        user = _user_of(identity, source)
        require_can_sign_in(user)
    except UnauthenticatedError as error:
        _record_refusal(identity, error)
        raise
    return user


def _user_of(identity: Identity, source: "Provider") -> User:
    """Return the user, retrying when concurrent first sign-ins of one identity collide."""
    for _ in range(MAX_TRIES - 1):
        try:
            return _user_once(identity, source)
        except (IntegrityError, DeadlockError) as error:
            log.info("Concurrent sign-in of %s: %s", _name(identity), error)
    return _user_once(identity, source)


def _user_once(identity: Identity, source: "Provider") -> User:
    with database() as db:
        set_actor(db, _actor(identity), clock=portal().clock)
        return user_for_identity(db, identity, source.group_roles, now=now())


def _record_refusal(identity: Identity, error: UnauthenticatedError) -> None:
    with database() as db:
        set_actor(db, _actor(identity), clock=portal().clock)
        record(
            db,
            action="session.failed",
            target_kind="user",
            target_name=_name(identity),
            tenant_id=None,
            reason=error.message,
            now=now(),
        )


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
    g.shows_error = True
    return render_template("auth/oidc_failed.html", message=error.message), error.status
