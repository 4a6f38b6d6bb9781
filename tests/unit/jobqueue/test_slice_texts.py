"""Slices in words."""

import pytest

from jobqueue.partitions.texts import requested_text, slice_text
from protocol.gpu_slices import GPUSlice, PartitionMode
from protocol.job_spec import JobRequest

GIB = 1024**3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "0"),
        ({"gpus": 2, "gpu_memory_bytes": 40 * GIB}, "2"),
        ({"gpu_slice": "1g.10gb"}, "1g.10gb"),
        ({"gpu_memory_bytes": 8 * GIB}, "8 GiB of a GPU"),
        (
            {"gpu_memory_bytes": 8 * GIB, "gpu_compute": 0.25},
            "8 GiB of a GPU with 0.25 of a GPU's multiprocessors",
        ),
    ],
)
def test_what_is_requested_is_a_number_or_a_part(fields: dict[str, object], text: str) -> None:
    assert requested_text(JobRequest(name="x", image="x", **fields)) == text  # type: ignore[arg-type] # its fields


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (
            GPUSlice(
                mode=PartitionMode.MIG,
                gpu_uuid="GPU-1",
                share_milli=500,
                memory_bytes=40 * GIB,
                profile="3g.40gb",
                start=4,
                slots=4,
            ),
            "MIG 3g.40gb with 40 GiB, slots 4 to 7",
        ),
        (
            GPUSlice(
                mode=PartitionMode.MPS,
                gpu_uuid="GPU-1",
                share_milli=333,
                memory_bytes=8 * GIB,
                shares=1,
            ),
            "MPS share of 33.3 % with 8 GiB",
        ),
        (
            GPUSlice(
                mode=PartitionMode.TIME_SLICING,
                gpu_uuid="GPU-1",
                share_milli=250,
                memory_bytes=20 * GIB,
                shares=1,
            ),
            "Time slicing share of 25 %, memory not limited",
        ),
    ],
)
def test_a_slice_names_its_mode_size_and_place(held: GPUSlice, text: str) -> None:
    assert slice_text(held) == text
