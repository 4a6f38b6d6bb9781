"""Tables of the appliances' container storage, and of the policies that clean it up."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from tenants.models.audit import Audited
from tenants.models.columns import reference, tenant_column


class ContainerStorage(Base):
    """The last report of an appliance, as a `protocol.storage.StorageReport`.

    `generation` counts the requests of a report; `requested_at` is when a user started a cleanup
    that was not ordered yet. `cleanup` is the result of the last cleanup.
    """

    __tablename__ = "container_storage"

    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True)
    tenant_id: Mapped[str] = tenant_column()
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    reported_at: Mapped[datetime | None]
    cleanup: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    generation: Mapped[int] = mapped_column(default=0)
    requested_at: Mapped[datetime | None]


class CleanupPolicies(Base):
    """The cleanup policies of a tenant by site, `""` for all others; it may have no row."""

    __tablename__ = "cleanup_policies"
    audited: ClassVar = Audited(
        kind="cleanup_policies", name="tenant_id", fields=("policies",), created="changed"
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    policies: Mapped[dict[str, Any]]
