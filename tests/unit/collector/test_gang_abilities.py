"""What an agent reports of networks, and the settings that they come from."""

from pathlib import Path

import pytest

from collector.gang_networks.abilities import AbilitiesReader, own_address
from collector.gang_networks.build import Refusal
from collector.gang_networks.settings import NetworkSettings, check_network
from collector.gang_networks.wireguard import KEY_NAME, inner_address, load_key, public_text
from collector.jobs.preparations import PreparationError
from protocol.attempts import AttemptSpec

SPEC = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i")


def reader(folder: Path, *, problem: str = "") -> AbilitiesReader:
    devices = folder / "infiniband"
    for name in ("mlx5_1", "mlx5_0"):
        (devices / name).mkdir(parents=True)
    return AbilitiesReader(
        NetworkSettings(address="192.0.2.10", public_address="203.0.113.10"),
        [],
        wireguard_public_key="key",
        problem=problem,
        can_use_host=True,
        mtu_of=lambda _: 9000,
        infiniband=devices,
        gpudirect_storage=folder,
    )


def test_an_able_host_reports_its_addresses_and_devices(tmp_path: Path) -> None:
    abilities = reader(tmp_path)()
    assert abilities.can_make_networks
    assert (abilities.address, abilities.public_address) == ("192.0.2.10", "203.0.113.10")
    assert (abilities.mtu, abilities.wireguard_public_key) == (9000, "key")
    assert abilities.rdma_devices == ["mlx5_0", "mlx5_1"]
    assert abilities.has_gpudirect_storage


def test_a_host_with_a_problem_reports_it_and_still_its_devices(tmp_path: Path) -> None:
    abilities = reader(tmp_path, problem="The agent lacks CAP_NET_ADMIN.")()
    assert not abilities.can_make_networks
    assert abilities.problem == "The agent lacks CAP_NET_ADMIN."
    assert (abilities.address, abilities.rdma_devices) == ("", ["mlx5_0", "mlx5_1"])


def test_the_loopback_address_is_none_for_others() -> None:
    assert not own_address(["http://127.0.0.1:8080"]).startswith("127.")


@pytest.mark.parametrize("address", ["host.example.com", "::1", "255.255.255.255", "224.0.0.1"])
def test_an_address_has_to_be_one_of_ipv4(address: str) -> None:
    _, errors = check_network({"address": address})
    assert errors == [f"network.address = {address!r}: enter an IPv4 address, such as 192.0.2.10"]


def test_the_key_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    assert public_text(load_key(tmp_path)) == public_text(key)
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600


def test_appliances_have_different_addresses_in_a_tunnel() -> None:
    ranks = [0, 1, 254, 255, 256, 65_534, 70_000]
    assert len({inner_address([rank]) for rank in ranks}) == len(ranks)
    assert inner_address([255]) == "100.64.1.0"


def test_a_member_fails_with_the_reason_where_no_network_can_be_made() -> None:
    refusal = Refusal("The agent lacks CAP_NET_ADMIN.")
    assert refusal.prepare(SPEC) is SPEC
    member = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i", network="gang")
    with pytest.raises(PreparationError, match="CAP_NET_ADMIN") as caught:
        refusal.prepare(member)
    assert caught.value.reason == "network_failed"
