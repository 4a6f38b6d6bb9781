"""The orders of a tenant's partition policies for the GPUs of an appliance."""

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from sqlalchemy import Text, select, type_coerce
from sqlalchemy.orm import Session

from jobqueue.partitions.mig import place_layout, valid_profiles
from jobqueue.partitions.models import GPUPartitionPolicy
from protocol.gpu_slices import GPUPartition, MIGPlacement, MIGProfile, PartitionMode
from tenants.models import Appliance


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A partition policy; see `GPUPartitionPolicy`."""

    mode: PartitionMode
    gpu_model: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    layout: tuple[str, ...] = ()
    may_change_layout: bool = False
    shares: int = 1


WHOLE = Policy(mode=PartitionMode.WHOLE)


class GPU(msgspec.Struct, frozen=True):
    """A GPU of the inventory, without what policies don't need: that is most of it."""

    uuid: str
    model: str = ""
    memory_bytes: int = 0
    is_mig_capable: bool = False
    is_mig_enabled: bool = False
    mig_profiles: tuple[MIGProfile, ...] = ()


class SharingHardware(msgspec.Struct):
    """The GPUs of an inventory, and the modes in which its agent can share them."""

    gpus: list[GPU] = []
    partition_modes: list[str] = []


def policies_of(session: Session, tenant_id: str) -> list[Policy]:
    """Return the partition policies of a tenant, in their order."""
    statement = (
        select(GPUPartitionPolicy)
        .where(GPUPartitionPolicy.tenant_id == tenant_id)
        .order_by(GPUPartitionPolicy.position, GPUPartitionPolicy.id)
    )
    return [policy_from(row) for row in session.scalars(statement)]


def policy_from(row: GPUPartitionPolicy) -> Policy:
    """Return a policy as placement and agents need it."""
    return Policy(
        mode=row.mode,
        gpu_model=row.gpu_model,
        labels=frozenset(row.labels.items()),
        layout=tuple(row.layout),
        may_change_layout=row.may_change_layout,
        shares=row.shares,
    )


def covers(policy: Policy, model: str, labels: frozenset[tuple[str, str]]) -> bool:
    """Return whether a policy covers GPUs of a model on an appliance with some labels."""
    return policy.gpu_model.lower() in model.lower() and policy.labels <= labels


def policy_for(
    policies: Iterable[Policy], model: str, labels: frozenset[tuple[str, str]]
) -> Policy:
    """Return the first policy that covers a GPU of a model; whole GPUs if none does."""
    return next((policy for policy in policies if covers(policy, model, labels)), WHOLE)


def ordered_partitions(session: Session, appliance_id: str) -> list[GPUPartition]:
    """Return how the GPUs of an appliance are to be shared.

    Where no policy says so, only GPUs that are still cut by MIG have an order: they become whole.
    """
    statement = select(
        Appliance.tenant_id, Appliance.labels, type_coerce(Appliance.inventory, Text)
    ).where(Appliance.id == appliance_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        return []
    policies, hardware = policies_of(session, row.tenant_id), sharing_hardware(row[2])
    if not hardware.partition_modes:
        return []
    return [
        GPUPartition(
            gpu_uuid=gpu.uuid,
            mode=policy.mode,
            layout=list(placed_layout(policy, valid_profiles(gpu.mig_profiles))),
        )
        for gpu in hardware.gpus
        if policies or gpu.is_mig_enabled
        for policy in [policy_for(policies, gpu.model, frozenset(row.labels.items()))]
    ]


@lru_cache(1000)
def placed_layout(policy: Policy, profiles: tuple[MIGProfile, ...]) -> tuple[MIGPlacement, ...]:
    """Return where the instances of a policy's layout are; none if it has none that fits."""
    if policy.mode is not PartitionMode.MIG:
        return ()
    return tuple(place_layout(profiles, policy.layout) or ())


def sharing_hardware(inventory: str) -> SharingHardware:
    """Return what an inventory says of GPUs; nothing if it is invalid."""
    try:
        return msgspec.json.decode(inventory, type=SharingHardware)
    except msgspec.ValidationError:
        return SharingHardware()
