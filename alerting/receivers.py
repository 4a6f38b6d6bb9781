"""Receivers: where messages go, and the messages that went or wait."""

from datetime import datetime
from urllib.parse import urlsplit

from email_validator import EmailNotValidError, validate_email
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Notification, Receiver, Rule
from alerting.sealing import new_webhook_secret
from alerting.states import ReceiverKind
from core.errors import InvalidInputError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.secretbox import SecretBox
from core.sorting import Columns, sorted_by
from tenants.permissions import Permission
from tenants.scope import Scope

RECEIVER_SORTS: Columns = {
    "name": Receiver.name,
    "kind": Receiver.kind,
    "created_at": Receiver.created_at,
}
NOTIFICATION_SORTS: Columns = {
    "created_at": Notification.created_at,
    "sent_at": Notification.sent_at,
    "state": Notification.state,
    "tries": Notification.tries,
}

MAX_NAME_LENGTH = 100
MAX_TARGET_LENGTH = 500


def create_receiver(
    session: Session,
    scope: Scope,
    *,
    name: str,
    kind: ReceiverKind,
    target: str,
    box: SecretBox,
    now: datetime,
) -> tuple[Receiver, str]:
    """Add a receiver to the scope's tenant; a webhook gets a secret that signs its messages.

    Returns:
        The receiver, and the secret, which can't be shown again; an email address has none.

    Raises:
        InvalidInputError: the name is empty or taken, or the target no address of this kind.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    name, target = name.strip(), target.strip()
    errors = {
        "name": _name_faults(session, tenant_id, name),
        "target": _target_faults(kind, target),
    }
    errors = {field: faults for field, faults in errors.items() if faults}
    if errors:
        details = " ".join(fault for faults in errors.values() for fault in faults)
        raise InvalidInputError(f"The receiver can't be added. {details}", errors=errors)
    secret = new_webhook_secret() if kind is ReceiverKind.WEBHOOK else ""
    receiver = Receiver(
        tenant_id=tenant_id,
        name=name,
        kind=kind,
        target=target,
        secret=box.encrypt(secret) if secret else "",
        created_at=now,
    )
    session.add(receiver)
    session.flush()
    return receiver, secret


def list_receivers(session: Session, scope: Scope) -> list[Receiver]:
    """Return the receivers that the scope may see, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Receiver).order_by(Receiver.name, Receiver.id), Receiver)
    return list(session.scalars(statement))


def receivers_page(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Receiver]:
    """Return one page of the receivers, by name unless `sort` says otherwise."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Receiver), Receiver)
    statement = sorted_by(statement, sort or "name", RECEIVER_SORTS, last=Receiver.id)
    return paginate(session, statement, number=page, size=page_size)


def get_receiver(session: Session, scope: Scope, receiver_id: str) -> Receiver:
    """Return a receiver; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Receiver, receiver_id, kind="receiver")


def delete_receiver(session: Session, scope: Scope, receiver_id: str) -> None:
    """Delete a receiver with its messages, and take it out of the rules that name it."""
    scope.require(Permission.EDIT_ALERTS)
    receiver = get_receiver(session, scope, receiver_id)
    for rule in session.scalars(select(Rule).where(Rule.tenant_id == receiver.tenant_id)):
        if receiver.id in rule.receiver_ids:
            rule.receiver_ids = [ident for ident in rule.receiver_ids if ident != receiver.id]
    session.delete(receiver)
    session.flush()


def list_notifications(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Notification]:
    """Return the messages of the outbox, newest first: waiting, sent and given up."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Notification).order_by(Notification.id.desc()), Notification)
    return paginate(
        session,
        sorted_by(statement, sort, NOTIFICATION_SORTS, last=Notification.id),
        number=page,
        size=page_size,
    )


def _name_faults(session: Session, tenant_id: str, name: str) -> list[str]:
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        return [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    same = select(Receiver.id).where(Receiver.tenant_id == tenant_id, Receiver.name == name)
    if session.scalar(same) is not None:
        return [f"Another receiver is called {name!r}. Choose another name."]
    return []


def _target_faults(kind: ReceiverKind, target: str) -> list[str]:
    if len(target) > MAX_TARGET_LENGTH:
        return [f"The target has {len(target)} characters; use at most {MAX_TARGET_LENGTH}."]
    return _email_faults(target) if kind is ReceiverKind.EMAIL else _url_faults(target)


def _email_faults(target: str) -> list[str]:
    try:
        validate_email(target, check_deliverability=False)
    except EmailNotValidError as error:
        return [f"{target!r} is not an email address: {error}"]
    return []


def _url_faults(target: str) -> list[str]:
    try:
        url = urlsplit(target)
        is_good = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # a bad port or bracket
        is_good = False
    if is_good and target.isprintable() and " " not in target:
        return []
    return [f"{target!r} is not a web address. Give one like https://example.com/hook."]
