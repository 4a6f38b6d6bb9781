"""The table of partition policies."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from protocol.gpu_slices import PartitionMode
from tenants.models import enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference

MAX_NAME_LENGTH = 100
MAX_MODEL_WORD_LENGTH = 100


class GPUPartitionPolicy(Base):
    """How GPUs of a model, on appliances with some labels, are shared; the first that fits counts.

    Attributes:
        position: the order, from 1; GPUs that no policy covers are whole.
        gpu_model: a word of the GPU model; "" for all.
        labels: those that the appliance must have.
        layout: under MIG, the profiles of the instances that stay; none makes them on demand.
        may_change_layout: under MIG, whether a waiting job may change the layout of an idle GPU.
        shares: under MPS and time slicing, into how many a GPU is divided.
    """

    __tablename__ = "gpu_partition_policies"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="gpu_partition_policy",
        name="name",
        fields=(
            *("name", "position", "gpu_model", "labels", "mode"),
            *("layout", "may_change_layout", "shares"),
        ),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    position: Mapped[int] = mapped_column(default=1)
    gpu_model: Mapped[str] = mapped_column(String(MAX_MODEL_WORD_LENGTH), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    mode: Mapped[PartitionMode] = mapped_column(enum_column(PartitionMode))
    layout: Mapped[list[str]] = mapped_column(default=list)
    may_change_layout: Mapped[bool] = mapped_column(default=False)
    shares: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime]
