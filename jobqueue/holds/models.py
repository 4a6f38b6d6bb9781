"""The table of holds."""

from datetime import datetime

from sqlalchemy import String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from core.ids import ID_LENGTH
from tenants.models.columns import tenant_column


class JobHold(Base):
    """No job with GPUs that it covers is submitted or started while it exists.

    What makes holds, such as a budget that is spent, is in packages that this one doesn't know.

    Attributes:
        source_id: what it comes from, such as a budget; it has one hold at most.
        project_ids: only jobs of these projects; None for all.
        user_id: only jobs of a user; None for all.
        is_for_rentals: whether own appliances still run its jobs.
        reason: why, as whole sentences with what to do.
    """

    __tablename__ = "job_holds"

    source_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = tenant_column()
    project_ids: Mapped[list[str] | None]
    user_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    is_for_rentals: Mapped[bool] = mapped_column(default=False, server_default=false())
    reason: Mapped[str] = mapped_column(Text)
    held_at: Mapped[datetime]

    def covers(self, *, project_id: str | None, user_id: str | None) -> bool:
        """Return whether it holds the jobs of a user in a project."""
        return (self.project_ids is None or project_id in self.project_ids) and (
            self.user_id is None or self.user_id == user_id
        )
