"""A service that scales has its fewest instances once it reached its highest cost."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from core.errors import ConflictError
from core.ids import new_id
from jobqueue.jobs.requests import autoscaling_errors
from protocol.autoscaling import Autoscaling, format_autoscaling, parse_autoscaling
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.jobqueue.scaled_service import POLICY, Service, make
from tests.unit.marketplace.conftest import MakeTasks
from tests.unit.marketplace.cost_builders import add_line

__all__ = ["make"]


@pytest.mark.parametrize(("period", "days"), [("day", 1), ("month", 31)])
def test_a_service_at_its_highest_cost_shrinks_and_sleeps_until_the_next_period(
    *,
    make: Callable[..., Service],
    make_tasks: MakeTasks,
    cast: Cast,
    clock: FrozenClock,
    tmp_path: Path,
    period: str,
    days: int,
) -> None:
    service = make(replace(POLICY, max_cost=50, cost_period=period))
    tasks = make_tasks(data_dir=tmp_path)
    service.tick(15, count=4)
    assert service.states.count("running") == 2
    with service.sessions.begin() as session:
        add_line(session, cast.acme, "49", job_id=service.id)
        add_line(session, cast.acme, "900", job_id=new_id())
        add_line(session, cast.acme, "900", at=NOON - timedelta(days=31), job_id=service.id)
    clock.advance(120)
    tasks.watch_service_costs()
    service.tick(25, count=4)
    assert service.states.count("running") == 3
    # The two minutes of its instances at no price cost nothing.
    with service.sessions.begin() as session:
        add_line(session, cast.acme, "1", job_id=service.id)
    tasks.watch_service_costs()
    service.tick(25, count=2)
    assert set(service.states) == {"asleep"}
    reason = f"its highest cost, EUR 50.00 a {period}, is reached"
    assert any(reason in event for event in service.events)
    with pytest.raises(ConflictError, match="stays asleep: its highest cost"):
        service.wake()
    clock.advance(days * 86_400)
    tasks.watch_service_costs()
    assert service.wake()


def test_a_highest_cost_is_written_and_checked() -> None:
    policy = parse_autoscaling("1-8; requests_per_second=20; cost=12.5/month")
    assert (policy.max_cost, policy.cost_period) == (12.5, "month")
    assert parse_autoscaling(format_autoscaling(policy)) == policy
    with pytest.raises(ValueError, match="enter one such as 50/day"):
        parse_autoscaling("1-8; cost=50/week")
    for wrong in ({"max_cost": float("nan")}, {"max_cost": -1}, {"cost_period": "week"}):
        policy = Autoscaling(**wrong)
        assert list(autoscaling_errors(policy, has_ports=True, has_gpus=True))
