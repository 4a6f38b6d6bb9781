"""The inventory on an appliance's page and in the API."""

from typing import Any

import msgspec
import pytest

from collector.inventory import simulated_inventory
from core.db import SessionFactory
from dash_app.pcie import TIMES
from plugins.simulation.config import SimulationConfig
from portal.presenters.inventory import NONE, hardware_of, line_speed
from protocol.inventory import DiskInfo, GPUInfo, Inventory, NICInfo, NVLinkInfo
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser

WHOLE = simulated_inventory(SimulationConfig(seed="dgx"), executors=["docker"])


def appliance_with(inventory: Inventory) -> Appliance:
    return Appliance(name="dgx-01", inventory=msgspec.to_builtins(inventory))


def bare_gpu(index: int, **details: Any) -> GPUInfo:  # noqa: ANN401 - the struct's own fields
    return GPUInfo(index=index, uuid=f"GPU-{index}", model="", memory_bytes=0, **details)


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> str:
    """An appliance of acme that names everything."""
    with sessions.begin() as session:
        appliance = make_appliance(
            session, cast.acme, "dgx-01", now=clock.now, inventory=msgspec.to_builtins(WHOLE)
        )
        return str(appliance.id)


def test_the_page_shows_host_gpus_disks_and_cards(bob: Browser, dgx: str) -> None:
    text = bob.get(f"/appliances/{dgx}").text
    for shown in (
        "Simulated GPU server",
        "2 sockets, 48 cores, 96 threads",
        "550.127.05, CUDA 12.4",
        "Hopper (9.0)",
        "16,896",
        "18 of 18",
        "nvme1n1, nvme2n1, nvme3n1, nvme4n1",
        "mlx5_core",
        "400 Gbit/s",
    ):
        assert shown in text


def test_the_api_gives_the_inventory_in_full(bob: Browser, dgx: str) -> None:
    answer = bob.get(f"/api/v1/appliances/{dgx}").json
    assert answer is not None
    # The cluster of a connector is a field of the appliance.
    assert answer["inventory"] | {"cluster": None} == msgspec.to_builtins(WHOLE)


def test_an_appliance_without_inventory_has_a_page(
    bob: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "new", now=clock.now, inventory={})
        appliance_id = appliance.id
    assert "None reported" in bob.get(f"/appliances/{appliance_id}").text


def test_a_narrow_pcie_link_and_a_link_that_is_down_stand_out() -> None:
    links = [NVLinkInfo(link=0, is_active=True), NVLinkInfo(link=1, is_active=False)]
    gpu = bare_gpu(0, pcie_width=8, pcie_width_max=16, pcie_generation_max=5, nvlinks=links)
    (row,) = hardware_of(appliance_with(Inventory(hostname="dgx", gpus=[gpu]))).gpus
    assert (row.pcie, row.is_pcie_narrow) == (f"Gen 5 {TIMES}8 of {TIMES}16", True)
    assert (row.nvlinks, row.is_nvlink_down) == ("1 of 2", True)


def test_a_value_that_the_driver_does_not_report_is_a_dash() -> None:
    (row,) = hardware_of(appliance_with(Inventory(hostname="dgx", gpus=[bare_gpu(0)]))).gpus
    assert {row.architecture, row.cores, row.bus, row.pcie, row.nvlinks, row.serial} == {NONE}
    assert not row.is_pcie_narrow


def test_disks_of_one_kind_share_a_row() -> None:
    disks = [
        DiskInfo(name="sdb", size_bytes=10, model="A", is_rotational=True),
        DiskInfo(name="nvme0n1", size_bytes=10, model="B"),
        DiskInfo(name="sda", size_bytes=10, model="A", is_rotational=True),
    ]
    rows = hardware_of(appliance_with(Inventory(hostname="dgx", disks=disks))).disks
    assert [(row.names, row.count, row.kind) for row in rows] == [
        ("sdb, sda", 2, "HDD"),
        ("nvme0n1", 1, "SSD"),
    ]


@pytest.mark.parametrize(
    ("nic", "text"),
    [
        (NICInfo(name="e", speed_bits_per_second=400_000_000_000), "400 Gbit/s"),
        (NICInfo(name="e", speed_bits_per_second=2_500_000_000), "2.5 Gbit/s"),
        (NICInfo(name="e", speed_bits_per_second=100_000_000), "100 Mbit/s"),
        (NICInfo(name="e"), NONE),
    ],
)
def test_the_speed_of_a_card_is_in_bits(nic: NICInfo, text: str) -> None:
    assert line_speed(nic.speed_bits_per_second) == text


def test_unified_memory_is_the_hosts_and_unknown_memory_is_never_zero(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, bob: Browser
) -> None:
    spark = GPUInfo(
        index=0, uuid="GPU-0", model="NVIDIA GB10", memory_bytes=2**37, has_unified_memory=True
    )
    inventory = Inventory(hostname="spark", memory_bytes=2**37, gpus=[spark, bare_gpu(1)])
    reported = msgspec.to_builtins(inventory)
    for gpu in reported["gpus"][1:]:
        del gpu["has_unified_memory"]  # as agents before it report
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "spark", now=clock.now, inventory=reported)
        appliance_id = str(appliance.id)

    page = bob.get(f"/appliances/{appliance_id}").text
    answer = bob.get(f"/api/v1/appliances/{appliance_id}").json

    assert '128 GiB<div class="vd-when">shared with the host</div>' in page
    assert "unknown" in page
    assert "0 B" not in page
    assert answer is not None
    assert [gpu["memory_bytes"] for gpu in answer["inventory"]["gpus"]] == [2**37, None]
    assert answer["inventory"]["gpus"][0]["has_unified_memory"] is True
