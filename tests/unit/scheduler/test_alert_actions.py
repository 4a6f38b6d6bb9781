"""Actions of rules when alerts fire: in the tenant's scope, once, within a budget, or dry."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select

from alerting.evaluation.evaluator import Evaluator
from alerting.language.text import rule_expression
from alerting.models import Alert, AlertAction, Rule
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver, update_receiver
from alerting.notification.silences import SilenceRequest, create_silence, expire_silence
from alerting.rule_request import RuleEntry
from alerting.rules.actions import list_actions, run_actions
from alerting.rules.files import apply_rules, entry_of, parse_entries, plan_rules
from alerting.rules.service import create_rule, set_rule_enabled, update_rule
from alerting.states import ActionKind, ReceiverKind
from core.db import SessionFactory, transaction
from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.models import Job
from jobqueue.queue.service import job_events
from protocol.attempts import ObservedState
from scheduler.alert_actions import HANDLERS
from scheduler.loops import SCHEDULER
from tenants.auditing.recording import acting
from tenants.models import Appliance
from tenants.models.audit import AuditEntry
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.unit.alerting.helpers import evaluate_rules, heat, hot
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit
from timeseries.store import Store


@dataclass
class Site:
    """Acme's dgx-01 with a job on its GPU 0 and one on GPU 1, and an appliance of Globex."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    appliance_id: str
    foreign_id: str
    job_ids: Sequence[str]

    def rule(self, *actions: dict[str, Any], **changes: object) -> Rule:
        with transaction(self.sessions) as session:
            request = hot(actions=actions, **changes)
            return create_rule(session, scope_of(self.cast.alice), request, now=NOON)

    def go(
        self,
        celsius: float,
        *,
        gpu: str = "0",
        uuid: str = "",
        appliance_id: str = "",
        runs: int = 2,
    ) -> None:
        """Let a minute pass, write a temperature, evaluate, and carry out actions repeatedly."""
        self.clock.advance(61)
        heat(
            self.store,
            tenant=self.cast.acme.id,
            appliance=appliance_id or self.appliance_id,
            celsius=celsius,
            at=self.clock.now - timedelta(seconds=1),
            gpu=gpu,
            uuid=uuid,
        )
        evaluate_rules(Evaluator(sessions=self.sessions, store=self.store), now=self.clock.now)
        for _ in range(runs):
            run_actions(self.sessions, HANDLERS, clock=self.clock)

    def done(self) -> list[tuple[str, str, str]]:
        with transaction(self.sessions) as session:
            order = select(AlertAction).order_by(AlertAction.created_at, AlertAction.id)
            return [
                (action.kind.value, action.state.value, action.message)
                for action in session.scalars(order)
            ]

    def stopping(self) -> list[bool]:
        with transaction(self.sessions) as session:
            jobs = [session.get_one(Job, ident) for ident in self.job_ids]
            return [job.stop_requested_at is not None for job in jobs]

    def audited(self, action: str) -> list[tuple[str, str]]:
        with transaction(self.sessions) as session:
            entries = session.scalars(select(AuditEntry).where(AuditEntry.action == action))
            return [(entry.actor_name, entry.target_name) for entry in entries]

    def appliance(self) -> Appliance:
        with transaction(self.sessions) as session:
            return session.get_one(Appliance, self.appliance_id)


