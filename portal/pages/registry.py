"""The token server of the private registry, and where the registry reports what was pushed.

Clients of the registry (`docker login`, `docker push`) authenticate here with a user's email
address and password, or with any user name and an API token as password.

Source: https://distribution.github.io/distribution/spec/auth/token/
"""

from http import HTTPStatus

from flask import Blueprint, request
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError, NotFoundError, UnauthenticatedError
from core.strict_json import decode_json
from jobqueue.images.catalog import follow, read_events
from jobqueue.images.tokens import PULL, PUSH, SERVICE, USER_LIFETIME, granted, parse_scopes
from portal.auth.guard import principal_of_token
from portal.auth.sign_in import check_password
from portal.context import now, portal, set_principal
from tenants.models import Tenant, User
from tenants.permissions import Permission
from tenants.principals import Principal, Via, principal_of
from tenants.scope import Scope, active_memberships
from tenants.users.second_factor import is_on
from tenants.users.signin import require_can_sign_in
from tenants.users.tokens import API_TOKEN_PREFIX

pages = Blueprint("registry", __name__, url_prefix="/api/registry")

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="Vedette"'}


@pages.get("/token")
def token() -> ResponseReturnValue:
    """Exchange credentials for a token of the registry."""
    try:
        user, scopes = _authenticated()
    except UnauthenticatedError as error:
        # The format of the registry's own errors, which its clients show.
        errors = [{"code": "UNAUTHORIZED", "message": error.message}]
        return {"errors": errors}, HTTPStatus.UNAUTHORIZED, _CHALLENGE
    if (service := request.args.get("service", SERVICE)) != SERVICE:
        message = f"Unknown service {service[:50]!r}; this is the token server of {SERVICE!r}."
        raise InvalidInputError(message, errors={"service": [message]})
    tokens, issued_at = portal().registry_tokens, now()
    allowed = {tokens.shared_namespace: frozenset({PULL})}
    if user.is_operator and any(scope.allows(Permission.OPERATE) for _, scope in scopes):
        allowed = {tokens.shared_namespace: frozenset({PULL, PUSH})}
    for tenant, scope in scopes:
        if tenant is not None and tenant.slug != tokens.shared_namespace:
            allowed[tenant.slug] = _actions(scope)
    access = granted(parse_scopes(request.args.getlist("scope")), allowed)
    signed = tokens.sign(user.email, access, now=issued_at)
    return {
        "token": signed,
        "access_token": signed,
        "expires_in": int(USER_LIFETIME.total_seconds()),
        "issued_at": issued_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


@pages.post("/notifications")
def notifications() -> ResponseReturnValue:
    """Receive what was pushed to the registry or deleted in it."""
    parts = portal()
    credentials = request.authorization
    secret = credentials.token if credentials is not None else None
    if not secret or not parts.registry_tokens.is_notification_secret(secret):
        raise UnauthenticatedError("Notifications of the registry need its secret.")
    body: object = decode_json(request.get_data())
    if not isinstance(body, dict):
        raise InvalidInputError("Notifications are a JSON object with `events`.")
    follow(
        parts.sessions,
        parts.registry,
        read_events(body),
        shared_namespace=parts.registry_tokens.shared_namespace,
        now=now(),
    )
    return "", HTTPStatus.NO_CONTENT


def _authenticated() -> tuple[User, list[tuple[Tenant | None, Scope]]]:
    """Return who asks, with their tenants: an API token has one, a password all of its user's."""
    credentials = request.authorization
    if credentials is None or credentials.type != "basic":
        raise UnauthenticatedError("Sign in with `docker login`.")
    if not portal().registry_tokens.host:
        raise NotFoundError("This portal has no registry. Ask its operator to set registry_url.")
    email, password = credentials.username or "", credentials.password or ""
    if password.startswith(f"{API_TOKEN_PREFIX}_"):
        principal = principal_of_token(password)
        if principal is None:
            raise UnauthenticatedError("The API token is invalid, revoked or expired.")
        set_principal(principal)
        return principal.user, [(principal.tenant, principal.scope)]
    user = check_password(email=email, password=password)
    require_can_sign_in(user)
    if is_on(user):
        raise UnauthenticatedError(
            "This account has a second factor: use an API token as the password."
        )
    set_principal(_principal(user))
    own = [
        (membership.tenant, Scope.of_membership(membership))
        for membership in active_memberships(user)
    ]
    return user, [*own, *([(None, Scope.of(user))] if user.is_operator else [])]


def _principal(user: User) -> Principal | None:
    return principal_of(user, via=Via.PASSWORD)


def _actions(scope: Scope) -> frozenset[str]:
    needs = {PULL: Permission.VIEW, PUSH: Permission.PUSH_IMAGES}
    return frozenset(action for action, need in needs.items() if scope.allows(need))
