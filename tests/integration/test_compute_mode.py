"""Compute modes over a driver library without a GPU, in the process that sets them."""

from pathlib import Path

import pytest

from collector.gpu_slices import compute_mode
from collector.gpu_slices.base import SliceError
from collector.gpu_slices.compute_mode import DEFAULT, EXCLUSIVE_PROCESS, switch_compute_mode
from tests.fixtures.nvml import World, nvml_environment

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def world(fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The GPUs that processes of this test see."""
    world = World(tmp_path / "world")
    world.add("scenario dgx")
    for name, value in nvml_environment(fake_nvml, world.path).items():
        monkeypatch.setenv(name, value)
    return world


def test_a_mode_is_set_and_put_back(world: World) -> None:
    before = switch_compute_mode(GPU, EXCLUSIVE_PROCESS)

    assert before == DEFAULT
    assert switch_compute_mode(GPU) == EXCLUSIVE_PROCESS
    assert switch_compute_mode(GPU, before) == EXCLUSIVE_PROCESS
    assert switch_compute_mode(GPU) == DEFAULT
    assert world.path.read_text().count("compute_mode") == 2


def test_a_mode_that_is_set_already_is_left(world: World) -> None:
    world.add("gpu 1 compute_mode 3")

    assert switch_compute_mode(GPU, EXCLUSIVE_PROCESS) == EXCLUSIVE_PROCESS
    assert world.path.read_text().count("compute_mode") == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("refuse nvmlDeviceSetComputeMode 4", "wants the user root"),
        pytest.param(
            "refuse nvmlDeviceSetComputeMode 999", "Unknown Error", marks=pytest.mark.nightly
        ),
        ("gpus 1", "does not list this GPU"),
        pytest.param("gpu 1 error 15", "does not list this GPU", marks=pytest.mark.nightly),
    ],
)
def test_a_driver_that_refuses_says_why(world: World, statement: str, message: str) -> None:
    world.add(statement)

    with pytest.raises(SliceError, match=message):
        switch_compute_mode(GPU, EXCLUSIVE_PROCESS)


def test_a_gpu_without_modes_is_left_as_it_is(world: World) -> None:
    world.add("refuse nvmlDeviceGetComputeMode 3")

    assert switch_compute_mode(GPU, EXCLUSIVE_PROCESS) == DEFAULT


def test_a_driver_that_hangs_holds_up_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_mode, "TIMEOUT_SECONDS", 1)
    world.add("hang nvmlDeviceGetComputeMode")

    with pytest.raises(SliceError, match="within 1 s"):
        switch_compute_mode(GPU, EXCLUSIVE_PROCESS)
