"""Requests for a part of a GPU: what goes together, and what the tenant's GPUs can't offer."""

# ruff: noqa: ANN401 - builders pass any field on

from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.models import Job
from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.service import create_policy
from protocol.gpu_slices import PartitionMode
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, submit
from tests.unit.jobqueue.mig_gpus import mig_gpus


def cut(session: Session, cast: Cast, **changes: Any) -> None:
    """Add an appliance with two H100, shared by a policy."""
    add_appliance(
        session,
        cast.acme,
        "dgx-01",
        gpus=mig_gpus("dgx-01", 2, is_enabled=True),
        partition_modes=["mig", "mps", "time_slicing"],
    )
    fields = {"name": "Shared", "mode": PartitionMode.MIG} | changes
    create_policy(session, scope_of(cast.alice), PolicyRequest(**fields), now=NOON)


def errors_of(session: Session, cast: Cast, **fields: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, **fields)
    return dict(caught.value.errors)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"gpus": 1, "gpu_slice": "1g.10gb"}, "gpu_slice"),
        ({"gpus": 1, "gpu_compute": 0.5}, "gpu_compute"),
        ({"gpu_slice": "1g.10gb", "gpu_memory_bytes": GIB}, "gpu_slice"),
        ({"gpu_slice": "1g.10gb", "gpu_compute": 0.1}, "gpu_slice"),
        ({"nodes": 2, "gpu_memory_bytes": GIB}, "nodes"),
        ({"idle_gpu_percent": 5, "idle_gpu_seconds": 3600}, "idle_gpu_percent"),
    ],
)
def test_fields_that_do_not_go_together_are_named(
    session: Session, cast: Cast, fields: dict[str, Any], named: str
) -> None:
    assert list(errors_of(session, cast, **fields)) == [named]


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_memory_bytes": 8 * GIB},
        {"gpu_memory_bytes": 8 * GIB, "gpu_compute": 0.25, "gpu_models": ["H100"]},
        {"gpu_compute": 1.0},
        {"gpu_slice": "1g.10gb"},
        {"gpu_memory_bytes": GIB, "idle_gpu_percent": 5, "idle_gpu_seconds": 3600},
        {"gpu_memory_bytes": GIB, "array": "0-3"},
    ],
)
def test_parts_of_gpus_are_requested_without_gpus(
    session: Session, cast: Cast, fields: dict[str, Any]
) -> None:
    cut(session, cast)
    job: Job = submit(session, cast.alice, **fields)
    assert job.gpus == 0
    assert [getattr(job, name) for name in fields if name != "array"] == [
        value for name, value in fields.items() if name != "array"
    ]


def test_memory_without_slices_is_that_of_a_whole_gpu(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    assert submit(session, cast.alice, gpu_memory_bytes=80 * GIB).gpus == 0
    assert errors_of(session, cast, gpu_memory_bytes=81 * GIB) == {
        "gpu_memory_bytes": ["81 GiB requested; the most available is 80 GiB."]
    }


def test_an_unknown_profile_is_refused_with_the_nearest(session: Session, cast: Cast) -> None:
    cut(session, cast)
    [error] = errors_of(session, cast, gpu_slice="1g.12gb")["gpu_slice"]
    assert error == (
        "No GPU offers the MIG profile '1g.12gb'. Choose from 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, "
        "4g.40gb, 7g.80gb. The nearest is 1g.20gb."
    )


def test_a_profile_that_a_fixed_layout_lacks_is_refused(session: Session, cast: Cast) -> None:
    cut(session, cast, layout=["3g.40gb", "1g.10gb"])
    [error] = errors_of(session, cast, gpu_slice="2g.20gb")["gpu_slice"]
    assert error.endswith("Choose from 1g.10gb, 3g.40gb. The nearest is 3g.40gb.")
    assert submit(session, cast.alice, gpu_slice="3g.40gb")


def test_a_profile_of_a_layout_that_may_change_is_not_refused(session: Session, cast: Cast) -> None:
    cut(session, cast, layout=["3g.40gb"], may_change_layout=True)
    assert submit(session, cast.alice, gpu_slice="2g.20gb")


def test_a_profile_without_mig_is_refused_with_what_works(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    [error] = errors_of(session, cast, gpu_slice="1g.10gb")["gpu_slice"]
    assert error == (
        "No GPU is cut by MIG, so none offers '1g.10gb'. Request gpu_memory_bytes instead, or ask "
        "an admin for a partition policy."
    )


def test_a_slice_larger_than_any_is_refused_with_the_largest(session: Session, cast: Cast) -> None:
    cut(session, cast, layout=["3g.40gb", "1g.10gb"])
    [error] = errors_of(session, cast, gpu_memory_bytes=41 * GIB)["gpu_memory_bytes"]
    assert error == "No slice has 41 GiB of a GPU. The largest is 3g.40gb with 40 GiB."
    [error] = errors_of(session, cast, gpu_compute=0.9)["gpu_compute"]
    assert error.endswith("The largest is 3g.40gb with 40 GiB.")


def test_whole_gpus_are_refused_where_mig_cuts_all(session: Session, cast: Cast) -> None:
    cut(session, cast)
    [error] = errors_of(session, cast, gpus=1)["gpus"]
    assert "at most 0 of an appliance are whole" in error
    assert "gpu_memory_bytes" in error


def test_a_slice_of_shares_needs_no_more_than_the_gpu(session: Session, cast: Cast) -> None:
    cut(session, cast, mode=PartitionMode.MPS, shares=4)
    assert submit(session, cast.alice, gpu_memory_bytes=30 * GIB)
    assert list(errors_of(session, cast, gpu_memory_bytes=90 * GIB)) == ["gpu_memory_bytes"]


def test_a_tenant_without_appliances_may_request_any_slice(session: Session, cast: Cast) -> None:
    assert submit(session, cast.alice, gpu_slice="9g.99gb")
