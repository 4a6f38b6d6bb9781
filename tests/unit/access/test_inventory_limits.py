"""Inventories above the limits are rejected by field; the agent shows it and stays online."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from collector.buffering.buffer import DiskBuffer
from collector.heartbeats import Heartbeats
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from core.clock import to_ns
from core.db import SessionFactory
from protocol.enrollment import EnrollRequest
from protocol.health import MAX_GPU_HEALTHS, ApplianceHealth, GPUHealth, HealthState
from protocol.heartbeat import Heartbeat
from protocol.inventory import (
    MAX_DISKS,
    MAX_EXECUTORS,
    MAX_GPU_PATHS,
    MAX_GPUS,
    MAX_NICS,
    MAX_NVLINKS,
    MAX_REPORT_BYTES,
    MAX_TEXT_LENGTH,
    DiskInfo,
    GPUInfo,
    GPUPath,
    Inventory,
    NICInfo,
    NVLinkInfo,
)
from tenants.enrollment import create_enrollment_token
from tenants.models import Appliance, ApplianceState, EnrollmentToken
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.access.conftest import SECRET, AgentAPI
from tests.unit.tenants.helpers import DAY

UUID = "GPU-c0ffee00-0000-4000-8000-000000000000"
LINK = NVLinkInfo(link=17, is_active=True, remote=UUID)
PATH = GPUPath(first_index=100, second_index=101, kind="NV18")
DISK = DiskInfo(name="nvme1000n1", size_bytes=2**44, model="SAMSUNG MZWLR7T6HALA-00007")
NIC = NICInfo(name="enp175s0f0np0", address="0c:42:a1:00:00:00", driver="mlx5_core")
SMALL = Inventory(hostname="dgx-01")


def gpus(count: int, *, nvlinks: int = 0) -> list[GPUInfo]:
    return [
        GPUInfo(
            index=index,
            uuid=UUID,
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 * 2**30,
            architecture="Hopper",
            pci_address="00000000:1B:00.0",
            serial="1650522012345",
            vbios_version="96.00.5E.00.01",
            nvlinks=[LINK] * nvlinks,
        )
        for index in range(count)
    ]


WHOLE: dict[str, Any] = {
    "gpus": gpus(MAX_GPUS, nvlinks=MAX_NVLINKS),
    "gpu_paths": [PATH] * MAX_GPU_PATHS,
    "disks": [DISK] * MAX_DISKS,
    "nics": [NIC] * MAX_NICS,
    "executors": ["docker"] * MAX_EXECUTORS,
    "os": "x" * MAX_TEXT_LENGTH,
}
TOO_MUCH: dict[str, tuple[dict[str, Any], int]] = {
    "inventory.gpus": ({"gpus": gpus(MAX_GPUS + 1)}, MAX_GPUS),
    "inventory.gpus[0].nvlinks": ({"gpus": gpus(1, nvlinks=MAX_NVLINKS + 1)}, MAX_NVLINKS),
    "inventory.gpu_paths": ({"gpu_paths": [PATH] * (MAX_GPU_PATHS + 1)}, MAX_GPU_PATHS),
    "inventory.disks": ({"disks": [DISK] * (MAX_DISKS + 1)}, MAX_DISKS),
    "inventory.nics": ({"nics": [NIC] * (MAX_NICS + 1)}, MAX_NICS),
    "inventory.executors": ({"executors": ["docker"] * (MAX_EXECUTORS + 1)}, MAX_EXECUTORS),
    "inventory.product": ({"product": "x" * (MAX_TEXT_LENGTH + 1)}, MAX_TEXT_LENGTH),
}


def heartbeat(**changes: object) -> bytes:
    beat = Heartbeat(agent_version="1", sent_at_ns=to_ns(NOON), inventory=SMALL)
    return msgspec.json.encode(msgspec.structs.replace(beat, **changes))


def send(api: AgentAPI, body: bytes) -> requests.Response:
    return api.request("POST", "/agent/v1/heartbeat", data=body)


def stored(sessions: SessionFactory, dgx: Appliance) -> dict[str, Any]:
    with sessions() as session:
        inventory: dict[str, Any] = session.get_one(Appliance, dgx.id).inventory
    return inventory


def test_an_inventory_at_every_limit_is_accepted(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    largest = msgspec.structs.replace(SMALL, **WHOLE)
    ill = [
        GPUHealth(index=index, uuid=UUID, state=HealthState.FAILED, tier="flagship")
        for index in range(MAX_GPU_HEALTHS)
    ]
    body = heartbeat(inventory=largest, health=ApplianceHealth(state=HealthState.FAILED, gpus=ill))
    assert len(body) < MAX_REPORT_BYTES
    assert send(api, body).status_code == 204
    assert stored(sessions, dgx) == msgspec.to_builtins(largest)
    with sessions() as session:
        assert session.get_one(Appliance, dgx.id).gpu_count == MAX_GPUS


@pytest.mark.parametrize("field", TOO_MUCH)
def test_what_is_above_a_limit_is_named_with_the_limit(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, field: str
) -> None:
    before = stored(sessions, dgx)
    changes, limit = TOO_MUCH[field]
    answer = send(api, heartbeat(inventory=msgspec.structs.replace(SMALL, **changes)))
    assert answer.status_code == 422
    assert set(answer.json()["errors"]) == {field}
    assert f"more than {limit} " in answer.json()["message"]
    assert stored(sessions, dgx) == before


def test_a_report_that_is_too_large_as_a_whole_is_rejected_with_the_limit(api: AgentAPI) -> None:
    answer = send(api, heartbeat().ljust(MAX_REPORT_BYTES + 1))
    assert answer.status_code == 413
    assert str(MAX_REPORT_BYTES) in answer.json()["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"inventory": msgspec.structs.replace(SMALL, gpus=gpus(MAX_GPUS + 1))},
        {"labels": {f"key-{number}": "x" for number in range(51)}},
        {"labels": {"key": "x" * 201}},
    ],
)
def test_an_enrollment_above_the_limits_uses_up_no_token(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, changes: dict[str, Any]
) -> None:
    with sessions.begin() as session:
        token, secret = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=DAY, now=NOON
        )
    request = EnrollRequest(token=secret, name="dgx-02", inventory=SMALL)
    request = msgspec.structs.replace(request, **changes)
    answer = api.request("POST", "/agent/v1/enroll", data=msgspec.json.encode(request))
    assert answer.status_code == 422
    with sessions() as session:
        assert session.get_one(EnrollmentToken, token.id).uses_left == 1


def test_a_heartbeat_without_inventory_leaves_the_last_one(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance
) -> None:
    two = msgspec.structs.replace(SMALL, gpus=gpus(2))
    assert send(api, heartbeat(inventory=two)).status_code == 204
    assert send(api, heartbeat(inventory=None, agent_version="2")).status_code == 204
    with sessions() as session:
        appliance = session.get_one(Appliance, dgx.id)
        assert (appliance.agent_version, appliance.gpu_count) == ("2", 2)
        assert appliance.inventory == msgspec.to_builtins(two)


class Agent:
    """The heartbeats of an agent, one at a time."""

    def __init__(self, folder: Path, url: str, clock: FrozenClock) -> None:
        self.inventory = SMALL
        self.health: ApplianceHealth | None = None
        self._clock = clock
        buffer = DiskBuffer(folder, max_bytes=1_000_000, max_age_seconds=3600, clock=clock)
        self._portal = PortalConnection(AccessPoints([url]), agent_token=SECRET)
        self._heartbeats = Heartbeats(
            inventory=lambda: self.inventory,
            is_starting=lambda: False,
            executors=list,
            buffer=buffer,
            clock=clock,
            health=lambda: self.health,
        )

    def beat(self) -> None:
        self._clock.advance(10)
        self._heartbeats.step(self._portal, interval_seconds=10.0)

    def close(self) -> None:
        self._portal.close()


def test_an_agent_whose_inventory_is_rejected_shows_it_and_stays_online(
    *,
    api: AgentAPI,
    sessions: SessionFactory,
    dgx: Appliance,
    clock: FrozenClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(tmp_path / "buffer", api.url, clock)
    agent.inventory = msgspec.structs.replace(SMALL, gpus=gpus(2))
    agent.beat()
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).state = ApplianceState.STALE

    agent.inventory = msgspec.structs.replace(SMALL, gpus=gpus(MAX_GPUS + 1))
    agent.health = ApplianceHealth(state=HealthState.DEGRADED)
    with caplog.at_level(logging.ERROR, logger="collector.heartbeats"):
        agent.beat()
        agent.beat()
    (shown,) = caplog.messages
    assert f"inventory.gpus: has more than {MAX_GPUS} entries" in shown
    with sessions() as session:
        appliance = session.get_one(Appliance, dgx.id)
        assert (appliance.state, appliance.last_seen_at) == (ApplianceState.ONLINE, clock.now)
        assert (appliance.gpu_count, appliance.health_state) == (2, HealthState.DEGRADED)

    agent.inventory = msgspec.structs.replace(SMALL, gpus=gpus(4))
    agent.beat()
    with sessions() as session:
        assert session.get_one(Appliance, dgx.id).gpu_count == 4
    agent.close()


def test_an_agent_whose_health_is_rejected_stays_online_too(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock, tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "buffer", api.url, clock)
    gpu = GPUHealth(index=0, uuid=UUID, state=HealthState.FAILED)
    agent.health = ApplianceHealth(state=HealthState.FAILED, gpus=[gpu] * (MAX_GPU_HEALTHS + 1))
    agent.beat()
    with sessions() as session:
        appliance = session.get_one(Appliance, dgx.id)
        assert (appliance.last_seen_at, appliance.health_state) == (clock.now, None)
    agent.close()
