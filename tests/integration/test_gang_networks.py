"""Private networks of gangs: real namespaces, VXLAN, WireGuard by a program, and containers."""

import multiprocessing
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from docker.errors import ContainerError

from collector.gang_networks.containers import NetworkContainers, sandbox_name
from collector.gang_networks.errors import LostError
from protocol.attempts import AttemptSpec
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.gang_appliances import (
    BUSYBOX,
    Appliance,
    Site,
    gang,
    ip,
    site_of,
    skip_without_wireguard,
    state_of,
)
from tests.fixtures.polling import eventually

pytestmark = pytest.mark.needs_docker

SWITCH, BRIDGE, SANDBOX, MEMBER = "switch", "bridge", "sandbox", "member"
PLAIN_STEPS = (SWITCH, BRIDGE, "filter", "vxlan", "forwarding", SANDBOX, MEMBER, "made")
CLEAN_CONTAINER = "clean container"
CLEAN_STEPS = (
    "clean containers",
    CLEAN_CONTAINER,
    "clean filter",
    "clean chain",
    "clean interfaces",
)
TUNNEL_STEPS = ("tunnel", "vxlan in tunnel", "forwarding in tunnel", "made")


@pytest.fixture
def site(docker_engine: DockerEngine) -> Iterator[Site]:
    with site_of(docker_engine.url, docker_engine.image, 2) as made:
        yield made


def make(site: Site, specs: list[AttemptSpec]) -> None:
    by_name = {seen.name: seen for seen in site.appliances}
    for spec in specs:
        assert spec.gang is not None
        place = spec.gang.members[spec.gang.rank].appliance_id
        assert by_name[place].maker.ensure(spec) == sandbox_name(spec.attempt_id)


def can_reach(site: Site, spec: AttemptSpec, address: str) -> bool:
    try:
        site.member(0, spec, BUSYBOX, "ping", "-c", "1", "-w", "2", address)
    except ContainerError:
        return False
    return True


def assert_reaches(site: Site, spec: AttemptSpec, address: str) -> None:
    # On a busy machine, a first packet may take longer than the deadline of a ping.
    eventually(lambda: can_reach(site, spec, address), what=f"a path to {address}")


def serve(site: Site, spec: AttemptSpec, text: str, port: int = 7000) -> None:
    loop = f"while true; do echo {text} | {BUSYBOX} nc -l -p {port}; done"
    site.background(spec, "sh", "-c", loop)


def ask(site: Site, spec: AttemptSpec, host: str, port: int = 7000) -> str:
    script = (
        f"for n in $({BUSYBOX} seq 20); do {BUSYBOX} nc -w 5 {host} {port} < /dev/null && exit; "
    )
    return site.member(0, spec, "sh", "-c", f"{script} sleep 0.2; done").strip()


def test_members_of_two_appliances_find_each_other_by_name(site: Site) -> None:
    first, second = specs = gang(site.appliances)
    make(site, specs)
    serve(site, second, "from-rank-1")
    assert ask(site, first, "train-1") == "from-rank-1"
    assert_reaches(site, second, "member-0")


def test_gangs_with_the_same_addresses_do_not_see_each_other(site: Site) -> None:
    one_gang, other_gang = gang(site.appliances, vni=1), gang(site.appliances, vni=2)
    make(site, [*one_gang, *other_gang])
    serve(site, one_gang[1], "first-gang")
    serve(site, other_gang[1], "second-gang")
    assert ask(site, one_gang[0], "10.96.0.2") == "first-gang"
    assert ask(site, other_gang[0], "10.96.0.2") == "second-gang"


def test_packets_between_encrypted_appliances_go_through_wireguard(site: Site) -> None:
    skip_without_wireguard()
    first, second = specs = gang(site.appliances, is_encrypted=True)
    make(site, specs)
    serve(site, second, "encrypted")
    assert ask(site, first, "train-1") == "encrypted"


def test_a_member_has_no_route_out_of_its_gang(site: Site) -> None:
    first, second = specs = gang(site.appliances)
    make(site, specs)
    assert_reaches(site, first, "10.96.0.2")
    host = socket.gethostbyname(socket.gethostname())
    for address in (host, "169.254.169.254", "192.0.2.1", "192.0.2.2", "172.17.0.1", "8.8.8.8"):
        if not address.startswith("127."):
            assert not can_reach(site, first, address), address
    assert site.member(1, second, BUSYBOX, "ip", "route").split()[:3] == [
        "10.96.0.0/16",
        "dev",
        "gang0",
    ]


@pytest.mark.nightly
def test_a_member_reaches_the_outside_if_the_tenant_allows_it(
    networked_engine: DockerEngine,
) -> None:
    with site_of(networked_engine.url, networked_engine.image, 1) as site:
        appliance = site.appliances[0]
        open_gang = gang([appliance, appliance], vni=1, allows_egress=True)
        closed_gang = gang([appliance, appliance], vni=2)
        make(site, [*open_gang, *closed_gang])
        gateway = site.member(0, open_gang[0], BUSYBOX, "ip", "route").split()[2]
        assert_reaches(site, open_gang[0], gateway)
        assert_reaches(site, open_gang[0], "train-1")
        assert not can_reach(site, closed_gang[0], gateway)


