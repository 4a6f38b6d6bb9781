"""Actions: what rules do beside notifying when their alerts fire, each once for a firing.

An action is a row that is written with the transition to firing, like a notification. Here each
waiting row is claimed by a guarded update, and carried out in the same transaction, in the scope of
the rule's tenant: after a crash it has either happened and is recorded, or neither. A dry run
is carried out, too, and then rolled back.

An action waits while its alert is silenced or inhibited, and is skipped once the alert resolves.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, Unpack

from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertAction, Receiver, Rule
from alerting.notification.holds import Holds, current_holds
from alerting.notification.models import Notification
from alerting.rules.service import get_alert
from alerting.states import (
    ActionKind,
    ActionState,
    AlertState,
    NotificationPurpose,
    NotificationState,
)
from core.clock import Clock
from core.db import SessionFactory, changed_one, transaction
from core.errors import NotFoundError, VedetteError
from core.paging import Columns, Page, Paging, list_page
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.models import Role
from tenants.scope import Scope

logger = logging.getLogger(__name__)

BATCH = 500
BUDGET_PERIOD = timedelta(hours=1)
ACTION_SORTS: Columns = {"created_at": AlertAction.created_at}


class NothingToDoError(VedetteError):
    """The object of an action, such as a job, does not exist."""


class Handler(Protocol):
    """Carries out the actions of a kind."""

    def __call__(
        self, session: Session, scope: Scope, action: AlertAction, alert: Alert, *, now: datetime
    ) -> str:
        """Do it; return what was done as an order, such as `Drain dgx-01`.

        Raises:
            VedetteError: nothing was done.
        """


def run_actions(
    sessions: SessionFactory,
    handlers: Mapping[ActionKind, Handler],
    *,
    clock: Clock,
    may_act: Callable[[], bool] = lambda: True,
) -> int:
    """Carry out the actions that wait; return how many were done."""
    now, done = clock(), 0
    due = (
        select(AlertAction.id, AlertAction.rule_id, AlertAction.tenant_id)
        .where(AlertAction.state == ActionState.WAITING, AlertAction.due_at <= now)
        .order_by(AlertAction.due_at, AlertAction.id)
        .limit(BATCH)
    )
    with transaction(sessions) as session:
        waiting = session.execute(due).all()
        if not waiting:
            return 0
        holds = current_holds(session, {tenant_id for _, _, tenant_id in waiting}, now=now)
    for ident, rule_id, _ in waiting:
        if not may_act():
            break
        with transaction(sessions) as session:
            claim = update(AlertAction).where(
                AlertAction.id == ident, AlertAction.state == ActionState.WAITING
            )
            if not changed_one(session, claim.values(finished_at=now)):
                continue
            # A lock, so that another process can't exceed the budget meanwhile.
            session.execute(update(Rule).where(Rule.id == rule_id).values(id=rule_id))
            action = session.get_one(AlertAction, ident)
            _run(session, action, handlers, holds, clock=clock)
            done += action.state is ActionState.DONE
    return done


def list_actions(
    session: Session, scope: Scope, alert_id: str, **paging: Unpack[Paging]
) -> Page[AlertAction]:
    """Return the actions of an alert, newest first."""
    alert = get_alert(session, scope, alert_id)
    statement = select(AlertAction).where(AlertAction.alert_id == alert.id)
    newest_first = statement.order_by(AlertAction.created_at.desc(), AlertAction.id.desc())
    return list_page(session, newest_first, ACTION_SORTS, last=AlertAction.id, **paging)


def call_webhook(
    session: Session,
    scope: Scope,  # noqa: ARG001 - as the other handlers
    action: AlertAction,
    alert: Alert,
    *,
    now: datetime,
) -> str:
    """Queue the call of a webhook."""
    name = action.action["receiver"]
    statement = select(Receiver).where(
        Receiver.tenant_id == action.tenant_id, Receiver.name == name
    )
    receiver = session.scalar(statement)
    if receiver is None:
        raise NotFoundError.of("receiver", name)
    session.add(
        Notification(
            tenant_id=action.tenant_id,
            receiver_id=receiver.id,
            alert_id=alert.id,
            purpose=NotificationPurpose.ACTION,
            payload=action.payload,
            state=NotificationState.WAITING,
            next_try_at=now,
            created_at=now,
        )
    )
    session.flush()
    return f"Call the webhook {name}"


def _run(
    session: Session,
    action: AlertAction,
    handlers: Mapping[ActionKind, Handler],
    holds: Holds,
    *,
    clock: Clock,
) -> None:
    now = clock()
    alert = session.get_one(Alert, action.alert_id)
    about = Notification(tenant_id=action.tenant_id, payload=action.payload)
    until = holds.until(about, now=now)
    if alert.state is not AlertState.FIRING or alert.fired_at != action.fired_at:
        action.state, action.message = ActionState.SKIPPED, "The alert had resolved."
    elif until is not None:
        action.due_at, action.finished_at = until, None
    elif _is_over_budget(session, action, now=now):
        limit = action.action["max_per_hour"]
        action.state = ActionState.OVER_BUDGET
        action.message = f"The rule has used up its budget of {limit} in an hour."
    else:
        actor = Actor(name=f"rule {alert.rule.name}", via=f"alert {alert.id}")
        set_actor(session, actor, clock=clock)
        # Its admin's: no more than the tenant's own things.
        scope = Scope(user_id="", role=Role.ADMIN, tenant_id=action.tenant_id)
        do = partial(handlers[action.kind], session, scope, action, alert, now=now)
        action.state, action.message = _carried_out(session, action, do)


def _is_over_budget(session: Session, action: AlertAction, *, now: datetime) -> bool:
    spent = select(func.count()).where(
        AlertAction.rule_id == action.rule_id,
        AlertAction.kind == action.kind,
        AlertAction.state == _success(action),
        AlertAction.finished_at > now - BUDGET_PERIOD,
    )
    return (session.scalar(spent) or 0) >= int(action.action["max_per_hour"])


def _success(action: AlertAction) -> ActionState:
    return ActionState.DRY_RUN if action.action["is_dry_run"] else ActionState.DONE


def _carried_out(
    session: Session, action: AlertAction, do: Callable[[], str]
) -> tuple[ActionState, str]:
    savepoint = session.begin_nested()
    try:
        text = do()
        session.flush()
    except VedetteError as error:
        savepoint.rollback()
        has_nothing = isinstance(error, NothingToDoError)
        return ActionState.SKIPPED if has_nothing else ActionState.FAILED, error.message
    except OperationalError:
        raise  # such as a deadlock, which ends the transaction: the next run tries again
    except Exception as error:  # a bug must not stop the other actions
        savepoint.rollback()
        logger.exception("action %s (%s) failed", action.id, action.kind.value)
        return ActionState.FAILED, f"Internal error: {type(error).__name__}: {error}"
    if action.action["is_dry_run"]:
        savepoint.rollback()
    else:
        savepoint.commit()
    return _success(action), text
