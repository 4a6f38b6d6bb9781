"""Dispatch: apply the decisions of `jobqueue.placement` to the waiting jobs of every tenant.

A *pass* goes over one tenant's queue from its front to its end, on one snapshot, in *turns*: a turn
reads and decides for a bounded time without any lock, and writes a bounded number of decisions in
one transaction. Tenants take turns, so a long queue delays nobody else. Users and appliances change
jobs concurrently: a decision that comes too late is dropped, and the next pass makes a new one. If
another process placed jobs of the tenant meanwhile, the whole turn is dropped. Jobs of several
tenants run on a rented appliance: if another tenant's job came there since the snapshot, or the
appliance is no longer rented as it was, the decisions for it are dropped. So no GPU is allocated
twice, and no tenant's queue holds up those of others.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import msgspec
from sqlalchemy import Table, delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from jobqueue.dispatch.appliance_views import models_of
from jobqueue.dispatch.snapshot import (
    cached_copies,
    guaranteed_first,
    in_given_order,
    queue_order,
    read_snapshot,
    staging_caches,
)
from jobqueue.dispatch.usable_appliances import newly_occupied, no_longer_rented, occupants_of
from jobqueue.dispatch.waiting_jobs import WaitingJob, read_waiting
from jobqueue.fairshare.points import QueueOrder
from jobqueue.gangs.members import note_assigned
from jobqueue.jobs.preemptions import preemption_of, why_text
from jobqueue.jobs.relations import resolve_dependencies
from jobqueue.jobs.transitions import change_attempt, lock_jobs, move_locked, record_event, shorten
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.placement.decisions import Action, Decision, Rule
from jobqueue.placement.gangs import decide_all
from jobqueue.placement.plan import Planner
from jobqueue.placement.rentals import RentalView
from jobqueue.states import ALLOCATED_STATES, WAITING, AttemptState, JobState, Reason
from protocol.job_spec import OnMemberLoss
from tenants.fleet.appliances import bump_generations, mark_placed, open_appliances
from tenants.models import Tenant

# Decisions that one transaction writes, and the time that one turn decides for.
MAX_WRITTEN = 500
TURN_SECONDS = 0.5
# A pass ends this long after its first write: the next one sees what was freed meanwhile. It is
# longer if reading the snapshot took so long that passes would do little else.
PASS_SECONDS = 5.0
PASS_PER_SNAPSHOT = 5.0
# Those in the middle of a long queue share this time of a cycle.
CYCLE_SECONDS = 2.0
# Jobs at the front of the queue, whose messages follow what changes.
MAX_FOLLOWED = 100
# Jobs that are read at once.
_PAGE = 1000
# A job's message gives this many reasons why it waits.
_MAX_LISTED = 3

Row = dict[str, Any]
Transactions = Callable[[], AbstractContextManager[Session]]


class Dispatcher:
    """Places the waiting jobs of all tenants, a cycle at a time."""

    def __init__(
        self, transactions: Transactions, *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._transactions = transactions
        self._timer = timer
        self._passes: dict[str, _Pass | None] = {}
        self._cycles = 0

    @property
    def is_behind(self) -> bool:
        """Return whether a queue was not placed to its end yet."""
        return bool(self._passes)

    def cycle(self, *, now: datetime) -> Counter[Action]:
        """Give the tenants with waiting jobs a turn; return the number of decisions by action.

        Those in the middle of a long queue come last. Of the others, another one is the first each
        time: it gets what is free of appliances that several of them use.
        """
        began = self._timer()
        with self._transactions() as session:
            waits = exists().where(Job.tenant_id == Tenant.id, Job.state.in_(WAITING))
            waiting = session.scalars(select(Tenant.id).where(waits).order_by(Tenant.id)).all()
        self._passes = {
            ident: queue_pass for ident, queue_pass in self._passes.items() if ident in waiting
        }
        done: Counter[Action] = Counter()
        going_on = list(self._passes)
        others = deque(ident for ident in waiting if ident not in self._passes)
        others.rotate(-self._cycles)
        self._cycles += 1
        for tenant_id in others:
            done += self._turn(tenant_id, now=now)
        for tenant_id in going_on:
            if self._timer() - began > CYCLE_SECONDS:
                break
            done += self._turn(tenant_id, now=now)
        return done

    def _turn(self, tenant_id: str, *, now: datetime) -> Counter[Action]:
        # It goes to the end of those that go on, or is dropped on an error.
        current = self._passes.pop(tenant_id, None) or self._begin(tenant_id, now)
        with self._transactions() as session:
            decisions = current.decide(session, self._timer)
        done: Counter[Action] = Counter()
        if decisions:
            with self._transactions() as session:
                written = current.write(session, decisions)
            if written is None:
                return done
            done = written
            current.ends_at = current.ends_at or self._timer() + current.seconds
        is_over = current.ends_at is not None and self._timer() > current.ends_at
        if not current.is_done:
            self._passes[tenant_id] = None if is_over else current
        return done

    def _begin(self, tenant_id: str, now: datetime) -> "_Pass":
        began = self._timer()
        with self._transactions() as session:
            generation = lock_tenant(session, tenant_id)
            resolve_dependencies(session, tenant_id, now=now)
        with self._transactions() as session:
            planner = Planner(read_snapshot(session, tenant_id, now=now))
            order = queue_order(session, tenant_id, planner.snapshot)
            order = replace(order, ids=guaranteed_first(session, tenant_id, planner, order))
        seconds = max(PASS_SECONDS, PASS_PER_SNAPSHOT * (self._timer() - began))
        return _Pass(tenant_id, planner, order, generation=generation, seconds=seconds)


def lock_tenant(session: Session, tenant_id: str) -> int:
    """Lock a tenant against dispatchers until the transaction ends; plans made before are void.

    Returns:
        The tenant's placement generation.
    """
    raised = update(Tenant).where(Tenant.id == tenant_id)
    session.execute(
        raised.values(placement_generation=Tenant.placement_generation + 1),
        execution_options={"synchronize_session": False},
    )
    current = select(Tenant.placement_generation).where(Tenant.id == tenant_id)
    return session.scalars(current).one()


class _Pass:
    """One tenant's queue from its front to its end, on one snapshot."""

    def __init__(
        self,
        tenant_id: str,
        planner: Planner,
        order: QueueOrder,
        *,
        generation: int,
        seconds: float,
    ) -> None:
        self.tenant_id = tenant_id
        self.seconds = seconds
        self.ends_at: float | None = None
        self._planner = planner
        self._models = models_of(planner.snapshot.appliances)
        self._occupants = occupants_of(planner.snapshot.appliances)
        self._generation = generation
        self._ids = deque(order.ids)
        self._points = order.points
        self._page: deque[WaitingJob] = deque()
        self._followed = 0

    @property
    def is_done(self) -> bool:
        """Return whether it decided for every job."""
        return not self._ids and not self._page

    def decide(
        self, session: Session, timer: Callable[[], float]
    ) -> list[tuple[WaitingJob, Decision]]:
        """Decide for the next jobs; return the decisions to write, which may be none."""
        until = timer() + TURN_SECONDS
        decisions: list[tuple[WaitingJob, Decision]] = []
        while len(decisions) < MAX_WRITTEN and not self.is_done:
            if not self._page:
                self._read(session)
                continue
            job = self._page.popleft()
            decided = zip(job.members or [job], decide_all(self._planner, job.view), strict=True)
            decisions += [pair for pair in decided if self._is_written(*pair)]
            if timer() > until:
                break
        return decisions

    def write(
        self, session: Session, decisions: Sequence[tuple[WaitingJob, Decision]]
    ) -> Counter[Action] | None:
        """Write decisions; return their number by action, or None if the pass is void."""
        claim = update(Tenant).where(
            Tenant.id == self.tenant_id, Tenant.placement_generation == self._generation
        )
        self._generation += 1
        claim = claim.values(placement_generation=self._generation)
        if not changed_one(session, claim, synchronize_session=False):
            return None
        now = self._planner.snapshot.now
        writer = _Writer(session, self.tenant_id, decisions, self._occupants, now=now)
        done = Counter(writer.add(job, decision) for job, decision in decisions)
        writer.write()
        return done

    def _read(self, session: Session) -> None:
        ids = [self._ids.popleft() for _ in range(min(_PAGE, len(self._ids)))]
        now = self._planner.snapshot.now
        jobs = read_waiting(
            session, self.tenant_id, ids, self._models, now=now, points=self._points
        )
        views = [job.view for job in jobs]
        data = self._planner.data
        data.add(cached_copies(session, self.tenant_id, views, but=data))
        if not data.has_caches and any(view.datasets for view in views):
            data.set_caches(staging_caches(session, self.tenant_id))
        self._page.extend(in_given_order(ids, jobs))

    def _is_written(self, job: WaitingJob, decision: Decision) -> bool:
        """Return whether a decision changes the job, or may change the message of a front one."""
        if decision.action in {Action.ASSIGN, Action.BIND} or decision.victims:
            return True
        self._followed += 1
        is_new = decision.action is not Action.STAY and (
            job.reason is not _REASONS[decision.action] or job.attempt_id is not None
        )
        return is_new or self._followed <= MAX_FOLLOWED


