"""Containers from captured answers of an engine and captured control groups of both versions."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.containers.reader import ContainersConfig, ContainersPlugin
from tests.fixtures.replayed_engine import ReplayedEngine
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT, SECOND_AT
from timeseries.points import Point

BUSY = "148505672ed80b11c171f070088b73f3a67eaa2dc97f8f71d606b7d4e3342f30"
LIST, INSPECT = "/containers/json?all=1", f"/containers/{BUSY}/json"
PID = 2577


@dataclass
class Host:
    """A host whose kernel's files lie in `root` and may be changed."""

    root: Path
    engine: ReplayedEngine
    version: str

    def context(self) -> PluginContext:
        return PluginContext(
            proc=self.root / "proc", sys=self.root / "sys", docker_url=self.engine.url
        )

    def plugin(self, config: ContainersConfig | None = None) -> ContainersPlugin:
        return ContainersPlugin(config or ContainersConfig(), self.context())

    def write(self, path: str, text: str) -> None:
        """Change a file below the container's groups or below /proc."""
        (file,) = self.root.rglob(path)
        file.write_text(text)

    def change_listed(self, **changes: object) -> None:
        """Change what the engine lists of the running container."""
        listed = json.loads(self.engine.answers[LIST])
        next(entry for entry in listed if entry["Id"] == BUSY).update(changes)
        self.engine.answers[LIST] = json.dumps(listed).encode()


