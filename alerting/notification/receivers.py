"""Receivers of notifications: email addresses, webhooks, chat and paging services, Alertmanagers.

A receiver is a tenant's, or the platform's (`is_platform`), which operators manage: tenants don't
see those, and operators don't change those of tenants.
"""

import base64
import re
import secrets
from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Unpack
from urllib.parse import urlsplit

from email_validator import EmailNotValidError, validate_email
from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from alerting.models import Receiver, Rule
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.policies import rename_receiver
from alerting.notification.senders.chat_addresses import chat_errors
from alerting.notification.senders.webhooks import (
    DEFAULT_PORTS,
    AddressPolicy,
    BlockedAddressError,
    host_of,
)
from alerting.rule_request import raise_errors
from alerting.states import (
    NOTICE,
    PAGING_KINDS,
    PAGING_URLS,
    EventTopic,
    NotificationPurpose,
    NotificationState,
    ReceiverKind,
    Region,
)
from core.errors import InvalidInputError, NotFoundError
from core.ids import new_secret
from core.paging import Columns, Page, Paging, list_page
from core.secretbox import SecretBox
from tenants.permissions import Permission
from tenants.quotas import count_rows, reserve_quota
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
# Encrypted, it must fit into its column.
MAX_CHAT_LENGTH = 250
_OVER_HTTP = frozenset({ReceiverKind.WEBHOOK, ReceiverKind.ALERTMANAGER, ReceiverKind.EVENTS})
KEY_PATTERNS = {
    ReceiverKind.PAGERDUTY: re.compile(r"[A-Za-z0-9]{32}"),
    ReceiverKind.OPSGENIE: re.compile(r"[A-Za-z0-9-]{20,100}"),
}
# The keys themselves are secret, and never repeated.
_KEY_HELP = {
    ReceiverKind.PAGERDUTY: "Enter the integration key of a PagerDuty service or event "
    "orchestration with an Events API v2 integration. It has 32 letters and digits.",
    ReceiverKind.OPSGENIE: "Enter the API key of an Opsgenie integration of the type API. It has "
    "letters, digits and hyphens.",
}
WEBHOOK_SECRET_PREFIX = "vdw"  # noqa: S105 - a prefix, not a secret
# Of Standard Webhooks, with the key in base64 behind it.
EVENT_SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret
EVENT_SECRET_BYTES = 32


def create_receiver(
    session: Session,
    scope: Scope,
    *,
    name: str,
    kind: ReceiverKind,
    target: str,
    region: Region | None = None,
    sends_resolved: bool = True,
    topics: Collection[EventTopic] = (),
    box: SecretBox,
    now: datetime,
    is_platform: bool = False,
) -> tuple[Receiver, str]:
    """Add a receiver to the scope's tenant, or to the platform.

    Args:
        target: an address, a URL, or the key of a paging service.
        region: of a paging service's account; without one, US.
        sends_resolved: whether it is notified that alerts have resolved.
        topics: of a receiver of events, what they are about.

    Returns:
        The receiver and, for a webhook, the key that signs its messages. The key is stored
        encrypted and can't be shown again.

    Raises:
        InvalidInputError: the name is empty or taken, or the target is invalid.
        ConflictError: the tenant's quota of receivers is reached.
    """
    _require_editor(scope, is_platform=is_platform)
    tenant_id = None if is_platform else scope.require_tenant()
    name, target = name.strip(), target.strip()
    errors = {
        "name": _name_errors(session, tenant_id, name),
        "target": _target_errors(kind, target),
        "region": _region_errors(kind, region),
        "topics": _topic_errors(kind, topics),
        "kind": ["Events belong to tenants."]
        if is_platform and kind is ReceiverKind.EVENTS
        else [],
    }
    raise_errors("receiver", {field: messages for field, messages in errors.items() if messages})
    if tenant_id is not None:
        count = partial(count_receivers, session, tenant_id)
        reserve_quota(session, tenant_id, "receivers", count)
    secret = _new_key(kind)
    receiver = Receiver(
        tenant_id=tenant_id,
        name=name,
        kind=kind,
        secret=box.encrypt(secret) if secret else "",
        sends_resolved=sends_resolved,
        topics=sorted(topics) or None,
        events_after=now if kind is ReceiverKind.EVENTS else None,
        created_at=now,
    )
    _set_target(receiver, target, box)
    _set_region(receiver, region or Region.US)
    session.add(receiver)
    session.flush()
    return receiver, secret