_REASONS = {
    Action.HELD: Reason.WAITING_FOR_CAP,
    Action.UNPLACED: Reason.WAITING_FOR_APPLIANCE,
    Action.WAIT: Reason.WAITING_FOR_RESOURCES,
}


class _Writer:
    """Collects the rows of one tenant's decisions, and writes them."""

    def __init__(
        self,
        session: Session,
        tenant_id: str,
        decisions: Sequence[tuple[WaitingJob, Decision]],
        occupants: Mapping[str, frozenset[str]],
        *,
        now: datetime,
    ) -> None:
        self._session = session
        self._tenant_id = tenant_id
        self._now = now
        ids = [job.id for job, _ in decisions]
        self._waiting = lock_jobs(session, ids, expected=WAITING)
        assigned = {
            decision.appliance_id or "": decision.rental
            for _, decision in decisions
            if decision.action is Action.ASSIGN
        }
        trials = {decision.appliance_id or "" for _, decision in decisions if decision.is_trial}
        self._open = open_appliances(session, assigned, trials=trials)
        # They are locked: nobody else places a job there before this transaction ends.
        self._open -= newly_occupied(session, tenant_id, self._open, occupants)
        self._open -= no_longer_rented(session, tenant_id, assigned)
        placed = {Action.ASSIGN, Action.BIND}
        new = [
            job.id
            for job, decision in decisions
            if decision.action in placed and not job.attempt_id
        ]
        self._numbers = self._last_numbers(new)
        # A gang starts as a whole, or not at all.
        self._broken_gangs = {
            job.view.array_id
            for job, decision in decisions
            if job.view.nodes > 1 and not self._can_apply(job, decision)
        }
        self._jobs: list[Row] = []
        self._new_attempts: list[Row] = []
        self._attempts: list[Row] = []
        self._unbound: list[str] = []
        self._events: list[Row] = []
        self._changed_appliances: set[str] = set()
        self._placed: set[str] = set()
        self._assigned_members: list[str] = []

    def add(self, job: WaitingJob, decision: Decision) -> Action:
        """Add one decision; return the resulting action."""
        if not self._can_apply(job, decision) or (
            decision.policy == Rule.GANG and job.view.array_id in self._broken_gangs
        ):
            return Action.STAY
        self._preempt(decision, job)
        if decision.action is Action.STAY:
            self._stay(job, decision)
        elif decision.action is Action.ASSIGN:
            self._move(job, JobState.STARTING, Reason.NONE, decision.reason)
            self._place(job, decision, AttemptState.STARTING, assigned_at=self._now)
        elif decision.action is Action.BIND:
            message = _waiting_message(decision)
            self._move(job, JobState.QUEUED, _bound_reason(decision), message)
            self._place(job, decision, AttemptState.BOUND, assigned_at=None)
        elif decision.action is Action.HELD:
            self._unplace(job, _REASONS[decision.action], decision.reason)
        else:
            self._unplace(job, _REASONS[decision.action], _waiting_message(decision))
        return decision.action

    def _can_apply(self, job: WaitingJob, decision: Decision) -> bool:
        is_open = decision.action is not Action.ASSIGN or decision.appliance_id in self._open
        return is_open and job.id in self._waiting

    def write(self) -> None:
        """Write the rows, and let the agents fetch what they have to run."""
        session = self._session
        move_locked(session, Job, self._jobs)
        move_locked(session, Attempt, self._attempts)
        # No agent has seen a bound attempt, so it can be deleted.
        if self._unbound:
            bound = delete(Attempt).where(Attempt.id.in_(self._unbound))
            session.execute(bound, execution_options={"synchronize_session": False})
        if self._new_attempts:
            session.execute(insert(cast("Table", Attempt.__table__)), self._new_attempts)
        if self._events:
            session.execute(insert(cast("Table", JobEvent.__table__)), self._events)
        self._changed_appliances |= note_assigned(
            session, self._tenant_id, self._assigned_members, now=self._now
        )
        mark_placed(session, self._placed, now=self._now)
        bump_generations(session, self._changed_appliances)
        session.expire_all()

    def _move(
        self,
        job: WaitingJob,
        state: JobState,
        reason: Reason,
        message: str,
        *,
        has_event: bool = True,
    ) -> None:
        values = {"state": state, "reason": reason, "message": message}
        self._jobs.append({"id": job.id, **values})
        if has_event:
            event = {"job_id": job.id, "tenant_id": self._tenant_id, "at": self._now}
            self._events.append(event | values)

    def _place(
        self,
        job: WaitingJob,
        decision: Decision,
        state: AttemptState,
        *,
        assigned_at: datetime | None,
    ) -> None:
        values: Row = {
            "appliance_id": decision.appliance_id,
            "state": state,
            "gpu_uuids": list(decision.gpu_uuids),
            "gpu_slice": decision.gpu_slice and msgspec.to_builtins(decision.gpu_slice),
            "placement": {
                "policy": str(decision.policy),
                "reason": decision.reason,
                "rejections": msgspec.to_builtins(decision.rejections),
                **({"is_trial": True} if decision.is_trial else {}),
                **_data_facts(decision),
                **self._data_wait(job, decision),
                **_rental_facts(decision.rental),
            },
            "assigned_at": assigned_at,
            "is_on_cluster": decision.is_on_cluster,
            "contract_id": decision.rental and decision.rental.contract_id,
            "provider_id": decision.rental and decision.rental.provider_id,
        }
        self._placed.add(decision.appliance_id or "")
        if state is AttemptState.STARTING and job.view.nodes > 1:
            self._assigned_members.append(job.id)
        if state is AttemptState.STARTING or job.view.datasets:
            self._changed_appliances.add(decision.appliance_id or "")
        self._withdraw_data(job)
        if job.attempt_id:
            self._attempts.append({"id": job.attempt_id, **values})
            return
        self._new_attempts.append(
            {
                "job_id": job.id,
                "tenant_id": self._tenant_id,
                "number": self._numbers.get(job.id, 0) + 1,
                "bound_at": self._now,
                **values,
            }
        )

    def _stay(self, job: WaitingJob, decision: Decision) -> None:
        message = _waiting_message(decision)
        if message != job.message and job.attempt_id:
            self._move(job, JobState.QUEUED, _bound_reason(decision), message, has_event=False)

    def _unplace(self, job: WaitingJob, reason: Reason, message: str) -> None:
        is_new = job.reason is not reason or job.state is JobState.SUBMITTED
        if not is_new and message == job.message:
            return
        self._move(job, JobState.QUEUED, reason, message, has_event=is_new)
        if job.attempt_id:
            self._unbound.append(job.attempt_id)
            self._withdraw_data(job)

    def _withdraw_data(self, job: WaitingJob) -> None:
        """Let the appliance that a job is bound to learn that its data is no longer wanted."""
        if job.view.datasets and job.view.bound_to:
            self._changed_appliances.add(job.view.bound_to)

    def _data_wait(self, job: WaitingJob, decision: Decision) -> Row:
        """Return since when a bound job has waited for data, on whichever appliance."""
        since = job.view.data_wait_since or (self._now if decision.waits_for_data else None)
        is_bound = decision.action is Action.BIND
        return {"data_wait_since": since.isoformat()} if since and is_bound else {}

    def _preempt(self, decision: Decision, job: WaitingJob) -> None:
        """Stop the attempts of the jobs that must make room."""
        if not decision.victims:
            return
        is_victim = Job.id.in_(decision.victims)
        # A gang that can't go on without a member stops as a whole.
        stands_together = Job.nodes > 1, Job.on_member_loss != OnMemberLoss.CONTINUE
        gangs = select(Job.array_id).where(is_victim, *stands_together)
        stopping = select(Attempt).where(
            Attempt.job_id.in_(select(Job.id).where(or_(is_victim, Job.array_id.in_(gangs)))),
            Attempt.state.in_(ALLOCATED_STATES),
        )
        preemption = preemption_of(
            self._session.get_one(Job, job.id),
            is_reclaim=decision.policy == Rule.RECLAIM,
            guarantor=decision.guarantor,
        )
        for attempt in self._session.scalars(stopping).unique().all():
            if change_attempt(
                self._session,
                attempt,
                stop_reason=Reason.PREEMPTED,
                preemption=preemption,
                is_notice_due=bool(attempt.job.notify) and attempt.job.array_id is None,
            ):
                self._changed_appliances.add(attempt.appliance_id)
                message = f"Stopping {why_text(preemption)}."
                record_event(self._session, attempt.job, message=message, now=self._now)

    def _last_numbers(self, job_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of the last attempt of jobs that have any."""
        statement = (
            select(Attempt.job_id, func.max(Attempt.number))
            .where(Attempt.job_id.in_(job_ids))
            .group_by(Attempt.job_id)
        )
        return {row[0]: row[1] for row in self._session.execute(statement)} if job_ids else {}


def _bound_reason(decision: Decision) -> Reason:
    return Reason.WAITING_FOR_DATA if decision.waits_for_data else Reason.WAITING_FOR_RESOURCES


def _data_facts(decision: Decision) -> Row:
    if not decision.dataset_bytes:
        return {}
    return {"cached_bytes": decision.cached_bytes, "dataset_bytes": decision.dataset_bytes}


def _rental_facts(rental: RentalView | None) -> Row:
    """Return what an attempt stores of its rental: the contract may end, and prices change."""
    return {} if rental is None else {"offer": rental.offer_name, "price": str(rental.price)}


def _waiting_message(decision: Decision) -> str:
    if not decision.rejections:
        return f"{decision.reason} The tenant has no appliances. Enroll one."
    listed = [str(rejection) for rejection in decision.rejections[:_MAX_LISTED]]
    return shorten(f"{decision.reason} {'; '.join(listed)}.")