@pytest.fixture(params=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    folder = CAPTURES / "containers"
    root = tmp_path / "root"
    shutil.copytree(folder / request.param, root)
    answers = {
        LIST: (folder / "containers.json").read_bytes(),
        INSPECT: (folder / "inspect.json").read_bytes(),
    }
    with ReplayedEngine(answers) as engine:
        yield Host(root, engine, request.param)


def container(plugin: ContainersPlugin, *, seconds: float = 0) -> Point:
    points = plugin.gather(FIRST_AT + timedelta(seconds=seconds))
    (point,) = [point for point in points if point.measurement == "container"]
    return point


def test_containers_are_counted_by_state(host: Host) -> None:
    counts = next(iter(host.plugin().gather(FIRST_AT)))
    assert counts.measurement == "containers"
    assert counts.fields == {
        "running": 1,
        "paused": 0,
        "exited": 1,
        "created": 1,
        "restarting": 0,
        "dead": 0,
    }


def test_the_first_reading_has_gauges_and_no_rates(host: Host) -> None:
    point = container(host.plugin())
    limit = {"memory_limit_bytes": 67108864} if host.version == "v1" else {}
    assert point.fields == {
        "memory_bytes": 1048576 - 102400,
        "page_cache_bytes": 102400,
        "processes": 2,
        "restarts": 0,
        **limit,
    }
    assert point.tags == {
        "container": "busy",
        "image": "vedette-test/busybox:1",
        "job": "job-1",
    }


def grow(host: Host) -> None:
    """Let 5 s of CPU, 1 MiB read, 512 KiB written, 2 MB in and 1 MB out pass."""
    if host.version == "v1":
        host.write("cpuacct.usage", str(107797489 + 5_000_000_000))
        host.write(
            "blkio.throttle.io_service_bytes",
            f"8:0 Read {1048576 + 1048576}\n8:0 Write {4096 + 524288}\n259:0 Read 2048\nTotal 1\n",
        )
    else:
        host.write("cpu.stat", f"usage_usec {107797 + 5_000_000}\nuser_usec 1\n")
        host.write(
            "io.stat",
            f"259:0 rbytes=2048 wbytes=0\n8:0 rbytes={2 * 1048576} wbytes={4096 + 524288} rios=1\n",
        )
    net = (host.root / f"proc/{PID}/net/dev").read_text()
    net = net.replace("1000000 ", "3000000 ").replace(" 500000 ", "1500000 ")
    host.write("net/dev", net)


def test_rates_are_growth_over_the_time_between_two_readings(host: Host) -> None:
    plugin = host.plugin()
    container(plugin)
    grow(host)
    rates = {
        name: value
        for name, value in container(plugin, seconds=10).fields.items()
        if name == "cpu_percent" or name.endswith("_per_second")
    }
    assert rates == {
        "cpu_percent": pytest.approx(50.0),
        "read_bytes_per_second": pytest.approx(104857.6),
        "written_bytes_per_second": pytest.approx(52428.8),
        "received_bytes_per_second": pytest.approx(200_000.0),
        "sent_bytes_per_second": pytest.approx(100_000.0),
    }


def test_the_host_network_is_not_counted_for_a_container(host: Host) -> None:
    host.change_listed(HostConfig={"NetworkMode": "host"})
    plugin = host.plugin()
    container(plugin)
    assert "received_bytes_per_second" not in container(plugin, seconds=10).fields


def test_the_agents_own_word_on_the_job_comes_first(host: Host) -> None:
    context = replace(host.context(), job_of_container=lambda: {BUSY: "job-2"})
    point = container(ContainersPlugin(ContainersConfig(), context))
    assert point.tags["job"] == "job-2"


def test_a_container_without_a_job_has_no_such_tag(host: Host) -> None:
    host.change_listed(Labels=None)
    assert "job" not in container(host.plugin()).tags


@pytest.mark.parametrize(
    "config",
    [ContainersConfig(skip_names=("bu*",)), ContainersConfig(skip_images=("*/busybox:*",))],
    ids=["names", "images"],
)
def test_skipped_containers_are_counted_and_not_read(host: Host, config: ContainersConfig) -> None:
    points = list(host.plugin(config).gather(FIRST_AT))
    assert [point.measurement for point in points] == ["containers"]
    assert points[0].fields["running"] == 1


def test_a_container_is_named_by_its_own_name_not_by_a_links(host: Host) -> None:
    host.change_listed(Names=["/web/alias", "/busy"])
    assert container(host.plugin()).tags["container"] == "busy"


def test_the_container_list_is_cached(host: Host) -> None:
    plugin = host.plugin()
    for second in range(8):
        container(plugin, seconds=second)
    assert host.engine.asked == [LIST, INSPECT]
    container(plugin, seconds=8)
    assert host.engine.asked == [LIST, INSPECT, LIST]


def test_a_container_that_was_started_again_is_inspected_again(host: Host) -> None:
    plugin = host.plugin()
    container(plugin)
    (host.root / f"proc/{PID}").rename(host.root / "proc" / "2600")
    inspected = json.loads(host.engine.answers[INSPECT])
    inspected |= {"RestartCount": 1}
    inspected["State"]["Pid"] = 2600
    host.engine.answers[INSPECT] = json.dumps(inspected).encode()
    fields = container(plugin, seconds=10).fields
    assert fields["restarts"] == 1
    assert fields["received_bytes_per_second"] == 0


def test_a_reused_pid_is_not_the_container(host: Host) -> None:
    host.write("proc/2577/cgroup", "0::/system.slice/cron.service\n")
    assert container(host.plugin()).fields == {"restarts": 0}


def test_a_container_removed_while_listing_is_skipped(host: Host) -> None:
    del host.engine.answers[INSPECT]
    assert [point.measurement for point in host.plugin().gather(FIRST_AT)] == ["containers"]


def test_a_container_that_ends_between_two_lists_gives_no_zeros(host: Host) -> None:
    plugin = host.plugin()
    container(plugin)
    shutil.rmtree(host.root / "sys")
    shutil.rmtree(host.root / "proc")
    assert container(plugin, seconds=1).fields == {"restarts": 0}


def test_a_process_in_a_group_of_its_own_is_counted_with_its_container(host: Host) -> None:
    path = host.root / f"proc/{PID}/cgroup"
    path.write_text("".join(f"{line}/init.scope\n" for line in path.read_text().splitlines()))
    assert container(host.plugin()).fields["memory_bytes"] == 1048576 - 102400


def test_no_engine_is_nothing_to_read(tmp_path: Path) -> None:
    context = PluginContext(docker_url=f"unix://{tmp_path / 'none.sock'}")
    with pytest.raises(PluginUnavailableError, match="no Docker engine listens"):
        list(ContainersPlugin(ContainersConfig(), context).gather(FIRST_AT))


def test_an_engine_of_another_host_is_nothing_to_read() -> None:
    context = PluginContext(docker_url="tcp://10.0.0.1:2375")
    with pytest.raises(PluginUnavailableError, match="only the engine of this host"):
        list(ContainersPlugin(ContainersConfig(), context).gather(FIRST_AT))


def test_an_engine_that_went_away_is_a_failure_that_is_tried_again() -> None:
    with ReplayedEngine({LIST: b"[]"}) as engine:
        plugin = ContainersPlugin(ContainersConfig(), PluginContext(docker_url=engine.url))
        list(plugin.gather(FIRST_AT))
    with pytest.raises(PluginError) as failure:
        list(plugin.gather(SECOND_AT))
    assert not isinstance(failure.value, PluginUnavailableError)


def test_a_server_that_is_not_an_engine_fails() -> None:
    with ReplayedEngine({LIST: b"<html>"}) as other:
        plugin = ContainersPlugin(ContainersConfig(), PluginContext(docker_url=other.url))
        with pytest.raises(PluginError, match="is not a Docker engine"):
            list(plugin.gather(FIRST_AT))


@pytest.mark.parametrize("host", ["v2"], indirect=True)
def test_pressure_and_throttling_are_shares_of_the_time(host: Host) -> None:
    (folder,) = {path.parent for path in host.root.rglob("memory.current")}

    def set_counts(waited_usec: int, periods: int, throttled: int) -> None:
        for resource in ("cpu", "memory", "io"):
            (folder / f"{resource}.pressure").write_text(
                f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_usec}\n"
                "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
            )
        stat = f"usage_usec 100\nnr_periods {periods}\nnr_throttled {throttled}\n"
        (folder / "cpu.stat").write_text(stat)

    plugin = host.plugin()
    set_counts(1_000_000, 100, 10)
    assert "io_pressure_percent" not in container(plugin).fields
    set_counts(3_500_000, 200, 40)
    fields = container(plugin, seconds=10).fields
    assert [fields[f"{name}_pressure_percent"] for name in ("cpu", "memory", "io")] == [25.0] * 3
    assert fields["cpu_throttled_percent"] == 30.0


@pytest.mark.parametrize("host", ["v2"], indirect=True)
def test_memory_far_from_the_gpus_of_a_job_is_a_share(host: Host) -> None:
    (folder,) = {path.parent for path in host.root.rglob("memory.current")}
    (folder / "memory.numa_stat").write_text("anon N0=750 N1=250\nfile N0=9 N1=9\n")
    for node in (0, 1):
        (host.root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    gpu = host.root / "proc/driver/nvidia/gpus/0000:1B:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-7\n")
    device = host.root / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    context = replace(
        host.context(),
        job_of_gpu=lambda: {"GPU-7": "train"},
        job_of_container=lambda: {BUSY: "train"},
    )
    assert (
        container(ContainersPlugin(ContainersConfig(), context)).fields["remote_memory_percent"]
        == 75.0
    )
    other = replace(context, job_of_gpu=dict)
    fields = container(ContainersPlugin(ContainersConfig(), other)).fields
    assert "remote_memory_percent" not in fields