def count_receivers(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's receivers."""
    return count_rows(session, Receiver.tenant_id == tenant_id)


def update_receiver(
    session: Session,
    scope: Scope,
    receiver_id: str,
    *,
    name: str,
    target: str,
    region: Region | None = None,
    sends_resolved: bool | None = None,
    topics: Collection[EventTopic] | None = None,
    box: SecretBox,
    is_platform: bool = False,
) -> Receiver:
    """Rename a receiver, and replace what is neither empty nor None.

    One with another target or region is notified anew of the alerts that are active.

    Raises:
        InvalidInputError: the name is empty or taken, or the target is invalid.
    """
    _require_editor(scope, is_platform=is_platform)
    receiver = get_receiver(session, scope, receiver_id, is_platform=is_platform)
    name, target = name.strip(), target.strip()
    errors = {
        "name": _name_errors(session, receiver.tenant_id, name) if name != receiver.name else [],
        "target": _target_errors(receiver.kind, target) if target else [],
        "region": _region_errors(receiver.kind, region),
        "topics": [] if topics is None else _topic_errors(receiver.kind, topics),
    }
    raise_errors("receiver", {field: messages for field, messages in errors.items() if messages})
    rename_receiver(session, receiver.tenant_id, before=receiver.name, after=name)
    receiver.name = name
    if sends_resolved is not None:
        receiver.sends_resolved = sends_resolved
    if topics is not None:
        receiver.topics = sorted(topics) or None
    before = receiver.target
    if target:
        _set_target(receiver, target, box)
    if region is not None:
        _set_region(receiver, region)
    if target or receiver.target != before:
        _forget_deliveries(session, receiver)
    session.flush()
    return receiver


def send_test(
    session: Session,
    scope: Scope,
    receiver_id: str,
    *,
    public_url: str,
    now: datetime,
    is_platform: bool = False,
) -> Notification:
    """Put a test message to a receiver into the outbox; its row shows whether it was delivered."""
    _require_editor(scope, is_platform=is_platform)
    receiver = get_receiver(session, scope, receiver_id, is_platform=is_platform)
    notification = Notification(
        tenant_id=receiver.tenant_id,
        receiver_id=receiver.id,
        payload={
            "kind": NOTICE,
            "subject": f"Test of {receiver.name}",
            "text": f"This is a test message to the receiver {receiver.name}.",
            "link": f"{public_url.rstrip('/')}{'/console' if is_platform else ''}/receivers",
            "link_name": "Receivers",
        },
        state=NotificationState.WAITING,
        next_try_at=now,
        created_at=now,
    )
    session.add(notification)
    session.flush()
    session.refresh(notification)  # loads its receiver
    return notification


def check_target(
    scope: Scope,
    kind: ReceiverKind,
    target: str,
    *,
    policy: AddressPolicy,
    is_platform: bool = False,
) -> None:
    """Reject a webhook into a private network; call it outside of any transaction.

    The address is checked again at every delivery. A host name that can't be resolved now passes,
    and `create_receiver` reports a target that is no URL.

    Raises:
        InvalidInputError: the policy blocks the target.
    """
    _require_editor(scope, is_platform=is_platform)
    if kind not in _OVER_HTTP:
        return
    try:
        url = urlsplit(target.strip())
        if url.scheme in DEFAULT_PORTS and url.hostname:
            policy.addresses(host_of(url))
    except BlockedAddressError as error:
        text = error.message_for(url.hostname or "")
        message = f"The receiver is invalid. {text}"
        raise InvalidInputError(message, errors={"target": [text]}) from error
    except (OSError, ValueError):
        return


def list_receivers(session: Session, scope: Scope, *, is_platform: bool = False) -> list[Receiver]:
    """Return the receivers of the scope, or of the platform, by name."""
    return list(session.scalars(_listed(scope, is_platform=is_platform)))


def receivers_page(
    session: Session, scope: Scope, *, is_platform: bool = False, **paging: Unpack[Paging]
) -> Page[Receiver]:
    """Return one page of receivers, by name unless sorted otherwise."""
    statement = _listed(scope, is_platform=is_platform)
    return list_page(session, statement, RECEIVER_SORTS, last=Receiver.id, **paging)


def get_receiver(
    session: Session, scope: Scope, receiver_id: str, *, is_platform: bool = False
) -> Receiver:
    """Return a receiver of the scope, or of the platform."""
    scope.require(Permission.OPERATE if is_platform else Permission.VIEW)
    receiver = scope.get(session, Receiver, receiver_id, kind="receiver")
    if is_platform is not (receiver.tenant_id is None):
        raise NotFoundError.of("receiver", receiver_id)
    return receiver


def delete_receiver(
    session: Session, scope: Scope, receiver_id: str, *, is_platform: bool = False
) -> None:
    """Delete a receiver with its notifications, and remove it from rules."""
    _require_editor(scope, is_platform=is_platform)
    receiver = get_receiver(session, scope, receiver_id, is_platform=is_platform)
    for rule in session.scalars(select(Rule).where(Rule.tenant_id == receiver.tenant_id)):
        if receiver.id in rule.receiver_ids:
            rule.receiver_ids = [ident for ident in rule.receiver_ids if ident != receiver.id]
    rename_receiver(session, receiver.tenant_id, before=receiver.name, after="")
    session.delete(receiver)
    session.flush()


def list_notifications(
    session: Session,
    scope: Scope,
    *,
    alert_id: str | None = None,
    is_platform: bool = False,
    **paging: Unpack[Paging],
) -> Page[Notification]:
    """Return notifications, newest first: of the scope, about an alert, or to the platform's."""
    scope.require(Permission.OPERATE if is_platform else Permission.VIEW)
    statement = scope.select(select(Notification).order_by(Notification.id.desc()), Notification)
    if is_platform:
        statement = statement.where(Notification.tenant_id.is_(None))
    if alert_id is not None:
        statement = statement.where(Notification.alert_id == alert_id)
    return list_page(session, statement, NOTIFICATION_SORTS, last=Notification.id, **paging)


def signing_key(receiver: Receiver, box: SecretBox) -> str:
    """Return a receiver's decrypted signing key; empty without one.

    Raises:
        UnavailableError: the encryption key is missing.
    """
    return box.decrypt(receiver.secret) if receiver.secret else ""


def _require_editor(scope: Scope, *, is_platform: bool) -> None:
    scope.require(Permission.OPERATE if is_platform else Permission.EDIT_ALERTS)


def _listed(scope: Scope, *, is_platform: bool) -> Select[tuple[Receiver]]:
    scope.require(Permission.OPERATE if is_platform else Permission.VIEW)
    is_own = Receiver.tenant_id.is_(None) if is_platform else Receiver.tenant_id.is_not(None)
    statement = select(Receiver).where(is_own).order_by(Receiver.name, Receiver.id)
    return scope.select(statement, Receiver)


def _set_target(receiver: Receiver, target: str, box: SecretBox) -> None:
    if receiver.kind in PAGING_KINDS:
        receiver.secret = box.encrypt(target)
    elif receiver.kind is ReceiverKind.CHAT:
        receiver.secret = box.encrypt(target)
        receiver.target = f"{urlsplit(target).scheme}://…"
    else:
        receiver.target = target


def _set_region(receiver: Receiver, region: Region) -> None:
    if receiver.kind in PAGING_KINDS:
        receiver.target = PAGING_URLS[receiver.kind, region]


def _forget_deliveries(session: Session, receiver: Receiver) -> None:
    """Forget what the address before was notified of, and what it refused."""
    session.execute(delete(DeliveredAlert).where(DeliveredAlert.receiver_id == receiver.id))
    session.execute(
        update(Notification)
        .where(
            Notification.receiver_id == receiver.id,
            Notification.purpose == NotificationPurpose.CHANGE,
            Notification.state == NotificationState.FAILED,
        )
        .values(state=NotificationState.SUPPRESSED)
    )


def _region_errors(kind: ReceiverKind, region: Region | None) -> list[str]:
    if region is None or kind in PAGING_KINDS:
        return []
    return [f"A receiver of type {kind.value} has no region. Leave it out."]


def _topic_errors(kind: ReceiverKind, topics: Collection[EventTopic]) -> list[str]:
    if kind is ReceiverKind.EVENTS:
        return [] if topics else ["Select what the events are about."]
    return [f"A receiver of type {kind.value} has no topics. Leave them out."] if topics else []


def _new_key(kind: ReceiverKind) -> str:
    """Return a new signing key; empty for kinds that have none."""
    if kind is ReceiverKind.EVENTS:
        key = base64.b64encode(secrets.token_bytes(EVENT_SECRET_BYTES)).decode()
        return f"{EVENT_SECRET_PREFIX}{key}"
    return new_secret(WEBHOOK_SECRET_PREFIX) if kind is ReceiverKind.WEBHOOK else ""


def _name_errors(session: Session, tenant_id: str | None, name: str) -> list[str]:
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        return [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    same = select(Receiver.id).where(Receiver.tenant_id == tenant_id, Receiver.name == name)
    if session.scalar(same) is not None:
        return [f"A receiver named {name!r} already exists. Choose another name."]
    return []


def _target_errors(kind: ReceiverKind, target: str) -> list[str]:
    if len(target) > MAX_TARGET_LENGTH:
        return [f"The target has {len(target)} characters. The maximum is {MAX_TARGET_LENGTH}."]
    if kind is ReceiverKind.EMAIL:
        try:
            validate_email(target, check_deliverability=False)
        except EmailNotValidError as error:
            return [f"{target!r} is not an email address: {error}"]
        return []
    if kind in PAGING_KINDS:
        return [] if KEY_PATTERNS[kind].fullmatch(target) else [_KEY_HELP[kind]]
    if kind is ReceiverKind.CHAT:
        too_long = len(target) > MAX_CHAT_LENGTH
        return [f"Use at most {MAX_CHAT_LENGTH} characters."] if too_long else chat_errors(target)
    return _url_errors(target)


def _url_errors(target: str) -> list[str]:
    try:
        url = urlsplit(target)
        is_valid = url.scheme in DEFAULT_PORTS and bool(url.hostname) and url.port != 0
    except ValueError:  # a bad port or bracket
        is_valid = False
    if is_valid and target.isprintable() and " " not in target:
        return []
    return [f"{target!r} is not a URL. Use one like https://example.com/hook."]
