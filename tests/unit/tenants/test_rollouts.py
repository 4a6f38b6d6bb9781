"""Rollouts: stages by site, results from heartbeats, failures that pause, and what is refused."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError
from protocol.agent_update import UpdateOrder, UpdateReport, UpdateResult
from protocol.health import ApplianceHealth, HealthState
from tenants.fleet.events import EventKind, list_events
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.rollout_progress import (
    MAX_CONCURRENT,
    UPDATE_TIMEOUT,
    advance_rollouts,
    answer_update,
)
from tenants.fleet.rollouts import (
    NO_UPDATE_SERVICE,
    AgentPackages,
    RolloutRequest,
    cancel_rollout,
    pause_rollout,
    resume_rollout,
    start_rollout,
    version_counts,
)
from tenants.models import (
    AgentRollout,
    Appliance,
    ApplianceState,
    ApplianceUpdate,
    ApplianceUpdateState,
    RolloutState,
)
from tests.cast import NOON, Cast, make_appliance, scope_of

OLD, NEW = "1.0.0", "1.1.0"
PACKAGES = AgentPackages(NEW, "a" * 64)
SUCCEEDED, FAILED = UpdateResult.SUCCEEDED, UpdateResult.FAILED


class Fleet:
    """Acme's appliances, whose agents send heartbeats by hand; each step is ten seconds later."""

    def __init__(self, session: Session, cast: Cast) -> None:
        self.session, self.cast, self.now = session, cast, NOON
        self.appliances: list[Appliance] = []

    def add(self, count: int, *, site: str = "", can_update: bool = True) -> list[Appliance]:
        """Add online appliances with the old version."""
        added = []
        for _ in range(count):
            name = f"gpu-{len(self.appliances):02}"
            appliance = make_appliance(self.session, self.cast.acme, name)
            appliance.site, appliance.agent_version = site, OLD
            appliance.can_update = can_update
            self.appliances.append(appliance)
            added.append(appliance)
        self.session.flush()
        return added

    def start(self, **request: object) -> AgentRollout:
        """Start a rollout as acme's admin."""
        return start_rollout(
            self.session,
            scope_of(self.cast.alice),
            RolloutRequest(**request),  # type: ignore[arg-type] # of the test
            packages=PACKAGES,
            now=self.now,
        )

    def advance(self, seconds: float = 10) -> None:
        """Let the scheduler run after a time."""
        self.now += timedelta(seconds=seconds)
        advance_rollouts(self.session, now=self.now)
        self.session.flush()
        self.session.expire_all()

    def beat(
        self,
        appliance: Appliance,
        result: UpdateResult | None = None,
        *,
        version: str = OLD,
        message: str = "",
    ) -> UpdateOrder | None:
        """Send a heartbeat, with this result of the ordered update; return the order."""
        update_id = record_heartbeat(
            self.session,
            appliance.id,
            inventory=None,
            agent_version=version,
            sent_at=self.now,
            can_update=True,
            now=self.now,
        )
        if update_id is None:
            return None
        report = (
            UpdateReport(update_id=update_id, result=result, message=message) if result else None
        )
        order = answer_update(self.session, update_id, report, version=version, now=self.now)
        self.session.flush()
        self.session.expire_all()
        return order

    def succeed(self) -> None:
        """Let all updates that were ordered succeed."""
        for appliance in self.appliances:
            if appliance.update_id is not None:
                self.beat(appliance, SUCCEEDED, version=NEW)

    def ordered(self) -> list[Appliance]:
        """Return the appliances that have an order now."""
        return [appliance for appliance in self.appliances if appliance.update_id is not None]

    def states(self) -> Counter[str]:
        """Return how many appliances are in each state."""
        return Counter(
            update.state.value for update in self.session.scalars(select(ApplianceUpdate))
        )


@pytest.fixture
def fleet(session: Session, cast: Cast) -> Fleet:
    return Fleet(session, cast)


