"""Tables of what a tenant has set for its jobs."""

from typing import Any, ClassVar

from sqlalchemy import String, false
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import ContainerPolicy
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference

DEFAULT_FETCH_MINUTES = 5


class TenantContainerPolicies(Base):
    """The container policies that a tenant's jobs may use; a tenant may have no row."""

    __tablename__ = "tenant_container_policies"
    audited: ClassVar = Audited(
        kind="container_policies",
        name="tenant_id",
        fields=("allowed", "default"),
        created="changed",
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    allowed: Mapped[list[str]]
    default: Mapped[ContainerPolicy] = mapped_column(enum_column(ContainerPolicy))


class TenantQueueSettings(Base):
    """The settings of a tenant's queue; a tenant may have no row."""

    __tablename__ = "tenant_queue_settings"
    audited: ClassVar = Audited(
        kind="queue_settings",
        name="tenant_id",
        fields=(
            "placement_policy",
            "max_gpus_per_user",
            "max_gpus",
            "allows_preemption",
            "data_roots",
            "job_retention_days",
            "ordering",
            "isolation_between_users",
            "isolation_between_projects",
            "allows_gang_egress",
            "allows_host_network",
            "encrypts_gang_networks",
            "longest_fetch_minutes",
        ),
        created="changed",
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    placement_policy: Mapped[str] = mapped_column(String(32))
    max_gpus_per_user: Mapped[int | None]
    max_gpus: Mapped[int | None]
    allows_preemption: Mapped[bool]
    data_roots: Mapped[list[dict[str, Any]]]
    job_retention_days: Mapped[int | None]
    ordering: Mapped[dict[str, Any] | None]
    """The fields of `jobqueue.fairshare.settings.OrderSettings`; None is the default."""
    isolation_between_users: Mapped[PartitionMode | None] = mapped_column(
        enum_column(PartitionMode)
    )
    """The weakest mode in which jobs of different users share a GPU; see `jobqueue.partitions`."""
    isolation_between_projects: Mapped[PartitionMode | None] = mapped_column(
        enum_column(PartitionMode)
    )
    allows_gang_egress: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether members of gangs with a private network also reach the outside."""
    allows_host_network: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether jobs may use the appliance's network and RDMA devices."""
    encrypts_gang_networks: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether gangs' packets are encrypted within a site, too."""
    longest_fetch_minutes: Mapped[int] = mapped_column(
        default=DEFAULT_FETCH_MINUTES, server_default=str(DEFAULT_FETCH_MINUTES)
    )
    """A job whose data takes longer to fetch waits for it without GPUs."""
