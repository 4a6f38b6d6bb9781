"""AMD GPUs are given to containers by their device files."""

from pathlib import Path

import pytest

from jobqueue.executors.docker.devices import device_nodes
from jobqueue.executors.docker.mapping import container_options
from protocol.attempts import AttemptSpec

SYS = Path(__file__).parents[1] / "plugins/captures/amdgpu/radeon/sys"


def spec(*gpu_uuids: str) -> AttemptSpec:
    return AttemptSpec(
        attempt_id="a", job_id="j", name="train", image="train:1", gpu_uuids=list(gpu_uuids)
    )


def test_a_gpu_is_its_render_node_beside_the_compute_node() -> None:
    uuids = ["AMD-5c88007c1ab6f3d2", "AMD-0000:c2:00.0"]
    assert device_nodes(uuids, sys=SYS) == [
        "/dev/kfd",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
    ]


def test_no_gpu_needs_no_device() -> None:
    assert device_nodes([], sys=SYS) == []


def test_a_gpu_that_is_gone_is_a_file_that_the_engine_does_not_find(tmp_path: Path) -> None:
    assert device_nodes(["AMD-1"], sys=tmp_path) == ["/dev/kfd", "/dev/dri/AMD-1"]


@pytest.mark.parametrize("uuid", ["GPU-1", "MIG-1"])
def test_nvidias_gpus_are_asked_of_nvidias_runtime(uuid: str) -> None:
    options = container_options(spec(uuid), owner="a")
    assert options["device_requests"][0]["DeviceIDs"] == [uuid]
    assert "devices" not in options


def test_amds_gpus_are_not_asked_of_nvidias_runtime() -> None:
    options = container_options(spec("AMD-1"), owner="a")
    assert "device_requests" not in options
    assert options["devices"] == ["/dev/kfd", "/dev/dri/AMD-1"]
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
