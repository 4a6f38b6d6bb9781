"""Targets of forwarded lines: an admin adds, changes and deletes those of the tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack
from urllib.parse import urlsplit

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from alerting.notification.senders.webhooks import DEFAULT_PORTS
from alerting.rule_request import raise_errors
from core.errors import ConflictError
from core.ids import new_id
from core.paging import Columns, Page, Paging, list_page
from core.secretbox import SecretBox
from logs.forwarding.sending import SYSLOG_PORTS
from logs.lines import Source
from logs.models import ForwardKind, LogForward
from protocol.lines import LogLevel
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_FORWARDS = 10
MAX_NAME_LENGTH = 100
MAX_URL_LENGTH = 500
MAX_TOKEN_LENGTH = 500
FORWARD_SORTS: Columns = {"name": LogForward.name, "created_at": LogForward.created_at}
FORWARDED = (Source.JOB, Source.APPLIANCE)
"""The sources whose lines can be forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRequest:
    """A target as a user writes it; a change keeps the current `url` or `token` if it is empty."""

    name: str
    kind: ForwardKind
    url: str
    token: str = ""
    sources: Sequence[Source] = FORWARDED
    minimum_level: LogLevel = LogLevel.DEBUG
    is_enabled: bool = True


def list_forwards(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[LogForward]:
    """Return the targets of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(LogForward), LogForward)
    ordered = statement.order_by(LogForward.name, LogForward.id)
    return list_page(session, ordered, FORWARD_SORTS, last=LogForward.id, **paging)


def get_forward(session: Session, scope: Scope, forward_id: str) -> LogForward:
    """Return a target of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, LogForward, forward_id, kind="log target")


def create_forward(
    session: Session, scope: Scope, request: ForwardRequest, *, box: SecretBox, now: datetime
) -> LogForward:
    """Add a target to the scope's tenant, which gets what arrives from now on.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the tenant has `MAX_FORWARDS`.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    _check(session, request, tenant_id)
    count = select(func.count()).where(LogForward.tenant_id == tenant_id)
    if (session.scalar(count) or 0) >= MAX_FORWARDS:
        raise ConflictError(f"There are {MAX_FORWARDS} log targets. Delete one first.")
    forward = LogForward(tenant_id=tenant_id, position=new_id(), created_at=now)
    _fill(forward, request, box, now)
    session.add(forward)
    session.flush()
    return forward


def update_forward(
    session: Session,
    scope: Scope,
    forward_id: str,
    request: ForwardRequest,
    *,
    box: SecretBox,
    now: datetime,
) -> LogForward:
    """Change a target; one that was off gets what arrives from now on.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    forward = get_forward(session, scope, forward_id)
    _check(session, request, forward.tenant_id, own=forward)
    if request.is_enabled and not forward.is_enabled:
        forward.position = new_id()
    _fill(forward, request, box, now)
    session.flush()
    return forward


def delete_forward(session: Session, scope: Scope, forward_id: str) -> None:
    """Delete a target; what it did not get yet is not forwarded."""
    scope.require(Permission.MANAGE_APPLIANCES)
    session.delete(get_forward(session, scope, forward_id))
    session.flush()


def _fill(forward: LogForward, request: ForwardRequest, box: SecretBox, now: datetime) -> None:
    forward.name, forward.kind = request.name.strip(), request.kind
    if request.url.strip():
        forward.url = request.url.strip()
    if request.token:
        forward.token = box.encrypt(request.token.strip())
    forward.sources = sorted(source.value for source in request.sources)
    forward.minimum_level = request.minimum_level
    forward.is_enabled = request.is_enabled
    forward.failures, forward.last_error, forward.next_try_at = 0, "", now


def _check(
    session: Session, request: ForwardRequest, tenant_id: str, *, own: LogForward | None = None
) -> None:
    name = request.name.strip()
    errors: dict[str, list[str]] = {}
    same = select(LogForward.id).where(LogForward.tenant_id == tenant_id, LogForward.name == name)
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        errors["name"] = [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    elif session.scalar(same) not in {None, own.id if own else None}:
        errors["name"] = [f"A log target named {name!r} already exists. Choose another name."]
    # Of another kind, the current address makes no sense.
    keeps_url = own is not None and own.kind is request.kind and not request.url.strip()
    problem = None if keeps_url else _url_problem(request.kind, request.url.strip())
    if problem is not None:
        errors["url"] = [problem]
    if len(request.token) > MAX_TOKEN_LENGTH or not request.token.isprintable():
        errors["token"] = [f"The token has at most {MAX_TOKEN_LENGTH} printable characters."]
    if not request.sources or set(request.sources) - set(FORWARDED):
        errors["sources"] = ["Select job, appliance, or both."]
    raise_errors("log target", errors)


def _url_problem(kind: ForwardKind, text: str) -> str | None:
    schemes = SYSLOG_PORTS if kind is ForwardKind.SYSLOG else DEFAULT_PORTS
    try:
        url = urlsplit(text)
        is_valid = url.scheme in schemes and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if is_valid and text.isprintable() and " " not in text and len(text) <= MAX_URL_LENGTH:
        return None
    return (
        f"{text[:100]!r} is not an address of {kind.value}. Begin it with {next(iter(schemes))}://"
    )
