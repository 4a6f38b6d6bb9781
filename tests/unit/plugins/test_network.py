"""Traffic of interfaces, on two captures of `/proc/net/dev` taken ten seconds apart."""

from datetime import timedelta

import pytest

from plugins.network.reader import NetworkConfig, NetworkPlugin
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost

# Differences between the captures, read off the files.
RECEIVED_BYTES = 953_050
SENT_PACKETS = 65
IB0 = "   ib0: 5000 50 1 2 0 0 0 0 7000 70 3 4 0 0 0 0\n"
IB0_LATER = "   ib0: 6000 60 2 4 0 0 0 0 9000 90 4 8 0 0 0 0\n"


def test_rates_are_of_ten_seconds_and_leave_the_loopback_out(host: CapturedHost) -> None:
    plugin = NetworkPlugin(NetworkConfig(), host.context)
    host.use("proc_a")
    assert plugin.gather(FIRST_AT) == []
    host.use("proc_b")
    [point] = plugin.gather(SECOND_AT)
    assert point.tags == {"interface": "eth0"}
    assert point.fields["received_bytes_per_second"] == pytest.approx(RECEIVED_BYTES / 10)
    assert point.fields["sent_packets_per_second"] == pytest.approx(SENT_PACKETS / 10)
    assert point.fields["drops_per_second"] == 0


def test_interfaces_are_skipped_by_pattern(host: CapturedHost) -> None:
    plugin = NetworkPlugin(NetworkConfig(skip_interfaces=("eth*",)), host.context)
    host.use("proc_a")
    plugin.gather(FIRST_AT)
    host.use("proc_b")
    assert [point.tags["interface"] for point in plugin.gather(SECOND_AT)] == ["lo"]


def test_an_interface_that_was_plugged_in_has_rates_from_its_second_reading(
    host: CapturedHost,
) -> None:
    plugin = NetworkPlugin(NetworkConfig(), host.context)
    host.use("proc_a")
    plugin.gather(FIRST_AT)
    host.write("net/dev", host.read("net/dev") + IB0)
    assert [point.tags["interface"] for point in plugin.gather(SECOND_AT)] == ["eth0"]
    host.replace("net/dev", IB0, IB0_LATER)
    _, point = plugin.gather(SECOND_AT + timedelta(seconds=10))
    assert point.tags == {"interface": "ib0"}
    assert point.fields == {
        "received_bytes_per_second": 1000 / 10,
        "sent_bytes_per_second": 2000 / 10,
        "received_packets_per_second": 10 / 10,
        "sent_packets_per_second": 20 / 10,
        "errors_per_second": (1 + 1) / 10,
        "drops_per_second": (2 + 4) / 10,
    }


def test_counters_that_went_back_give_no_rate_once(host: CapturedHost) -> None:
    plugin = NetworkPlugin(NetworkConfig(), host.context)
    host.use("proc_b")
    plugin.gather(FIRST_AT)
    host.use("proc_a")
    assert plugin.gather(SECOND_AT) == []
    host.use("proc_b")
    [point] = plugin.gather(SECOND_AT + timedelta(seconds=10))
    assert point.fields["received_bytes_per_second"] == pytest.approx(RECEIVED_BYTES / 10)


@pytest.mark.parametrize(
    ("state", "fields"),
    [("up\n", {"link_up": 1}), ("down\n", {"link_up": 0}), ("unknown\n", {}), (None, {})],
)
def test_the_link_of_an_interface_is_as_the_kernel_knows_it(
    host: CapturedHost, state: str | None, fields: dict[str, int]
) -> None:
    plugin = NetworkPlugin(NetworkConfig(), host.context)
    if state is not None:
        folder = host.sys / "class/net/eth0"
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(state, encoding="ascii")
    host.use("proc_a")
    plugin.gather(FIRST_AT)
    host.use("proc_b")
    [point] = plugin.gather(SECOND_AT)
    assert {name: point.fields[name] for name in point.fields if name == "link_up"} == fields
