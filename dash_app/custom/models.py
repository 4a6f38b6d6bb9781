"""Tables of custom dashboards and saved views; those of operators have no tenant."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from dash_app.custom.panels import Panel, load_panels
from tenants.models import User
from tenants.models.audit import Audited
from tenants.models.columns import reference, tenant_column

MAX_NAME_LENGTH = 100
MAX_DESCRIPTION_LENGTH = 500
MAX_ADDRESS_LENGTH = 1000


class CustomDashboard(Base):
    """A dashboard of a user; `panels` are the JSON of `panel_list`."""

    __tablename__ = "dashboards"
    __table_args__ = (UniqueConstraint("tenant_id", "user_id", "name"),)
    audited: ClassVar = Audited(
        kind="dashboard", name="name", fields=("name", "description", "is_shared", "panels")
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION_LENGTH))
    is_shared: Mapped[bool]
    panels: Mapped[list[dict[str, Any]]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    user: Mapped[User | None] = relationship(lazy="joined")

    @property
    def panel_list(self) -> list[Panel]:
        """The dashboard's panels."""
        return load_panels(self.panels)


class SavedView(Base):
    """The address of a dashboard or a report, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("tenant_id", "user_id", "name"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    address: Mapped[str] = mapped_column(String(MAX_ADDRESS_LENGTH))
    is_shared: Mapped[bool]
    is_default: Mapped[bool]
    """True if its user starts with it."""
    created_at: Mapped[datetime]
    user: Mapped[User | None] = relationship(lazy="joined")
