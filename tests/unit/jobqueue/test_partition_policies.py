"""Partition policies: their order, what they cover, and what is refused with what would work."""

# ruff: noqa: ANN401 - builders pass any field on

from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.partitions.checks import MAX_POLICIES, PolicyRequest
from jobqueue.partitions.fleet import Coverage, coverages, read_fleet
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.orders import ordered_partitions, policy_from
from jobqueue.partitions.service import (
    coverage_of,
    create_policy,
    delete_policy,
    list_policies,
    move_policy,
    preview_policy,
    summary_of,
    update_policy,
)
from protocol.gpu_slices import PartitionMode
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.models import Appliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, gpu_uuid, start
from tests.unit.jobqueue.mig_gpus import H100_PROFILES, mig_gpus

ALL_MODES = ["mig", "mps", "time_slicing"]
L4 = {"model": "NVIDIA L4", "memory_bytes": 24 * 1024**3}


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    """An appliance with two H100, of which the driver offers MIG."""
    return add_appliance(
        session, cast.acme, "dgx-01", gpus=mig_gpus("dgx-01", 2), partition_modes=ALL_MODES
    )


def request(name: str = "Shared", **changes: Any) -> PolicyRequest:
    return PolicyRequest(**({"name": name, "mode": PartitionMode.MIG} | changes))


def add(session: Session, cast: Cast, *args: str, **changes: Any) -> GPUPartitionPolicy:
    return create_policy(session, scope_of(cast.alice), request(*args, **changes), now=NOON)


def preview(session: Session, cast: Cast, **changes: Any) -> Coverage:
    return preview_policy(session, scope_of(cast.alice), request(**changes))


def errors_of(session: Session, cast: Cast, **changes: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as caught:
        add(session, cast, **changes)
    return dict(caught.value.errors)


def names(session: Session, cast: Cast) -> list[tuple[int, str]]:
    page = list_policies(session, scope_of(cast.bob))
    return [(policy.position, policy.name) for policy in page.items]


def test_a_new_policy_comes_last_or_where_it_is_put(session: Session, cast: Cast) -> None:
    add(session, cast, "a")
    add(session, cast, "b")
    add(session, cast, "first", position=1)
    assert names(session, cast) == [(1, "first"), (2, "a"), (3, "b")]


def test_policies_are_moved_and_those_after_a_deleted_one_follow(
    session: Session, cast: Cast
) -> None:
    policies = [add(session, cast, name) for name in "abc"]
    move_policy(session, scope_of(cast.alice), policies[2].id, 1)
    assert names(session, cast) == [(1, "c"), (2, "a"), (3, "b")]
    move_policy(session, scope_of(cast.alice), policies[0].id, 9)
    assert names(session, cast) == [(1, "c"), (2, "b"), (3, "a")]
    delete_policy(session, scope_of(cast.alice), policies[2].id)
    assert names(session, cast) == [(1, "b"), (2, "a")]


def test_a_change_without_a_position_stays_in_its_place(session: Session, cast: Cast) -> None:
    first = add(session, cast, "a")
    add(session, cast, "b")
    update_policy(session, scope_of(cast.alice), first.id, request("a2"))
    assert names(session, cast) == [(1, "a2"), (2, "b")]


def test_members_and_other_tenants_change_nothing(session: Session, cast: Cast) -> None:
    policy = add(session, cast)
    with pytest.raises(ForbiddenError):
        create_policy(session, scope_of(cast.bob), request("x"), now=NOON)
    with pytest.raises(NotFoundError):
        update_policy(session, scope_of(cast.charlie), policy.id, request("x"))
    with pytest.raises(NotFoundError):
        delete_policy(session, scope_of(cast.charlie), policy.id)
    assert list_policies(session, scope_of(cast.charlie)).total == 0
    # Another tenant may use the same name, and its policies have an order of their own.
    own = create_policy(session, scope_of(cast.charlie), request(), now=NOON)
    assert own.position == 1


def test_the_agents_of_covered_gpus_get_their_orders(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    other = add_appliance(session, cast.acme, "cpu-01", gpus=[])
    before = (dgx.desired_generation, other.desired_generation)
    policy = add(session, cast, layout=["3g.40gb", "3g.40gb"])
    session.expire_all()
    assert (dgx.desired_generation, other.desired_generation) == (before[0] + 1, before[1])
    orders = ordered_partitions(session, dgx.id)
    assert [order.mode for order in orders] == [PartitionMode.MIG] * 2
    assert [(part.profile, part.start) for part in orders[0].layout] == [
        ("3g.40gb", 0),
        ("3g.40gb", 4),
    ]
    delete_policy(session, scope_of(cast.alice), policy.id)
    session.expire_all()
    assert dgx.desired_generation == before[0] + 2
    assert ordered_partitions(session, dgx.id) == []


def test_the_effect_names_appliances_and_busy_gpus(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=3)
    appliance = session.get_one(Appliance, attempt.appliance_id)
    appliance.inventory = {**appliance.inventory, "partition_modes": ALL_MODES}
    add_appliance(session, cast.acme, "dgx-02", partition_modes=ALL_MODES)
    coverage = preview(session, cast, mode=PartitionMode.MPS, shares=4)
    assert (coverage.gpus, coverage.busy_gpus, coverage.warnings) == (16, 3, [])
    assert coverage.text == (
        "Covers 16 GPUs on 2 appliances: dgx-01, dgx-02; 3 are busy and change once idle."
    )
    policy = add(session, cast, mode=PartitionMode.MPS, shares=4)
    # It applies already, so nothing changes any more.
    [saved] = coverage_of(session, [policy]).values()
    assert (saved.gpus, saved.busy_gpus) == (16, 0)
    changed = preview_policy(
        session,
        scope_of(cast.alice),
        request(mode=PartitionMode.MPS, shares=8),
        policy_id=policy.id,
    )
    assert changed.busy_gpus == 3


@pytest.mark.usefixtures("dgx")
def test_gpus_that_have_not_switched_to_mig_yet_are_busy(session: Session, cast: Cast) -> None:
    policy = add(session, cast, mode=PartitionMode.MIG)
    in_use = {gpu_uuid("dgx-01", 0)}
    fleet = read_fleet(session, cast.acme.id)
    [coverage] = coverages(fleet, [policy_from(policy)], in_use)
    assert coverage.busy_gpus == 1


@pytest.mark.usefixtures("dgx")
def test_a_policy_before_another_leaves_it_no_gpus(session: Session, cast: Cast) -> None:
    add(session, cast, "all")
    coverage = preview(session, cast, gpu_model="h100")
    assert coverage.gpus == 0
    assert coverage.warnings == ["Policies before it cover all of its GPUs. Move it up."]
    assert preview(session, cast, gpu_model="h100", position=1).gpus == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu_model": "H10O"}, "There are: NVIDIA H100 80GB HBM3."),
        ({"labels": {"rack": "9"}}, "No appliance with these labels has such GPUs."),
    ],
)
@pytest.mark.usefixtures("dgx")
def test_a_policy_that_covers_nothing_says_why(
    session: Session, cast: Cast, changes: dict[str, Any], words: str
) -> None:
    [warning] = preview(session, cast, **changes).warnings
    assert words in warning


