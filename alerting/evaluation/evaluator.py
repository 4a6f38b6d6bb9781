"""Evaluation of rules: reads each rule's groups from the store and moves its alerts.

Rules with the same name are due at the same moment of their interval, and other rules at other
moments. Tenants have many rules in common: evaluating all of them at once would delay writes.
Windows that nobody has read, as after an outage, are evaluated later, with their own times.

The store is read outside any database transaction; one short transaction per rule stores the
outcomes. A rule that fails keeps its alerts as they are, shows its error, and is tried again.

A scheduler that was stopped for a while records nothing once its successor has the lease.
"""

import logging
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, Update, bindparam, delete, func, select, true, update
from sqlalchemy.orm import Session, lazyload

from alerting.evaluation.expression import Group, group_key, group_severity, read_groups
from alerting.evaluation.recorder import ACTIVE_STATES, Recorder, end_alerts_without, view_of
from alerting.evaluation.shared_reads import SharedGroups, read_shared
from alerting.machine import is_stale, next_state
from alerting.models import Alert, Rule
from alerting.states import ACCUMULATING, AlertState, NoDataPolicy
from core.db import SessionFactory, changed_one, chunked, transaction
from core.errors import DatabaseUnavailableError, VedetteError
from tenants.fleet.appliances import appliance_names
from tenants.fleet.liveness import current_outage
from tenants.models import Appliance, ApplianceState, Tenant, TenantState
from timeseries.store import APPLIANCE_TAG, Store

logger = logging.getLogger(__name__)
# The row of an alert without a transition in these states is written at most once a minute.
_IDLE_STATES = {AlertState.INACTIVE, AlertState.RESOLVED}
_IDLE_WRITE_INTERVAL = timedelta(seconds=60)
# All groups are read if more appliances than these have alerts.
MAX_APART = 100
_NONE: Final[Mapping[str, SharedGroups]] = {}
_OUT_OF_CONTACT = (
    ApplianceState.STALE,
    ApplianceState.UNREACHABLE,
    ApplianceState.LOST,
    ApplianceState.SILENT,
)
_EARLY_SHARE = 0.05
# A rule is due so soon after an evaluation at the earliest.
_LEAST_SHARE = 0.1
_LATE_SHARE = 0.1
# So many windows that were not read are evaluated later: the two oldest, and the newest.
_MAX_MISSED_WINDOWS = 20


def due_rules(sessions: SessionFactory, *, now: datetime) -> dict[str, list[Rule]]:
    """Return the enabled rules of active tenants whose interval has passed, by tenant."""
    statement = (
        select(Rule.id, Rule.name, Rule.interval_seconds, Rule.evaluated_at)
        .join(Tenant, Tenant.id == Rule.tenant_id)
        .where(Rule.is_enabled, Tenant.state == TenantState.ACTIVE)
        .order_by(Rule.id)
    )
    due_by_tenant: dict[str, list[Rule]] = {}
    with transaction(sessions) as session:
        # Most rules of hundreds of tenants are not due, and a whole one takes ten times as long.
        due = [
            key
            for key, name, interval, last_at in session.execute(statement)
            if is_due(name, interval, last_at, now)
        ]
        for ids in chunked(due):
            for rule in session.scalars(select(Rule).where(Rule.id.in_(ids)).order_by(Rule.id)):
                due_by_tenant.setdefault(rule.tenant_id, []).append(rule)
    return due_by_tenant


