"""Rounds: at every tick, the due rules of each tenant are evaluated in a thread of their own.

While a tenant's round lasts, its rules that come due again are skipped: a rule is evaluated late,
never twice. Skips are counted by rule. Tenants share the threads, but at most half of them serve
tenants whose last round took longer than a tick, so that those only delay each other. Rules that
several of the others have are read at once before; two threads record what that found.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import update

from alerting.evaluation.evaluator import Evaluator, due_rules, is_due
from alerting.evaluation.recorder import resolve_ended
from alerting.evaluation.shared_reads import SharedGroups
from alerting.models import Rule
from core.db import transaction
from core.errors import DatabaseUnavailableError

logger = logging.getLogger(__name__)

THREADS = 8
MAX_SLOW = THREADS // 2
# Recording holds the interpreter lock: more threads would only delay senders of samples.
RECORDING_THREADS = 2


@dataclass(slots=True)
class _Round:
    """The running round of a tenant: when its rules were due, and whether it takes a slow slot."""

    at: datetime
    is_slow: bool


class Rounds:
    """Evaluates the rules of all tenants.

    Args:
        evaluator: evaluates the rules of one.
        tick_seconds: the time between two calls of `tick`; a longer round is slow.
        on_notifications: is called after a round that added notifications to the outbox.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        tick_seconds: float,
        on_notifications: Callable[[], None] = lambda: None,
    ) -> None:
        self._closing = threading.Event()
        self._evaluator = replace(
            evaluator, may_record=lambda: evaluator.may_record() and not self._closing.is_set()
        )
        self._tick_seconds = tick_seconds
        self._on_notifications = on_notifications
        self._lock = threading.Lock()
        self._running: dict[str, _Round] = {}
        self._slow: set[str] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="rules")
        self._recording = ThreadPoolExecutor(RECORDING_THREADS, thread_name_prefix="recording")

    def tick(self, *, now: datetime) -> None:
        """Start the rounds that are due, and count the rules that are skipped."""
        evaluator = self._evaluator
        skipped: list[str] = []
        starting: dict[str, list[Rule]] = {}
        for tenant_id, rules in due_rules(evaluator.sessions, now=now).items():
            with self._lock:
                running = self._running.get(tenant_id)
                is_slow = tenant_id in self._slow
                can_start = running is None and not (is_slow and self._is_slow_full())
                if can_start:
                    self._running[tenant_id] = _Round(now, is_slow)
            if can_start:
                starting[tenant_id] = rules
            else:
                missed = [
                    rule.id
                    for rule in rules
                    if running is None or is_due(rule.name, rule.interval_seconds, running.at, now)
                ]
                skipped += missed
                if missed:
                    logger.warning(
                        "tenant %s: %d rules are not evaluated at %s: %s",
                        tenant_id,
                        len(missed),
                        now.isoformat(timespec="seconds"),
                        "other slow rules come first"
                        if running is None
                        else f"those due at {running.at.isoformat(timespec='seconds')} still are",
                    )
        shared = self._shared(starting, now=now)
        for tenant_id, rules in starting.items():
            shared_groups = [shared.get(rule.id) for rule in rules]
            if all(groups is not None and groups.is_recorded for groups in shared_groups):
                with self._lock:
                    del self._running[tenant_id]
            else:
                pool = self._pool if None in shared_groups else self._recording
                pool.submit(self._evaluate, tenant_id, rules, shared, now)
        self._count(skipped, now=now)
        resolve_ended(evaluator.sessions, now=now, public_url=evaluator.public_url)

    def close(self) -> None:
        """Stop after the rules that are being evaluated."""
        self._closing.set()
        for pool in (self._pool, self._recording):
            pool.shutdown(wait=True, cancel_futures=True)

    def _is_slow_full(self) -> bool:
        return sum(tenant_round.is_slow for tenant_round in self._running.values()) >= MAX_SLOW

    def _shared(
        self, starting: Mapping[str, Sequence[Rule]], *, now: datetime
    ) -> Mapping[str, SharedGroups]:
        """Return what is read of many tenants at once: of slow ones, nothing."""
        quick = [
            rule
            for tenant_id, rules in starting.items()
            if tenant_id not in self._slow
            for rule in rules
        ]
        try:
            return self._evaluator.read_shared(quick, now=now)
        except DatabaseUnavailableError:  # each is evaluated alone
            return {}
        except Exception:
            logger.exception("rules of several tenants were not read at once")
            return {}

    def _evaluate(
        self,
        tenant_id: str,
        rules: Sequence[Rule],
        shared: Mapping[str, SharedGroups],
        now: datetime,
    ) -> None:
        started = self._evaluator.seconds()
        try:
            if self._evaluator.evaluate(rules, now=now, shared=shared).notifications:
                self._on_notifications()
        except DatabaseUnavailableError as error:
            logger.debug("the rules of tenant %s come later: %s", tenant_id, error.message)
        except Exception:
            logger.exception("the rules of tenant %s were not evaluated; retrying", tenant_id)
        finally:
            is_slow = self._evaluator.seconds() - started > self._tick_seconds
            with self._lock:
                (self._slow.add if is_slow else self._slow.discard)(tenant_id)
                del self._running[tenant_id]

    def _count(self, rule_ids: Iterable[str], *, now: datetime) -> None:
        ids = list(rule_ids)
        if ids:
            with transaction(self._evaluator.sessions) as session:
                session.execute(
                    update(Rule)
                    .where(Rule.id.in_(ids))
                    .values(skipped_evaluations=Rule.skipped_evaluations + 1, skipped_at=now)
                )