def test_agents_that_know_no_slices_are_a_warning(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "old-01")
    sharing = {"mode": PartitionMode.MPS, "shares": 2}
    assert preview(session, cast, **sharing).warnings == [
        "No agent of these appliances can share GPUs by MPS. Update the agents."
    ]
    add_appliance(session, cast.acme, "new-01", partition_modes=["mps"])
    assert preview(session, cast, **sharing).warnings == [
        "The agents of old-01 can't share GPUs by MPS. Update them."
    ]
    assert preview(session, cast, mode=PartitionMode.WHOLE).warnings == []


@pytest.mark.usefixtures("dgx")
def test_an_unknown_profile_is_refused_with_those_that_the_gpus_offer(
    session: Session, cast: Cast
) -> None:
    [error] = errors_of(session, cast, layout=["1g.9gb"])["layout"]
    assert all(profile.name in error for profile in H100_PROFILES)
    assert error.endswith("The nearest is 1g.10gb.")


@pytest.mark.usefixtures("dgx")
def test_a_layout_that_does_not_fit_is_refused_with_the_nearest_that_does(
    session: Session, cast: Cast
) -> None:
    [error] = errors_of(session, cast, layout=["3g.40gb", "3g.40gb", "1g.10gb"])["layout"]
    assert "they need 9 of 8 slots" in error
    assert error.endswith("The nearest that fits: 3g.40gb, 3g.40gb.")


@pytest.mark.usefixtures("dgx")
def test_mig_on_gpus_without_it_is_refused_or_a_warning(session: Session, cast: Cast) -> None:
    gpu = {"index": 0, "uuid": "GPU-l4", **L4}
    add_appliance(session, cast.acme, "edge-01", gpus=[gpu], partition_modes=ALL_MODES)
    [error] = errors_of(session, cast, gpu_model="L4")["mode"]
    assert error == (
        "NVIDIA L4 can't use MIG. Choose MPS or time slicing, or name a model with MIG: "
        "NVIDIA H100 80GB HBM3."
    )
    assert preview(session, cast).warnings == [
        "1 GPU of the model NVIDIA L4 can't use MIG and stay whole."
    ]