def test_an_appliance_outside_of_the_gang_gets_nothing_into_its_network(site: Site) -> None:
    outsider = site.add()
    inside, _ = specs = gang(site.appliances[:2], vni=77)
    make(site, specs)
    # It knows the number and the port, and claims to be an appliance of that gang.
    first = site.appliances[0]
    _, intruder = gang([first, outsider], vni=77, gang_id="intruder")
    outsider.maker.ensure(intruder)
    assert not can_reach(site, intruder, "10.96.0.1")
    assert dropped_packets(first) > 0
    assert_reaches(site, inside, "10.96.0.2")


@pytest.mark.nightly
def test_a_member_that_moves_is_reached_at_its_new_place(site: Site) -> None:
    first_place, second_place, third_place = *site.appliances, site.add()
    before = gang([first_place, second_place], gang_id="moving")
    make(site, before)
    assert_reaches(site, before[0], "10.96.0.2")
    second_place.maker.clean([])
    after = gang([first_place, third_place], gang_id="moving")
    make(site, after)
    assert_reaches(site, after[0], "10.96.0.2")


def dropped_packets(appliance: Appliance) -> int:
    """Return how many packets of gangs an appliance did not let in."""
    rules = ip("netns", "exec", appliance.namespace, "iptables-save", "-c", "-t", "raw")
    counters = [line for line in rules.splitlines() if line.endswith("-j DROP")]
    return sum(int(line[1:].split(":")[0]) for line in counters)


def die_at(appliance: Appliance, spec: AttemptSpec | None, step: str, *, time: int = 1) -> None:
    """Make a network, or remove all, in a process that is killed as it comes to a step."""

    def work_until_killed() -> None:
        steps = Counter[str]()

        def on_step(name: str) -> None:
            steps[name] += 1
            if name == step and steps[name] == time:
                os.kill(os.getpid(), signal.SIGKILL)

        containers = NetworkContainers(appliance.engine_url, appliance.name)
        maker = appliance.new_maker(containers, on_step)
        if spec is None:
            maker.clean([])
        else:
            maker.ensure(spec)

    process = multiprocessing.get_context("fork").Process(target=work_until_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"there is no step {step}"


@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_nothing_is_left_of_a_network_whose_maker_was_killed(
    site: Site, *, is_encrypted: bool
) -> None:
    if is_encrypted:
        skip_without_wireguard()
    before = state_of(site)
    appliance = site.appliances[0]
    for number, step in enumerate(TUNNEL_STEPS if is_encrypted else PLAIN_STEPS):
        spec = gang(site.appliances, vni=100 + number, is_encrypted=is_encrypted)[0]
        die_at(appliance, spec, step)
        appliance.maker.clean([])
        eventually(lambda: state_of(site) == before, what=f"removal at {step}")


def assert_removed_after_kills(site: Site, steps: list[tuple[str, int]]) -> None:
    before = state_of(site)
    appliance = site.appliances[0]
    for number, (step, time) in enumerate(steps):
        appliance.maker.ensure(gang(site.appliances, vni=200 + number)[0])
        die_at(appliance, None, step, time=time)
        appliance.maker.clean([])
        eventually(lambda: state_of(site) == before, what=f"removal after {step} {time}")


def test_nothing_is_left_of_a_network_whose_remover_was_killed(site: Site) -> None:
    assert_removed_after_kills(site, [(CLEAN_CONTAINER, 2), ("clean chain", 1)])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_nothing_is_left_wherever_the_remover_was_killed(site: Site) -> None:
    assert_removed_after_kills(site, [(step, 1) for step in CLEAN_STEPS])


@pytest.mark.nightly
def test_a_network_whose_maker_was_killed_is_completed(site: Site) -> None:
    first, second = specs = gang(site.appliances)
    for step in PLAIN_STEPS:
        die_at(site.appliances[0], first, step)
    make(site, specs)
    assert_reaches(site, first, "10.96.0.2")
    assert_reaches(site, second, "10.96.0.1")


@pytest.mark.nightly
def test_a_switch_that_was_removed_is_made_again(site: Site) -> None:
    first, second = specs = gang(site.appliances)
    make(site, specs)
    name = site.appliances[0].name
    assert first.gang is not None
    switch = f"vedette-switch-{first.gang.gang_id}-{name[-8:]}"
    site.client.containers.get(switch).remove(force=True)
    make(site, specs)
    assert_reaches(site, second, "10.96.0.1")


def test_a_running_member_without_its_sandbox_is_lost(site: Site) -> None:
    first, _ = specs = gang(site.appliances)
    make(site, specs)
    member = site.client.containers.run(
        site.image,
        ["sleep", "60"],
        name=f"vedette-{first.attempt_id}",
        network_mode=f"container:{sandbox_name(first.attempt_id)}",
        detach=True,
    )
    site.client.containers.get(sandbox_name(first.attempt_id)).remove(force=True)
    with pytest.raises(LostError):
        make(site, [first])
    member.remove(force=True)