def test_stages_take_a_share_of_each_site_and_wait_until_it_has_stayed_healthy(
    fleet: Fleet,
) -> None:
    fleet.add(10, site="oslo")
    fleet.add(3, site="bergen")
    rollout = fleet.start(stage_percents=[10, 50, 100], soak_seconds=60)
    assert fleet.ordered() == []

    fleet.advance()
    assert Counter(appliance.site for appliance in fleet.ordered()) == {"oslo": 1, "bergen": 1}
    order = fleet.beat(fleet.ordered()[0])
    assert order is not None
    assert (order.version, order.requirements_sha256) == (NEW, PACKAGES.requirements_sha256)
    fleet.succeed()
    fleet.advance()
    fleet.advance(50)
    assert fleet.ordered() == []
    assert rollout.soaking_since is not None
    fleet.advance()
    assert Counter(appliance.site for appliance in fleet.ordered()) == {"oslo": 4, "bergen": 1}
    assert rollout.stage == 1
    fleet.succeed()
    fleet.advance()
    fleet.advance(60)
    assert Counter(appliance.site for appliance in fleet.ordered()) == {"oslo": 5, "bergen": 1}
    fleet.succeed()
    fleet.advance()
    fleet.advance(60)

    assert fleet.states() == {"updated": 13}
    assert (rollout.state, rollout.ended_at) == (RolloutState.COMPLETED, fleet.now)
    assert [tuple(row) for row in version_counts(fleet.session, scope_of(fleet.cast.alice))] == [
        (NEW, 13, 13)
    ]


def test_a_failure_pauses_the_rollout_until_it_is_resumed(fleet: Fleet) -> None:
    fleet.add(4)
    rollout = fleet.start(stage_percents=[50, 100], soak_seconds=0)
    fleet.advance()
    broken, fine = fleet.ordered()
    reason = "Version 1.1.0 sent no samples for 60 seconds, so the old one runs again."
    fleet.beat(broken, FAILED, message=reason)
    fleet.beat(fine, SUCCEEDED, version=NEW)
    fleet.advance()

    assert rollout.state is RolloutState.PAUSED
    assert rollout.reason == "1 update failed, and the rollout accepts 0."
    events = list_events(fleet.session, scope_of(fleet.cast.alice), broken.id)
    assert [event.message for event in events.items if event.kind == EventKind.AGENT] == [
        f"The update of the agent failed: {reason}"
    ]
    fleet.advance(3600)
    assert fleet.states() == {"failed": 1, "updated": 1, "waiting": 2}

    resume_rollout(fleet.session, scope_of(fleet.cast.alice), rollout.id)
    fleet.advance()
    fleet.succeed()
    fleet.advance()
    assert (rollout.state, rollout.reason) == (RolloutState.COMPLETED, "")
    assert fleet.states() == {"failed": 1, "updated": 3}


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda appliance: setattr(appliance, "state", ApplianceState.UNREACHABLE),
            "It became unreachable after the update.",
        ),
        (
            lambda appliance: setattr(appliance, "health_state", HealthState.FAILED),
            "Its health was healthy, and is failed since the update.",
        ),
    ],
)
def test_what_goes_silent_or_unhealthy_after_its_update_has_failed(
    fleet: Fleet, harm: Callable[[Appliance], None], message: str
) -> None:
    for appliance in fleet.add(2):
        appliance.health_state = HealthState.HEALTHY
    fleet.session.flush()
    rollout = fleet.start(stage_percents=[50, 100], soak_seconds=600)
    fleet.advance()
    (first,) = fleet.ordered()
    record_heartbeat(
        fleet.session,
        first.id,
        inventory=None,
        agent_version=OLD,
        sent_at=fleet.now,
        health=ApplianceHealth(state=HealthState.HEALTHY),
        now=fleet.now,
    )
    update_id = first.update_id
    assert update_id is not None
    report = UpdateReport(update_id=update_id, result=SUCCEEDED)
    answer_update(fleet.session, update_id, report, version=NEW, now=fleet.now)
    harm(first)
    fleet.session.flush()
    fleet.advance()

    assert rollout.state is RolloutState.PAUSED
    failed = fleet.session.get_one(ApplianceUpdate, update_id)
    assert (failed.state, failed.message) == (ApplianceUpdateState.FAILED, message)


def test_an_update_without_a_result_fails_after_a_while(fleet: Fleet) -> None:
    (appliance,) = fleet.add(1)
    fleet.start()
    fleet.advance()
    fleet.beat(appliance, UpdateResult.INSTALLING)
    fleet.advance(UPDATE_TIMEOUT.total_seconds() + 1)

    assert fleet.states() == {"failed": 1}
    assert fleet.beat(appliance) is None


def test_success_with_another_version_is_a_failure(fleet: Fleet) -> None:
    (appliance,) = fleet.add(1)
    fleet.start()
    fleet.advance()
    fleet.beat(appliance, SUCCEEDED, version=OLD)

    update = fleet.session.scalars(select(ApplianceUpdate)).one()
    assert update.message == "The update service reports success, but the agent is Vedette 1.0.0."


