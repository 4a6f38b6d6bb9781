"""The table of images in the private registry."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from tenants.models.columns import exact_text, tenant_column


class Image(Base):
    """A tag of a repository, as it was when it was pushed last; sizes are compressed.

    A shared image has no tenant. `layers` have `digest` and `size_bytes`, the lowest first.
    """

    __tablename__ = "images"
    __table_args__ = (UniqueConstraint("repository", "tag"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    repository: Mapped[str] = mapped_column(String(255))
    tag: Mapped[str] = mapped_column(exact_text(128))
    digest: Mapped[str] = mapped_column(String(100))
    media_type: Mapped[str] = mapped_column(String(100))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    layers: Mapped[list[dict[str, Any]]]
    pushed_by: Mapped[str] = mapped_column(String(254), default="")
    pushed_at: Mapped[datetime]
