"""Every field of a job reaches every executor, or is refused, as the documentation says.

The requests to clusters are tested with their executors; here it is what they refuse.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobqueue.executors.abilities import refusal
from jobqueue.executors.docker.mapping import container_options
from jobqueue.executors.mesos.chronos import job_of as chronos_job
from jobqueue.executors.mesos.executor import Site
from jobqueue.executors.mesos.marathon import app_of, observe_app
from jobqueue.executors.mesos.metronome import job_of as metronome_job
from protocol.attempts import AttemptSpec, RegistryToken
from protocol.clusters import OPTIONS, ClusterKind
from protocol.datasets import DatasetSource, SourceKind, StagedDataset
from protocol.gangs import Framework, Gang, GangMember
from protocol.gpu_slices import GPUSlice, PartitionMode
from protocol.job_spec import HealthCheck, HealthCheckKind, Mount, Port
from protocol.results import OutputFolders

DOCS = Path(__file__).parents[3] / "docs" / "executors-by-field.md"
SITE = Site(owner="dgx-01", hostname="dgx-01", state_dir=Path("state"))
SPEC = AttemptSpec(
    attempt_id="a1", job_id="j1", name="train", image="busybox", command=["true"], cpus=2.0
)
GPUS = ["GPU-00000000-0000-0000-0000-000000000001"]
STAGED: dict[str, Any] = {
    "version_id": "v-77",
    "name": "imagenet",
    "number": 1,
    "digest": "7" * 64,
    "file_count": 1,
    "total_bytes": 77,
    "source": DatasetSource(kind=SourceKind.UPLOAD),
}
# A value of each field, and a pattern that shows it in the request to an executor.
VALUES: dict[str, tuple[object, str]] = {
    "attempt_id": ("a-77", "a-77"),
    "job_id": ("j-77", "j-77"),
    "name": ("name-77", "name-77"),
    "image": ("image:77", "image:77"),
    "no image": ("", ""),
    "command": (["echo", "word 77"], "word 77"),
    "no command": ([], ""),
    "env": ({"MODE": "env-77"}, "env-77"),
    "secrets": ({"KEY": "secret-77"}, "secret-77"),
    "gpu_uuids": ([*GPUS, GPUS[0][:-1] + "7"], ""),
    "gpu_models": (["H100"], ""),
    "gpu_slice": (
        GPUSlice(mode=PartitionMode.TIME_SLICING, gpu_uuid=GPUS[0], share_milli=250),
        "GPU-0|void",
    ),
    "uses_host_ipc": (True, '"ipc_mode": "host"'),
    "cpus": (3.25, "3.25|3250000000"),
    "memory_bytes": (77 * 2**20, '"mem": 77\\b|80740352'),
    "is_service": (True, ""),
    "container_policy": ("standard", "SETFCAP"),
    "shared_memory_bytes": (7700, "7700"),
    "working_dir": ("/w d", "/w d"),
    "mounts": ([Mount(source="/data-77", target="/mnt-77")], "/mnt-77"),
    "ports": ([Port(container_port=7777, name="web-77")], "web-77"),
    "time_limit_seconds": (77, ""),
    "stop_grace_seconds": (77, "77"),
    "gang": (
        Gang(
            gang_id="g-77",
            rank=0,
            members=[GangMember(rank=0, name="m", address="192.0.2.1", appliance_id="dgx-01")],
            framework=Framework.MPI,
        ),
        "",
    ),
    "network": ("host", '"network_mode": "host"'),
    "sandbox": ("sandbox-77", ""),
    "uses_rdma": (True, "memlock"),
    "datasets": (
        [
            StagedDataset(
                version_id="v-77",
                name="images",
                number=1,
                digest="0" * 64,
                file_count=1,
                total_bytes=1,
                source=DatasetSource(kind=SourceKind.UPLOAD),
                target="/data",
            )
        ],
        "",
    ),
    "cluster_options": ({"slurm.partition": "part-77"}, "part-77"),
    "outputs": (OutputFolders(paths=["/results"]), ""),
    "always_pulls": (True, ""),
    "registry": (RegistryToken(host="registry.example", token="token-77"), ""),
    "health_check": (HealthCheck(kind=HealthCheckKind.COMMAND, command="check-77"), "check-77"),
}
MET_ELSEWHERE = ("always", "by the agent", "not applied", "-")


def marathon_app(spec: AttemptSpec, release: tuple[int, ...] = (1, 8)) -> dict[str, Any]:
    app = app_of(spec, SITE, app_id=f"/vedette/dgx-01/{spec.attempt_id}", release=release)
    fields: dict[str, Any] = json.loads(app.to_json())
    return fields


def metronome_of(spec: AttemptSpec) -> dict[str, Any]:
    return metronome_job(spec, SITE, job_id=f"vedette.dgx-01.{spec.attempt_id}")


def chronos_of(spec: AttemptSpec) -> dict[str, Any]:
    return chronos_job(spec, SITE, name=f"vedette.dgx-01.{spec.attempt_id}")


# The columns of the table: the executor, whether the job has GPUs, and the request.
Request = Callable[[AttemptSpec], Any]
COLUMNS: dict[str, tuple[str, bool, Request]] = {
    "Docker": ("docker", False, lambda spec: container_options(spec, owner="dgx-01")),
    "Marathon": ("marathon", False, marathon_app),
    "Marathon, GPUs": ("marathon", True, marathon_app),
    "Metronome": ("metronome", False, metronome_of),
    "Metronome, GPUs": ("metronome", True, metronome_of),
    "Chronos": ("chronos", False, chronos_of),
    "Chronos, GPUs": ("chronos", True, chronos_of),
}
# Of clusters: the kind, and whether the job has an image.
CLUSTERS = {
    "Slurm": (ClusterKind.SLURM, True),
    "Slurm, no image": (ClusterKind.SLURM, False),
    "Ray": (ClusterKind.RAY, True),
    "Ray, no image": (ClusterKind.RAY, False),
    "Kubernetes": (ClusterKind.KUBERNETES, True),
}


def documented() -> dict[str, dict[str, str]]:
    """The tables of the documentation: their cells by field and column."""
    cells: dict[str, dict[str, str]] = {}
    for text in DOCS.read_text().split("<!-- fields -->\n")[1:]:
        lines = text.partition("\n\n")[0].splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        columns = rows[0][1:]
        for row in rows[2:]:
            cells.setdefault(row[0].strip("`"), {}).update(zip(columns, row[1:], strict=True))
    return cells


def spec_with(field: str, *, executor: str, has_gpus: bool) -> AttemptSpec:
    gpus = GPUS if has_gpus else []
    spec = msgspec.structs.replace(SPEC, gpu_uuids=gpus, is_service=executor == "marathon")
    name = field.removeprefix("no ")
    return msgspec.structs.replace(spec, **{name: VALUES[field][0]})


def test_the_table_has_every_field_and_every_executor() -> None:
    table = documented()
    assert (
        table.keys()
        == VALUES.keys()
        == {
            *AttemptSpec.__struct_fields__,
            *("no command", "no image"),
        }
    )
    assert all(list(row) == [*COLUMNS, *CLUSTERS] for row in table.values())


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("field", VALUES)
def test_a_field_is_in_the_request_or_refused_as_documented(field: str, column: str) -> None:
    executor, has_gpus, request = COLUMNS[column]
    has_gpus = has_gpus or (field == "gpu_uuids" and executor == "docker")
    spec = spec_with(field, executor=executor, has_gpus=has_gpus)
    cell = documented()[field][column]
    reason = refusal(executor, spec)
    assert cell.startswith("refused") == bool(reason), reason
    if reason or cell.startswith(MET_ELSEWHERE):
        return
    text = json.dumps(request(spec), default=vars)
    assert re.search(VALUES[field][1], text)
    if field == "no command":
        assert not {"cmd", "command"} & {key for key, value in request(spec).items() if value}
        assert "exec" not in text
    elif field in {"gpu_uuids", "is_service"}:
        other = msgspec.structs.replace(spec, gpu_uuids=GPUS[:0], is_service=not spec.is_service)
        assert text != json.dumps(request(other), default=vars)


@pytest.mark.parametrize("column", CLUSTERS)
@pytest.mark.parametrize("field", VALUES)
def test_a_cluster_refuses_what_is_documented(field: str, column: str) -> None:
    kind, has_image = CLUSTERS[column]
    spec = spec_with(field, executor=kind, has_gpus=False)
    if field == "cluster_options":
        options = {f"{kind}.{name}": "77" for name in OPTIONS[kind]}
        spec = msgspec.structs.replace(spec, cluster_options=options)
    if not has_image and field != "image":
        spec = msgspec.structs.replace(spec, image="")
    reason = refusal(kind, spec)
    assert documented()[field][column].startswith("refused") == bool(reason), reason


@pytest.mark.parametrize("executor", sorted({*ClusterKind, "docker", "simulated", "chronos"}))
@pytest.mark.parametrize("kind", ClusterKind)
def test_options_are_for_clusters_of_their_kind(executor: str, kind: ClusterKind) -> None:
    options = {f"{kind}.{name}": "77" for name in OPTIONS[kind]}
    reason = refusal(executor, msgspec.structs.replace(SPEC, cluster_options=options))
    wanted = f"is no {kind.capitalize()} cluster, for which the job has options."
    assert reason == ("" if executor == kind else f"{executor.capitalize()} {wanted}")


@pytest.mark.parametrize("release", [(1, 4), (1, 8)])
@pytest.mark.parametrize("gpus", [[], GPUS])
def test_ports_whose_names_are_alike_stay_apart(release: tuple[int, ...], gpus: list[str]) -> None:
    ports = [Port(container_port=80, name="Web.1"), Port(container_port=81, name="web_1")]
    spec = msgspec.structs.replace(SPEC, is_service=True, ports=ports, gpu_uuids=gpus)
    app = marathon_app(spec, release)
    assert re.findall(r'"name": "([^"]*)"', json.dumps(app)) == ["web-1", "web-1-81"]
    task = {"state": "TASK_RUNNING", "host": "dgx-01", "ports": [31001, 31002]}
    seen = observe_app("a1", {**app, "tasks": [task]}, None, {})
    assert seen.endpoints == {"web-1": "dgx-01:31001", "web-1-81": "dgx-01:31002"}


def test_metronome_gives_containers_of_docker_a_network_of_their_own() -> None:
    spec = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i")
    assert metronome_of(spec)["run"]["networks"] == [{"mode": "container/bridge"}]