def test_what_cannot_be_updated_is_skipped_with_the_reason(fleet: Fleet) -> None:
    by_hand, silent, otherwise = fleet.add(1, can_update=False) + fleet.add(2)
    rollout = fleet.start(stage_percents=[100])
    silent.state, otherwise.agent_version = ApplianceState.LOST, NEW
    fleet.session.flush()
    fleet.advance()

    messages = {
        update.appliance_id: update.message
        for update in fleet.session.scalars(select(ApplianceUpdate))
    }
    assert messages == {
        by_hand.id: NO_UPDATE_SERVICE,
        silent.id: "It was not online when its turn came.",
        otherwise.id: "It was updated otherwise.",
    }
    assert rollout.state is RolloutState.COMPLETED


def test_only_so_many_download_at_once(fleet: Fleet) -> None:
    fleet.add(MAX_CONCURRENT + 5)
    fleet.start(stage_percents=[100])
    fleet.advance()
    assert len(fleet.ordered()) == MAX_CONCURRENT
    fleet.beat(fleet.ordered()[0], SUCCEEDED, version=NEW)
    fleet.advance()
    assert len(fleet.ordered()) == MAX_CONCURRENT


def test_a_canceled_rollout_lets_started_updates_end(fleet: Fleet) -> None:
    fleet.add(2)
    rollout = fleet.start(stage_percents=[50, 100], soak_seconds=0)
    fleet.advance()
    scope = scope_of(fleet.cast.alice)
    pause_rollout(fleet.session, scope, rollout.id)
    cancel_rollout(fleet.session, scope, rollout.id, now=fleet.now)
    fleet.session.expire_all()
    fleet.succeed()
    fleet.advance()

    assert fleet.states() == {"updated": 1, "skipped": 1}
    for change in (pause_rollout, resume_rollout):
        with pytest.raises(ConflictError, match="canceled"):
            change(fleet.session, scope, rollout.id)


def test_hosts_without_an_agent_are_left_out(fleet: Fleet) -> None:
    host, appliance = fleet.add(2)
    host.state, host.agent_version = ApplianceState.REPORTING, ""
    fleet.session.flush()
    scope = scope_of(fleet.cast.alice)
    assert [row.version for row in version_counts(fleet.session, scope)] == [OLD]
    fleet.start()
    assert fleet.states() == {"waiting": 1}
    appliance.agent_version = NEW
    fleet.session.execute(delete(AgentRollout))
    with pytest.raises(ConflictError, match="already"):
        fleet.start()


def test_another_rollout_ends_the_updates_of_a_canceled_one(fleet: Fleet) -> None:
    (appliance,) = fleet.add(1)
    canceled = fleet.start(stage_percents=[100], soak_seconds=0)
    fleet.advance()
    earlier = fleet.beat(appliance)
    cancel_rollout(fleet.session, scope_of(fleet.cast.alice), canceled.id, now=fleet.now)
    fleet.start(stage_percents=[100], soak_seconds=0)
    fleet.advance()
    later = fleet.beat(appliance)
    assert earlier is not None
    assert later is not None
    assert earlier.update_id != later.update_id
    fleet.succeed()
    assert fleet.states() == {"failed": 1, "updated": 1}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"stage_percents": []}, "stage_percents"),
        ({"stage_percents": [50, 10, 100]}, "stage_percents"),
        ({"stage_percents": [10, 50]}, "stage_percents"),
        ({"stage_percents": [0, 100]}, "stage_percents"),
        ({"stage_percents": [*range(1, 15), 100]}, "stage_percents"),
        ({"soak_seconds": -1}, "soak_seconds"),
        ({"max_failures": -1}, "max_failures"),
    ],
)
def test_an_invalid_request_is_refused_by_field(
    fleet: Fleet, request_: dict[str, object], field: str
) -> None:
    fleet.add(1)
    with pytest.raises(InvalidInputError) as refused:
        fleet.start(**request_)
    assert list(refused.value.errors) == [field]


def test_a_rollout_needs_packages_something_to_update_and_no_other_rollout(fleet: Fleet) -> None:
    session, scope = fleet.session, scope_of(fleet.cast.alice)
    with pytest.raises(ConflictError, match=r"All agents are Vedette 1\.1\.0 already"):
        fleet.start()
    fleet.add(1, site="oslo")
    with pytest.raises(ConflictError, match="All agents of these sites"):
        fleet.start(sites=["bergen"])
    with pytest.raises(ConflictError, match="vedette wheelhouse build"):
        start_rollout(session, scope, RolloutRequest(), packages=None, now=NOON)
    with pytest.raises(ForbiddenError):
        start_rollout(
            session, scope_of(fleet.cast.bob), RolloutRequest(), packages=PACKAGES, now=NOON
        )
    fleet.start()
    with pytest.raises(ConflictError, match=r"A rollout of 1\.1\.0 is running"):
        fleet.start()
