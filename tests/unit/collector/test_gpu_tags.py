"""Readings of GPUs get the tag of their job, and lost GPUs keep their tags."""

from collections.abc import Mapping

import pytest

from collector.reading.plugin_host import add_job_tags, restore_gpu_tags
from plugins.base import GPUTags
from timeseries.points import FieldValue, Point

HOLDERS = {"GPU-0": "job-7"}
TAGS_BY_GPU: GPUTags = {"3": {"uuid": "GPU-3", "model": "NVIDIA H100 80GB HBM3"}}


def point(
    measurement: str = "gpu", fields: Mapping[str, FieldValue] | None = None, **tags: str
) -> Point:
    return Point(measurement, tags, fields or {"lost": 0}, 1)


def jobs(*points: Point) -> list[str | None]:
    return [tagged.tags.get("job") for tagged in add_job_tags(points, HOLDERS)]


@pytest.mark.parametrize("measurement", ["gpu", "gpu_link", "gpu_xid"])
def test_every_reading_of_an_allocated_gpu_has_its_job(measurement: str) -> None:
    held = point(measurement, gpu="0", uuid="GPU-0")
    free = point(measurement, gpu="1", uuid="GPU-1")
    assert jobs(held, free) == ["job-7", None]


def test_slices_of_a_gpu_allocated_as_a_whole_have_its_job() -> None:
    cut = point("gpu_slice", gpu="0", uuid="MIG-0", slice="0")
    other = point("gpu_slice", gpu="1", uuid="MIG-1", slice="0")
    assert jobs(point(gpu="0", uuid="GPU-0"), cut, other) == ["job-7", "job-7", None]


def test_an_allocated_slice_has_its_job_and_its_neighbors_do_not() -> None:
    slices = [point("gpu_slice", gpu="0", uuid=f"MIG-{n}", slice=str(n)) for n in range(2)]
    tagged = add_job_tags([point(gpu="0", uuid="GPU-9"), *slices], {"MIG-1": "job-8"})
    assert [tagged_point.tags.get("job") for tagged_point in tagged] == [None, None, "job-8"]


def test_a_process_outside_of_jobs_has_no_job() -> None:
    assert jobs(point("gpu_process", gpu="0", uuid="GPU-0", owner="host")) == [None]


@pytest.mark.parametrize("tags", [{}, {"uuid": "PCI-0000:5d:00.0", "model": "NVIDIA H100"}])
def test_a_lost_gpu_gets_the_names_that_it_had(tags: dict[str, str]) -> None:
    [restored] = restore_gpu_tags([point(fields={"lost": 1}, gpu="3", **tags)], lambda: TAGS_BY_GPU)
    assert restored.tags == {"gpu": "3", "uuid": "GPU-3", "model": "NVIDIA H100 80GB HBM3"}


def test_a_lost_gpu_that_nobody_knew_stays_as_it_is() -> None:
    lost = point(fields={"lost": 1}, gpu="4", uuid="PCI-0000:5d:00.0")
    assert restore_gpu_tags([lost], lambda: TAGS_BY_GPU) == [lost]


def test_gpus_that_say_their_names_ask_nobody() -> None:
    def nobody() -> GPUTags:
        raise AssertionError("asked for names that are not wanted")

    points = [point(gpu="3", uuid="GPU-4"), point("cpu")]
    assert restore_gpu_tags(points, nobody) == points
