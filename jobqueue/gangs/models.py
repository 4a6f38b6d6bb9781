"""The table of gangs' private networks."""

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from core.ids import ID_LENGTH
from tenants.models.columns import reference


class GangNetworkRecord(Base):
    """The number of a gang's network, which no other gang has at the same time."""

    __tablename__ = "gang_networks"

    gang_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    vni: Mapped[int] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    released_at: Mapped[datetime | None]
    """When it was seen without members; nobody else gets its number for a time after that."""
