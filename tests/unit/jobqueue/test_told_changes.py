"""Whatever changes a version that somebody may wait for is told: polling is rare with a broker."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.changes import ANY, Topic
from core.db import SessionFactory, changes_of
from jobqueue.dispatch.appliance_lifecycle import move_overdue, start_drain
from jobqueue.logs.following import read_tails
from jobqueue.logs.log_files import SETTLED, LogFiles, move_logs
from jobqueue.logs.logs import delete_log
from jobqueue.models import Attempt, Job
from jobqueue.queue.resubmission import set_priority
from jobqueue.queue.stopping import stop_all, stop_job
from protocol.attempts import ObservedState
from protocol.gangs import NetworkAbilities
from protocol.inventory import Inventory
from tenants.fleet.agents import fence_appliance, lift_fence, registry_revision
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance, label_appliances
from tenants.fleet.appliance_service import reinstate_appliance, retire_appliance, revoke_appliance
from tenants.fleet.heartbeats import record_heartbeat
from tenants.lifecycle.removal import set_tenant_state
from tenants.models import Appliance, TenantState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, append_log, dispatch, report, start, submit

Versions = dict[tuple[Topic, str], Hashable]


class Witness:
    """Compares what changes in the database with what is told of it."""

    def __init__(self, sessions: SessionFactory, cast: Cast) -> None:
        self.sessions = sessions
        self.cast = cast
        self.told: defaultdict[Topic, set[str]] = defaultdict(set)
        for topic in Topic:
            changes_of(sessions).listen(topic, self.told[topic].update)

    @contextmanager
    def changing(self, *topics: Topic) -> Iterator[Session]:
        """Check that all changes of the block are told, and that they are of these topics."""
        before = self._versions()
        for idents in self.told.values():
            idents.clear()
        with self.sessions.begin() as session:
            yield session
        after = self._versions()
        changed = {key for key in before | after if before.get(key) != after.get(key)}
        missing = {
            (topic, ident) for topic, ident in changed if not {ident, ANY} & self.told[topic]
        }
        assert not missing
        assert {topic for topic, idents in self.told.items() if idents} == set(topics)

    def _versions(self) -> Versions:
        with self.sessions() as session:
            generations = session.execute(select(Appliance.id, Appliance.desired_generation))
            versions: Versions = {
                (Topic.DESIRED, ident): generation for ident, generation in generations
            }
            tails = read_tails(session, session.scalars(select(Job.id)).all(), {})
            versions |= {(Topic.JOB, ident): tail.version for ident, tail in tails.items()}
            return versions | {(Topic.REGISTRY, ANY): registry_revision(session)}


@pytest.fixture
def witness(sessions: SessionFactory, cast: Cast) -> Witness:
    return Witness(sessions, cast)


@pytest.fixture
def attempt(witness: Witness) -> Attempt:
    with witness.sessions.begin() as session:
        return start(session, witness.cast, gpus=2)


def test_from_submission_to_the_end(witness: Witness) -> None:
    with witness.sessions.begin() as session:
        add_appliance(session, witness.cast.acme, "dgx-01")
    with witness.changing(Topic.JOB, Topic.PLACEMENT) as session:
        job = submit(session, witness.cast.alice, gpus=2)
    with witness.changing(Topic.JOB, Topic.DESIRED) as session:
        dispatch(session, now=NOON)
    with witness.sessions() as session:
        [attempt] = session.get_one(Job, job.id).attempts
    with witness.changing(Topic.JOB) as session:
        report(session, session.get_one(Attempt, attempt.id), ObservedState.RUNNING)
    with witness.changing(Topic.JOB) as session:
        append_log(session, session.get_one(Attempt, attempt.id), b"line\n")
    with witness.changing(Topic.JOB, Topic.DESIRED) as session:
        stop_job(session, scope_of(witness.cast.alice), job.id, now=NOON)
    with witness.changing(Topic.JOB, Topic.DESIRED, Topic.PLACEMENT) as session:
        row = session.get_one(Attempt, attempt.id)
        report(session, row, ObservedState.SUCCEEDED, exit_code=0)


def test_a_log_that_is_moved_or_deleted(witness: Witness, attempt: Attempt, tmp_path: Path) -> None:
    with witness.sessions.begin() as session:
        row = session.get_one(Attempt, attempt.id)
        append_log(session, row, b"line\n")
        report(session, row, ObservedState.SUCCEEDED, exit_code=0)
    now = NOON + 10 * SETTLED
    with witness.changing(Topic.JOB):
        files = LogFiles(str(tmp_path))
        assert move_logs(witness.sessions, files, now=now) == 1
    with witness.changing(Topic.JOB) as session:
        delete_log(session, attempt.id)


def test_bulk_changes_of_jobs(witness: Witness) -> None:
    with witness.sessions.begin() as session:
        add_appliance(session, witness.cast.acme, "dgx-01")
        jobs = [submit(session, witness.cast.alice, gpus=8) for _ in range(3)]
    with witness.sessions.begin() as session:
        dispatch(session, now=NOON)
    with witness.changing(Topic.JOB) as session:
        set_priority(session, scope_of(witness.cast.alice), jobs[2].id, -5, now=NOON)
    with witness.changing(Topic.JOB, Topic.DESIRED, Topic.PLACEMENT) as session:
        assert stop_all(session, scope_of(witness.cast.alice), [Job.gpus == 8], now=NOON) == 3


def test_an_overdue_drain(witness: Witness, attempt: Attempt) -> None:
    with witness.sessions.begin() as session:
        scope = scope_of(witness.cast.alice)
        start_drain(session, scope, attempt.appliance_id, wait=timedelta(0), now=NOON)
    with witness.changing(Topic.JOB, Topic.DESIRED) as session:
        assert move_overdue(session, now=NOON.replace(hour=13)) == 1


def _retire(session: Session, cast: Cast, ident: str) -> None:
    retire_appliance(session, scope_of(cast.alice), ident, running_jobs=[], now=NOON)


def _retire_and_reinstate(session: Session, cast: Cast, ident: str) -> None:
    _retire(session, cast, ident)
    reinstate_appliance(session, scope_of(cast.alice), ident, now=NOON)


def _revoke(session: Session, cast: Cast, ident: str) -> None:
    revoke_appliance(session, scope_of(cast.alice), ident, now=NOON)


def _fence(session: Session, _cast: Cast, ident: str) -> None:
    fence_appliance(session, session.get_one(Appliance, ident), reason="a test.", now=NOON)


def _suspend(session: Session, cast: Cast, _ident: str) -> None:
    scope = scope_of(cast.olivia)
    set_tenant_state(session, scope, cast.acme.id, TenantState.SUSPENDED, now=NOON)


@pytest.mark.parametrize("act", [_retire, _retire_and_reinstate, _revoke, _fence, _suspend])
def test_who_may_authenticate(witness: Witness, act: Callable[[Session, Cast, str], None]) -> None:
    with witness.sessions.begin() as session:
        appliance, _neighbor = (
            add_appliance(session, witness.cast.acme, name) for name in ("dgx-01", "dgx-02")
        )
    with witness.changing(Topic.REGISTRY, Topic.DESIRED) as session:
        act(session, witness.cast, appliance.id)


def test_facts_that_orders_follow_from(witness: Witness) -> None:
    with witness.sessions.begin() as session:
        appliance = add_appliance(session, witness.cast.acme, "dgx-01")
        neighbor = add_appliance(session, witness.cast.acme, "dgx-02")
        appliance.site = neighbor.site = "berlin"
        fence_appliance(session, neighbor, reason="a test.", now=NOON)
    scope = scope_of(witness.cast.alice)
    with witness.changing(Topic.DESIRED) as session:
        lift_fence(session, scope, neighbor.id, now=NOON)
    with witness.changing(Topic.DESIRED) as session:
        change_appliance(session, scope, appliance.id, ApplianceChanges(site="bonn"), now=NOON)
    with witness.changing(Topic.DESIRED) as session:
        label_appliances(session, scope, [appliance.id], added={"rack": "b12"}, now=NOON)
    beat = partial(
        record_heartbeat, appliance_id=appliance.id, agent_version="1", sent_at=NOON, now=NOON
    )
    network = NetworkAbilities(address="192.0.2.7")
    with witness.changing(Topic.DESIRED) as session:
        beat(session, inventory=Inventory(hostname="dgx-01", network=network))
    with witness.changing() as session:
        beat(session, inventory=Inventory(hostname="dgx-01", network=network))