def test_profiles_that_are_not_known_yet_are_a_warning(session: Session, cast: Cast) -> None:
    gpus = [{**gpu, "mig_profiles": []} for gpu in mig_gpus("dgx-01", 1)]
    add_appliance(session, cast.acme, "dgx-01", gpus=gpus, partition_modes=ALL_MODES)
    [warning] = preview(session, cast, layout=["5g.40gb"]).warnings
    assert "known, and the layout checked, once MIG is on" in warning


@pytest.mark.usefixtures("dgx")
def test_profiles_of_another_gpu_of_the_model_are_known(session: Session, cast: Cast) -> None:
    gpus = [{**gpu, "mig_profiles": []} for gpu in mig_gpus("dgx-02", 1)]
    labels = {"pool": "new"}
    appliance = add_appliance(session, cast.acme, "dgx-02", gpus=gpus, partition_modes=ALL_MODES)
    appliance.labels = labels
    session.flush()
    assert preview(session, cast, labels=labels, layout=["7g.80gb"]).warnings == []
    [error] = errors_of(session, cast, labels=labels, layout=["5g.40gb"])["layout"]
    assert error.endswith("The nearest is 7g.80gb.")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"gpu_model": "x" * 101}, "gpu_model"),
        ({"labels": {"not a key": "x"}}, "labels"),
        ({"mode": PartitionMode.MPS, "shares": 0}, "shares"),
        ({"mode": PartitionMode.MPS, "shares": 49}, "shares"),
        ({"mode": PartitionMode.MIG, "shares": 2}, "shares"),
        ({"mode": PartitionMode.WHOLE, "shares": 2}, "shares"),
        ({"mode": PartitionMode.MPS, "layout": ["1g.10gb"]}, "layout"),
        ({"layout": ["1g.10gb"] * 17}, "layout"),
        ({"may_change_layout": True}, "may_change_layout"),
        ({"mode": PartitionMode.MPS, "may_change_layout": True}, "may_change_layout"),
        ({"position": 0}, "position"),
    ],
)
def test_invalid_fields_are_named(
    session: Session, cast: Cast, changes: dict[str, Any], field: str
) -> None:
    assert list(errors_of(session, cast, **changes)) == [field]


def test_names_are_unique_whatever_their_case(session: Session, cast: Cast) -> None:
    policy = add(session, cast, "Shared")
    assert "already exists" in errors_of(session, cast, name="SHARED")["name"][0]
    update_policy(session, scope_of(cast.alice), policy.id, request("shared"))
    assert names(session, cast) == [(1, "shared")]


def test_a_tenant_has_a_limited_number(session: Session, cast: Cast) -> None:
    session.add_all(
        GPUPartitionPolicy(
            tenant_id=cast.acme.id,
            name=str(number),
            position=number,
            mode=PartitionMode.WHOLE,
            created_at=NOON,
        )
        for number in range(1, MAX_POLICIES + 1)
    )
    session.flush()
    with pytest.raises(ConflictError, match="Delete one first"):
        add(session, cast)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mode": PartitionMode.WHOLE}, "whole GPUs"),
        ({}, "MIG on demand"),
        ({"layout": ["3g.40gb", "1g.10gb", "1g.10gb"]}, "MIG: 3g.40gb, 2 x 1g.10gb"),
        (
            {"layout": ["7g.80gb"], "may_change_layout": True},
            "MIG: 7g.80gb; may change",
        ),
        ({"mode": PartitionMode.MPS, "shares": 4}, "MPS, 4 shares"),
        ({"mode": PartitionMode.TIME_SLICING, "shares": 1}, "time slicing, 1 share"),
    ],
)
def test_a_mode_is_summarized(
    session: Session, cast: Cast, changes: dict[str, Any], text: str
) -> None:
    assert summary_of(add(session, cast, **changes)) == text


def test_an_appliance_with_other_labels_fetches_its_orders(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    before = dgx.desired_generation
    add(session, cast, labels={"pool": "notebooks"})
    change_appliance(
        session,
        scope_of(cast.alice),
        dgx.id,
        ApplianceChanges(labels={"pool": "notebooks"}),
        now=NOON,
    )
    session.refresh(dgx)
    assert dgx.desired_generation == before + 1
    assert len(ordered_partitions(session, dgx.id)) == 2
