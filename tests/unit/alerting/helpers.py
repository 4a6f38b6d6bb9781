"""Shorthands of the tests in this folder."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from alerting.evaluation.evaluator import EvaluationSummary, Evaluator, due_rules
from alerting.evaluation.recorder import resolve_ended
from alerting.models import Receiver
from alerting.notification.outbox import UNLIMITED, drain_recipient, due_recipients
from alerting.notification.receivers import create_receiver
from alerting.notification.senders.notify import Sender
from alerting.rule_request import RuleRequest
from alerting.states import ReceiverKind
from core.clock import to_ns
from core.db import SessionFactory
from tenants.lifecycle.message_budgets import MessageBudgets
from tenants.scope import Scope
from tests.cast import BOX, NOON
from timeseries.points import Point
from timeseries.store import Store, write

HOT = RuleRequest(
    name="GPU too hot",
    measurement="gpu",
    field="temperature_celsius",
    window_seconds=60.0,
    group_by=("gpu",),
    warning_threshold=80.0,
    critical_threshold=90.0,
)

PAYLOAD: dict[str, Any] = {
    "version": 1,
    "rule": "GPU <too> hot",
    "rule_id": "r1",
    "alert_id": "a1",
    "expression": "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85 °C",
    "tenant": "Acme",
    "state": "firing",
    "severity": "critical",
    "value": 91.0,
    "value_text": "91 °C",
    "threshold": 85.0,
    "threshold_text": "85 °C",
    "comparison": ">",
    "tags": {"appliance": "gpu-01", "gpu": "3"},
    "appliance_id": "x",
    "started_at": "2026-03-02T12:00:00Z",
    "fired_at": "2026-03-02T12:00:00Z",
    "resolved_at": None,
    "at": "2026-03-02T12:00:00Z",
    "links": {"rule": "https://portal.example/rules/r1?a=1&b=2"},
}


def hot(**changes: object) -> RuleRequest:
    """The rule `GPU too hot` with some things changed."""
    return replace(HOT, **changes)  # type: ignore[arg-type] # the test names real fields


def add_mail(
    session: Session, scope: Scope, name: str = "ops", *, sends_resolved: bool = True
) -> Receiver:
    """Create a receiver that gets e-mails."""
    receiver, _secret = create_receiver(
        session,
        scope,
        name=name,
        kind=ReceiverKind.EMAIL,
        target=f"{name.lower()}@acme.example",
        sends_resolved=sends_resolved,
        box=BOX,
        now=NOON,
    )
    return receiver


def heat(
    store: Store,
    *,
    tenant: str,
    celsius: float,
    at: datetime,
    appliance: str = "a1",
    gpu: str = "0",
    uuid: str = "",
) -> None:
    """Write one temperature."""
    tags = {"gpu": gpu} | ({"uuid": uuid} if uuid else {})
    point = Point("gpu", tags, {"temperature_celsius": celsius}, to_ns(at))
    assert write(store, [point], identity={"tenant": tenant, "appliance": appliance}) == []


def drain_outbox(
    sessions: SessionFactory,
    senders: Mapping[ReceiverKind, Sender],
    *,
    kinds: Collection[ReceiverKind] = tuple(ReceiverKind),
    budgets: MessageBudgets = UNLIMITED,
    now: datetime,
) -> int:
    """Send the due notifications of all recipients in turn; return the number of delivered ones."""
    return sum(
        drain_recipient(sessions, senders, recipient, clock=lambda: now, budgets=budgets)
        for recipient in due_recipients(sessions, kinds=kinds, now=now)
    )


def evaluate_rules(evaluator: Evaluator, *, now: datetime) -> EvaluationSummary:
    """Evaluate every rule that is due, one tenant after the other."""
    summary = EvaluationSummary()
    for rules in due_rules(evaluator.sessions, now=now).values():
        tenant_summary = evaluator.evaluate(rules, now=now)
        summary.rules += tenant_summary.rules
        summary.failed += tenant_summary.failed
        summary.transitions += tenant_summary.transitions
        summary.notifications += tenant_summary.notifications
    resolve_ended(evaluator.sessions, now=now, public_url=evaluator.public_url)
    return summary
