"""The table of price lists."""

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from tenants.models.audit import Audited
from tenants.models.columns import reference

MAX_WORD_LENGTH = 100
MAX_NOTE_LENGTH = 200
# In place of a tenant: unique constraints compare no NULLs.
DEFAULT_OWNER = "default"


class PriceList(Base):
    """Prices of GPUs from one time to another; what applies, or has applied, never changes.

    Attributes:
        tenant_id: whose appliances; None for the operator's default, which all tenants have that
            have no list of their own at the time.
        owner: the tenant, or `default`.
        number: counts the lists of an owner from 1.
        valid_from: the first hour.
        valid_until: the hour after the last; None until the next list begins.
        prices: `gpu_model`, a word of the model's name or "" for all others, and `price`, of a GPU
            for an hour, as text.
        charged_at: when its hours before its creation were charged; None until then.
        created_by: the email address of a user.
    """

    __tablename__ = "price_lists"
    __table_args__ = (
        UniqueConstraint("owner", "number"),
        UniqueConstraint("owner", "valid_from"),
    )
    audited: ClassVar = Audited(
        kind="price_list",
        name="name",
        fields=("number", "valid_from", "valid_until", "prices", "note"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = reference("tenants.id", index=True)
    owner: Mapped[str] = mapped_column(String(36))
    number: Mapped[int]
    valid_from: Mapped[datetime]
    valid_until: Mapped[datetime | None]
    prices: Mapped[list[dict[str, Any]]]
    note: Mapped[str] = mapped_column(String(MAX_NOTE_LENGTH), default="")
    charged_at: Mapped[datetime | None] = mapped_column(index=True)
    created_by: Mapped[str] = mapped_column(String(254))
    created_at: Mapped[datetime]

    @property
    def name(self) -> str:
        """What the audit log calls it."""
        return f"Price list {self.number}"

    def price_of(self, gpu_model: str) -> Decimal | None:
        """Return the price of the longest word that the model has; None if it has none."""
        model = gpu_model.casefold()
        matching = [row for row in self.prices if row["gpu_model"].casefold() in model]
        if not matching:
            return None
        longest = max(matching, key=lambda row: (len(row["gpu_model"]), row["gpu_model"]))
        return Decimal(longest["price"])