@pytest.fixture
def site(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Site:
    with transaction(sessions) as session:
        ours = add_appliance(session, cast.acme, "dgx-01")
        theirs = add_appliance(session, cast.globex, "dgx-02")
        jobs = [submit(session, cast.bob, name, gpus=1) for name in ("train", "eval")]
        dispatch(session, now=NOON)
        for job in jobs:
            session.refresh(job)
            assert job.attempt is not None
            report(session, job.attempt, ObservedState.RUNNING)
        our_id, their_id, ids = ours.id, theirs.id, [job.id for job in jobs]
    with_actor = acting(sessions, SCHEDULER, clock=clock)
    return Site(with_actor, store, clock, cast, our_id, their_id, ids)


def test_the_job_on_the_alerts_gpu_is_stopped_once_for_a_firing(site: Site) -> None:
    site.rule({"kind": "stop_jobs"})
    site.go(95.0)
    assert site.done() == [("stop_jobs", "done", "Stop train")]
    assert site.stopping() == [True, False]
    assert site.audited("job.stop_requested") == [("rule GPU too hot", "train")]
    with transaction(site.sessions) as session:
        events = job_events(session, scope_of(site.cast.bob), site.job_ids[0])
        assert events[-1].message == "Rule GPU too hot requested a stop."

    site.go(85.0)  # a warning now, and critical again: the same firing
    site.go(95.0)
    assert len(site.done()) == 1
    site.go(50.0)
    site.go(95.0)
    assert site.done()[1:] == [("stop_jobs", "skipped", "No job runs there.")]
    site.go(95.0, gpu="1")
    assert site.stopping() == [True, True]


def test_an_appliance_is_drained_and_labeled_and_a_webhook_called(site: Site) -> None:
    with transaction(site.sessions) as session:
        alice = scope_of(site.cast.alice)
        hook, _ = create_receiver(
            session,
            alice,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target="https://93.184.216.34/x",
            box=BOX,
            now=NOON,
        )
    rule = site.rule(
        {"kind": "drain", "severity": "critical"},
        {"kind": "label", "labels": {"needs": "repair"}},
        {"kind": "webhook", "receiver": "hook"},
    )
    with transaction(site.sessions) as session:
        update_receiver(session, alice, hook.id, name="pager", target="", box=BOX)
    site.go(85.0)
    assert site.appliance().drained_at is None
    site.go(95.0)
    assert site.done() == [
        ("label", "done", "Label dgx-01 with needs=repair"),
        ("webhook", "done", "Call the webhook pager"),
        ("drain", "done", "Drain dgx-01"),
    ]
    assert site.appliance().drained_at is not None
    assert site.appliance().labels == {"needs": "repair"}
    assert site.audited("appliance.drained") == [("rule GPU too hot", "dgx-01")]
    with transaction(site.sessions) as session:
        (alert,) = session.scalars(select(Alert))
        (call,) = session.scalars(select(Notification))
        assert (call.receiver_id, call.alert_id) == (hook.id, alert.id)
        assert (call.payload["rule"], call.payload["state"]) == ("GPU too hot", "firing")
        assert len(list_actions(session, alice, alert.id).items) == 3
        with pytest.raises(NotFoundError):
            list_actions(session, scope_of(site.cast.charlie), alert.id)
        assert session.get_one(Rule, rule.id).actions[2]["receiver"] == "pager"


def test_a_dry_run_records_what_it_would_do_and_changes_nothing(site: Site) -> None:
    site.rule(
        {"kind": "stop_jobs", "is_dry_run": True},
        {"kind": "drain", "is_dry_run": True},
        {"kind": "label", "labels": {"a": "b"}, "is_dry_run": True},
    )
    site.go(95.0)
    assert site.done() == [
        ("stop_jobs", "dry_run", "Stop train"),
        ("drain", "dry_run", "Drain dgx-01"),
        ("label", "dry_run", "Label dgx-01 with a=b"),
    ]
    assert site.stopping() == [False, False]
    assert (site.appliance().drained_at, site.appliance().labels) == (None, {})
    assert site.audited("job.stop_requested") == site.audited("appliance.drained") == []


def test_what_is_over_the_budget_of_an_hour_is_recorded_and_not_done(site: Site) -> None:
    site.rule({"kind": "stop_jobs", "max_per_hour": 1})
    site.go(95.0)
    site.go(95.0, gpu="1")
    assert site.done()[1] == (
        "stop_jobs",
        "over_budget",
        "The rule has used up its budget of 1 in an hour.",
    )
    assert site.stopping() == [True, False]
    site.clock.advance(3600)
    site.go(50.0, gpu="1")
    site.go(95.0, gpu="1")
    assert site.stopping() == [True, True]


def test_an_alert_about_another_tenants_appliance_does_nothing(site: Site) -> None:
    site.rule({"kind": "drain"}, {"kind": "stop_jobs"}, {"kind": "label", "labels": {"a": "b"}})
    site.go(95.0, appliance_id=site.foreign_id)
    assert [state for _, state, _ in site.done()] == ["failed"] * 3
    with transaction(site.sessions) as session:
        theirs = session.get_one(Appliance, site.foreign_id)
        assert (theirs.drained_at, theirs.labels) == (None, {})


def test_actions_wait_for_silences_and_are_skipped_after_the_alert(site: Site) -> None:
    rule = site.rule({"kind": "drain"})
    alice = scope_of(site.cast.alice)
    request = SilenceRequest(
        matchers=["rule=GPU too hot"], starts_at=NOON, ends_at=NOON + timedelta(hours=1)
    )
    with transaction(site.sessions) as session:
        silence = create_silence(session, alice, request, now=NOON)
    site.go(95.0)
    assert site.done() == [("drain", "waiting", "")]
    with transaction(site.sessions) as session:
        expire_silence(session, alice, silence.id, now=site.clock.now)
    run_actions(site.sessions, HANDLERS, clock=site.clock)
    assert site.done() == [("drain", "done", "Drain dgx-01")]

    site.go(95.0, gpu="1", runs=0)
    site.go(50.0, gpu="1")
    assert site.done()[1] == ("drain", "skipped", "The alert had resolved.")
    with transaction(site.sessions) as session:
        session.execute(delete(Alert).where(Alert.rule_id == rule.id))
    assert site.done() == []


def test_an_interrupted_action_is_done_by_the_next_run(site: Site) -> None:
    """A process that dies before its commit has done nothing; one that lost the lease stops."""
    site.rule({"kind": "drain"})
    site.go(95.0, runs=0)

    def die(*_arguments: object, **_options: object) -> str:
        HANDLERS[ActionKind.DRAIN](*_arguments, **_options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_actions(site.sessions, {**HANDLERS, ActionKind.DRAIN: die}, clock=site.clock)
    assert site.done() == [("drain", "waiting", "")]
    assert site.appliance().drained_at is None
    assert run_actions(site.sessions, HANDLERS, clock=site.clock, may_act=lambda: False) == 0

    def fail(*_arguments: object, **_options: object) -> str:
        raise RuntimeError("a bug")

    assert run_actions(site.sessions, HANDLERS, clock=site.clock) == 1
    assert run_actions(site.sessions, HANDLERS, clock=site.clock) == 0
    site.go(95.0, gpu="1", runs=0)
    run_actions(site.sessions, {**HANDLERS, ActionKind.DRAIN: fail}, clock=site.clock)
    assert site.done()[1] == ("drain", "failed", "Internal error: RuntimeError: a bug")


def test_a_rule_acts_only_if_its_author_may(site: Site) -> None:
    bob, drains = scope_of(site.cast.bob), hot(actions=[{"kind": "drain"}])
    rule = site.rule({"kind": "drain"}, name="Drains", is_enabled=False)
    with transaction(site.sessions) as session:
        with pytest.raises(ForbiddenError):
            create_rule(session, bob, drains, now=NOON)
        with pytest.raises(ForbiddenError):
            update_rule(session, bob, rule.id, hot(name="Drains"), now=NOON)
        with pytest.raises(ForbiddenError):
            set_rule_enabled(session, bob, rule.id, is_enabled=True, now=NOON)


def test_errors_of_actions_are_named_and_files_have_actions(site: Site) -> None:
    wrong = (
        {"kind": "drain", "max_per_hour": 0},
        {"kind": "drain", "labels": {"a": "b"}},
        {"kind": "label"},
        {"kind": "label", "labels": {"!": "x"}},
        {"kind": "webhook"},
        {"kind": "stop_jobs", "receiver": "hook"},
    )
    with pytest.raises(InvalidInputError) as caught:
        site.rule(*wrong)
    text = " ".join(caught.value.errors["actions"])
    for part in (
        "several actions 'drain'",
        "several actions 'label'",
        "drain: max_per_hour is 0",
        "drain: Only 'label' has labels.",
        "label: Give the labels",
        "label: The label '!' is invalid",
        "webhook: Give the name",
        "stop_jobs: Only 'webhook' has a receiver.",
    ):
        assert part in text
    with pytest.raises(InvalidInputError, match="'nobody' is not a webhook of the tenant"):
        site.rule({"kind": "webhook", "receiver": "nobody"})

    rule = site.rule()
    alice = scope_of(site.cast.alice)
    entry = RuleEntry(name=rule.name, expression=rule_expression(rule), actions=[{"kind": "drain"}])
    with transaction(site.sessions) as session:
        (change,) = plan_rules(session, alice, parse_entries([entry]), deletes_others=False)
        assert change.action == "update"
        apply_rules(session, alice, [change], now=NOON)
        saved = entry_of(session.get_one(Rule, rule.id), {})
        assert saved.actions == [
            {"kind": "drain", "is_dry_run": False, "max_per_hour": 5, "severity": "warning"}
        ]
        (change,) = plan_rules(session, alice, parse_entries([entry]), deletes_others=False)
        assert change.action == "keep"


def test_an_alert_about_a_slice_stops_the_job_on_it_alone(site: Site) -> None:
    with transaction(site.sessions) as session:
        attempts = [session.get_one(Job, ident).attempt for ident in site.job_ids]
        for number, attempt in enumerate(attempts):
            assert attempt is not None
            assert attempts[0] is not None
            attempt.gpu_uuids = attempts[0].gpu_uuids
            attempt.gpu_slice = {"mode": "mig", "uuid": f"MIG-{number}", "share_milli": 125}
    site.rule({"kind": "stop_jobs"}, group_by=("appliance", "gpu", "uuid"))
    site.go(95.0, uuid="MIG-1")
    assert site.done() == [("stop_jobs", "done", "Stop eval")]
    assert site.stopping() == [False, True]
