"""Changes by agents are logged under their names."""

from datetime import timedelta

from sqlalchemy import select

from core.db import SessionFactory
from tenants.enrollment import create_enrollment_token
from tenants.models import Appliance, AuditEntry
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.access.conftest import AgentAPI


def test_an_enrollment_is_logged_with_the_agents_name_and_address(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, token = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=timedelta(hours=1), now=clock.now
        )
    body = {"token": token, "name": "gpu-07", "inventory": {"hostname": "gpu-07"}}
    reply = api.request("POST", "/agent/v1/enroll", json=body).json()
    with sessions() as session:
        entry = session.scalars(select(AuditEntry).filter_by(action="appliance.enrolled")).one()
        assert session.get_one(Appliance, entry.target_id).name == entry.target_name == "gpu-07"
    assert (entry.actor_name, entry.via) == ("agent gpu-07", "agent API")
    assert (entry.address, entry.chain) == ("127.0.0.1", cast.acme.id)
    assert entry.at == clock.now
    assert reply["agent_token"] not in f"{entry.before}{entry.after}"