def is_due(name: str, interval_seconds: float, last_at: datetime | None, now: datetime) -> bool:
    """Return whether a rule's interval has passed, or the moment of its interval has come.

    A tick that comes a little early counts.
    """
    if last_at is None or not interval_seconds:
        return True
    passed = (now - last_at).total_seconds()
    if passed < interval_seconds * _LEAST_SHARE:
        return passed <= -interval_seconds
    if passed >= interval_seconds * (1 - _EARLY_SHARE):
        return True
    shift = zlib.crc32(name.encode()) % interval_seconds
    before, after = ((at.timestamp() + shift) // interval_seconds for at in (last_at, now))
    return before != after


def window_ends(rule: Rule, *, now: datetime) -> Iterator[datetime]:
    """Yield the ends of windows that no evaluation has read, as after an outage, and now."""
    window_seconds = max(rule.window_seconds, rule.interval_seconds)
    if rule.evaluated_at is not None:
        passed = (now - rule.evaluated_at).total_seconds()
        if passed > max(rule.window_seconds, rule.interval_seconds * (1 + _LATE_SHARE)):
            missed = int(passed / window_seconds)
            for number in range(missed, 0, -1):
                # While the portal was down, samples arrived only before and after.
                if number > missed - 2 or number <= _MAX_MISSED_WINDOWS - 2:
                    yield now - timedelta(seconds=number * window_seconds)
    yield now


@dataclass(slots=True)
class EvaluationSummary:
    """Counts of one evaluation."""

    rules: int = 0
    failed: int = 0
    transitions: int = 0
    notifications: int = 0

    def add(self, recorder: Recorder) -> None:
        """Count what a recorder has written."""
        self.transitions += recorder.transitions
        self.notifications += recorder.notifications


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates rules.

    Attributes:
        sessions: the database.
        store: the samples.
        public_url: for links.
        listening_since: when this portal began to ingest samples. A window that starts earlier may
            lack samples because of the portal, so that missing data is ignored.
        delay_seconds: windows end this long before the evaluation, which leaves samples time to
            arrive.
        may_record: whether this process still is the one that evaluates rules.
        fence: a condition that the database checks for the same when it records an evaluation.
        seconds: a clock that only counts, for the cost of each rule.
        count_seconds: how often all groups of a rule are read, to count them.
    """

    sessions: SessionFactory
    store: Store
    public_url: str = ""
    listening_since: datetime | None = None
    delay_seconds: float = 0.0
    may_record: Callable[[], bool] = lambda: True
    fence: ColumnElement[bool] = field(default_factory=true)
    seconds: Callable[[], float] = time.monotonic
    count_seconds: float = 6 * 3600.0

    def read_shared(self, rules: Sequence[Rule], *, now: datetime) -> Mapping[str, SharedGroups]:
        """Read rules that several tenants have at once, where the store can do so.

        Those without alerts that breach nothing are evaluated with that. No other rule of these
        tenants may be evaluated before `evaluate` gets what is returned.
        """
        if not getattr(self.store, "reads_many_tenants", False):
            return {}
        tenants = {rule.tenant_id for rule in rules}
        with transaction(self.sessions) as session:
            alerted = _alerted(session, tenants)
        # Windows that were missed may begin alerts that the read of the last one does not know of.
        shareable = {
            rule.id: rule
            for rule in rules
            if not self._reads_all(rule, alerted.get(rule.id, ()), now=now)
            and len(list(window_ends(rule, now=now))) == 1
        }
        ends_at = now - timedelta(seconds=self.delay_seconds)
        shared_by_rule = read_shared(
            self.store, shareable.values(), alerted, now=ends_at, seconds=self.seconds
        )
        quiet = [
            _evaluation(key, now=now, query_seconds=shared.query_seconds, series=None)
            for key, shared in shared_by_rule.items()
            if key not in alerted and _is_quiet(shareable[key], shared.groups)
        ]
        if quiet and self.may_record():
            with transaction(self.sessions) as session:
                session.execute(_record_statement(self.fence), quiet)
            for evaluation in quiet:
                shared_by_rule[evaluation["rule_id"]] = replace(
                    shared_by_rule[evaluation["rule_id"]], is_recorded=True
                )
        return shared_by_rule

    def evaluate(
        self, rules: Sequence[Rule], *, now: datetime, shared: Mapping[str, SharedGroups] = _NONE
    ) -> EvaluationSummary:
        """Evaluate rules of one tenant, one after the other.

        Args:
            rules: of one tenant.
            now: the end of the evaluation.
            shared: what was read of some rules up to now.
        """
        summary = EvaluationSummary()
        if not rules:
            return summary
        view = self._view(rules[0].tenant_id, has_promql=any(rule.promql for rule in rules))
        quiet: dict[str, dict[str, Any]] = {}
        for rule in rules:
            if not self.may_record():
                break
            summary.rules += 1
            try:
                shared_groups = shared.get(rule.id)
                if shared_groups is None or not shared_groups.is_recorded:
                    for at in window_ends(rule, now=now):
                        self._evaluate(rule, view, quiet, summary, shared_groups, now=at)
            except DatabaseUnavailableError:
                raise  # the next round evaluates the rest, windows that were missed included
            except Exception as error:  # noqa: BLE001 - one broken rule must not stop the others
                summary.failed += 1
                _record_error(self.sessions, rule, error)
        if quiet and self.may_record():
            with transaction(self.sessions) as session:
                session.execute(_record_statement(self.fence), list(quiet.values()))
        return summary

    def _view(self, tenant_id: str, *, has_promql: bool) -> "_View":
        own = select(Appliance.id).where(Appliance.tenant_id == tenant_id)
        with transaction(self.sessions) as session:
            return _View(
                alerted=_alerted(session, [tenant_id]),
                silent=frozenset(session.scalars(own.where(Appliance.state.in_(_OUT_OF_CONTACT)))),
                retired=frozenset(session.scalars(own.where(Appliance.retired_at.is_not(None)))),
                names=appliance_names(session, (tenant_id,)) if has_promql else {},
                is_outage=current_outage(session) is not None,
            )

    def _evaluate(
        self,
        rule: Rule,
        view: "_View",
        quiet: dict[str, dict[str, Any]],
        summary: EvaluationSummary,
        shared_groups: SharedGroups | None,
        *,
        now: datetime,
    ) -> None:
        started = self.seconds()
        ends_at = now - timedelta(seconds=self.delay_seconds)
        alerted = view.alerted.get(rule.id, ())
        is_whole = shared_groups is None and self._reads_all(rule, alerted, now=now)
        groups = (
            shared_groups.groups
            if shared_groups is not None
            else read_groups(
                self.store,
                rule,
                tenants=(rule.tenant_id,),
                now=ends_at,
                only_breaches=not is_whole,
                whole_appliances=() if is_whole else alerted,
                names=view.names,
            )
        )
        recorded = _evaluation(
            rule.id,
            now=now,
            query_seconds=self.seconds() - started
            if shared_groups is None
            else shared_groups.query_seconds,
            series=len(groups) if is_whole else None,
        )
        if rule.id not in view.alerted and _is_quiet(rule, groups):
            quiet[rule.id] = recorded
            return
        quiet.pop(rule.id, None)
        alerted = view.alerted.setdefault(rule.id, set())
        alerted.update(group.tags.get(APPLIANCE_TAG, "") for group in groups)
        starts_at = ends_at - timedelta(seconds=rule.window_seconds)
        since = self.listening_since
        is_missing_known = not view.is_outage and (since is None or since <= starts_at)
        with transaction(self.sessions) as session:
            # The first statement writes: on SQLite it locks the database for the reads that follow.
            statement = _record_statement(self.fence)
            if not self.may_record() or not changed_one(session, statement, recorded):
                return
            recorder = Recorder(session, session.get_one(Rule, rule.id), now, self.public_url)
            if rule.evaluated_at is None and is_missing_known:
                end_alerts_without(recorder, groups)
            record_groups(
                recorder,
                [group for group in groups if group.tags.get(APPLIANCE_TAG) not in view.retired],
                view.silent,
                is_missing_known=is_missing_known,
            )
            summary.add(recorder)

    def _reads_all(self, rule: Rule, alerted: Collection[str], *, now: datetime) -> bool:
        """Return whether all groups of a rule are needed, or are counted again."""
        if rule.no_data is NoDataPolicy.ALERT or APPLIANCE_TAG in rule.filters:
            return True
        if "" in alerted or len(alerted) > MAX_APART or rule.evaluated_at is None:
            return True
        # Each rule at another time.
        shift = int(rule.id[-4:], 16) % self.count_seconds
        before, after = (int(at.timestamp()) + shift for at in (rule.evaluated_at, now))
        return before // self.count_seconds != after // self.count_seconds


@dataclass(frozen=True, slots=True)
class _View:
    """The state of a tenant during an evaluation.

    Attributes:
        alerted: appliances that have alerts, by rule.
        silent: appliances that are out of contact.
        retired: appliances whose samples raise no alerts.
        names: of appliances by ID, where rules in PromQL need them.
        is_outage: whether the portal suspects itself.
    """

    alerted: dict[str, set[str]]
    silent: frozenset[str]
    retired: frozenset[str]
    names: Mapping[str, str]
    is_outage: bool


def _alerted(session: Session, tenants: Iterable[str]) -> dict[str, set[str]]:
    """Return the appliances that have alerts, by rule; "" for alerts without one."""
    appliances: dict[str, set[str]] = {}
    alerts = select(Alert.rule_id, Alert.tags).where(Alert.tenant_id.in_(list(tenants)))
    for rule_id, tags in session.execute(alerts):
        appliances.setdefault(rule_id, set()).add(tags.get(APPLIANCE_TAG, ""))
    return appliances


def _is_quiet(rule: Rule, groups: Sequence[Group]) -> bool:
    """Return whether a rule without alerts needs none."""
    return rule.no_data is not NoDataPolicy.ALERT and not any(
        group_severity(group, rule) is not None for group in groups
    )


def _evaluation(
    rule_id: str, *, now: datetime, query_seconds: float, series: int | None
) -> dict[str, Any]:
    """Return the parameters of `_record_statement` for an evaluation."""
    return {
        "rule_id": rule_id,
        "at": now,
        "seconds": query_seconds,
        "counted": series,
    }


@cache
def _record_statement(fence: ColumnElement[bool]) -> Update:
    """Return the update that records an evaluation.

    Made once: making it would be most of the time of a rule without samples.
    """
    rules = cast("Table", Rule.__table__).c
    return (
        update(cast("Table", Rule.__table__))
        .where(rules.id == bindparam("rule_id"), rules.is_enabled, fence)
        .values(
            evaluated_at=bindparam("at"),
            evaluation_error="",
            query_seconds=bindparam("seconds"),
            series=func.coalesce(bindparam("counted"), rules.series),
        )
    )


def record_groups(
    recorder: Recorder, groups: Sequence[Group], silent: frozenset[str], *, is_missing_known: bool
) -> None:
    """Move the alerts of a rule by the values of its groups.

    Args:
        recorder: of the rule.
        groups: those that have a value.
        silent: appliances that are out of contact.
        is_missing_known: whether the alerts of other groups have no value.
    """
    rule = recorder.rule
    # Neither with its rule nor with who acknowledged it: they would take most of the time.
    statement = select(Alert).where(Alert.rule_id == rule.id).options(lazyload("*"))
    alerts = {alert.group_key: alert for alert in recorder.session.scalars(statement)}
    is_each_needed = bool(alerts) or rule.no_data is NoDataPolicy.ALERT
    for group in groups:
        if is_each_needed or group_severity(group, rule) is not None:
            _observe(recorder, alerts.pop(group_key(group.tags), None), group, silent)
    for alert in alerts.values():
        if is_missing_known or alert.state is AlertState.PENDING:
            _miss(recorder, alert)
    recorder.flush()


def _observe(recorder: Recorder, alert: Alert | None, group: Group, silent: frozenset[str]) -> None:
    rule = recorder.rule
    before = None if alert is None else view_of(alert)
    outcome = next_state(before, group.value, rule, now=recorder.now, holds=group.holds)
    if alert is not None and before is not None:
        has_ended = alert.state in ACTIVE_STATES and outcome.after.state not in ACTIVE_STATES
        if has_ended and rule.aggregate in ACCUMULATING and group.tags.get(APPLIANCE_TAG) in silent:
            return  # the window only loses samples while none arrive
        is_idle = alert.state in _IDLE_STATES and not outcome.is_transition
        if not is_idle or recorder.now - alert.updated_at >= _IDLE_WRITE_INTERVAL:
            recorder.change(alert, before, outcome)
    elif outcome.is_transition or rule.no_data is NoDataPolicy.ALERT:
        # A no-data alert needs the groups that once had a value.
        recorder.add(group.tags, outcome)


def _miss(recorder: Recorder, alert: Alert) -> None:
    before = view_of(alert)
    outcome = next_state(before, None, recorder.rule, now=recorder.now)
    if is_stale(before, now=recorder.now):
        recorder.session.execute(delete(Alert).where(Alert.id == alert.id))
    elif outcome.after != before:
        recorder.change(alert, before, outcome)


def _record_error(sessions: SessionFactory, rule: Rule, error: Exception) -> None:
    if isinstance(error, VedetteError):
        text = error.message
        logger.warning("evaluation of rule %s (%s) failed: %s", rule.name, rule.id, text)
    else:
        text = f"Internal error: {type(error).__name__}: {error}"
        logger.error("evaluation of rule %s (%s) failed", rule.name, rule.id, exc_info=error)
    with transaction(sessions) as session:
        session.execute(update(Rule).where(Rule.id == rule.id).values(evaluation_error=text))
