"""Tables of what crosses tenants: appliances on offer, and the contracts that grant their use.

The package `marketplace` writes them; placement, the agent API and pages read them. A row of
`Grant` is the only thing that lets jobs of a tenant run on appliances of another one.
"""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import BigInteger, Index, String, false
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base
from core.ids import ID_LENGTH
from core.money import Amount
from tenants.models.columns import reference

MAX_REGION_LENGTH = 100
MAX_OFFER_NAME_LENGTH = 100
MAX_FACTS_LENGTH = 1000
_RENTED = " (rented)"


def rented_name(offer_name: str) -> str:
    """Return how a customer sees an appliance that it rents."""
    return f"{offer_name or 'appliance'}{_RENTED}"


def is_rented_name(name: str) -> bool:
    """Return whether a name is that of a rented appliance, which has no page for its customer."""
    return name.endswith(_RENTED)


class OfferedAppliance(Base):
    """An appliance that an offer covers now, with what the catalogue filters by.

    An appliance is in one published offer at most. `provider_id` is its tenant. `is_open` says that
    the offer's calendar lets jobs start now; free figures and the price are those of the last
    refresh, which `refreshed_at` is of if it changed them.
    """

    __tablename__ = "offered_appliances"
    __table_args__ = (
        Index("ix_offered_appliances_catalogue", "is_open", "gpu_model", "region", "offer_id"),
    )

    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True)
    provider_id: Mapped[str] = reference("tenants.id", index=True)
    offer_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    is_open: Mapped[bool] = mapped_column(default=False, server_default=false())
    region: Mapped[str] = mapped_column(String(MAX_REGION_LENGTH), default="")
    gpu_model: Mapped[str] = mapped_column(String(200), default="")
    gpu_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """Of its smallest GPU."""
    gpu_count: Mapped[int] = mapped_column(default=0)
    free_gpus: Mapped[int] = mapped_column(default=0)
    free_gpu_milli: Mapped[int] = mapped_column(default=0)
    """Thousandths of GPUs that are free, those of slices with whole ones."""
    allows_slices: Mapped[bool] = mapped_column(default=False, server_default=false())
    price: Mapped[Decimal] = mapped_column(Amount)
    """Of a GPU for an hour, at this time of the week, after the discount."""
    availability_percent: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """The promised one; 0 for none."""
    facts: Mapped[str] = mapped_column(String(MAX_FACTS_LENGTH), default="", server_default="")
    """Names of compliance facts that hold now, such as `,gdpr,iso27001,`; "" for none."""
    refreshed_at: Mapped[datetime]


class Grant(Base):
    """What an active contract lets its customer use; its id is that of the contract.

    Attributes:
        tenant_id: the customer.
        provider_id: the tenant whose appliances it uses.
        offer_id: which appliances, by `OfferedAppliance`.
        offer_name: as the customer sees where its jobs run.
        is_open: whether jobs may start under it now.
        price: of a GPU for an hour now, by the contract's terms.
        highest_price: the same, in the most expensive hour of the week.
        max_gpus: that its jobs may have at once; 0 is no limit.
        min_seconds: the shortest time that is charged for an attempt.
        max_seconds: the longest time limit of a job; 0 is no limit.
        availability_percent: the promised one; 0 for none.
        facts: names of compliance facts that hold now, such as `iso27001`.
        reputation: of the provider, 0 to 1.
        placement_factor: what placement divides the price by when it compares offers.
        cancellation_hours: in which what a cancelled reservation had is charged.
        ends_at: when the contract ends and its jobs stop; None while that is open. They also stop
            once the row is gone.
    """

    __tablename__ = "grants"

    contract_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    provider_id: Mapped[str] = reference("tenants.id", index=True)
    offer_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    offer_name: Mapped[str] = mapped_column(String(MAX_OFFER_NAME_LENGTH), default="")
    is_open: Mapped[bool] = mapped_column(default=True)
    price: Mapped[Decimal] = mapped_column(Amount)
    highest_price: Mapped[Decimal] = mapped_column(Amount, default=Decimal(0), server_default="0")
    allows_slices: Mapped[bool] = mapped_column(default=False, server_default=false())
    region: Mapped[str] = mapped_column(String(MAX_REGION_LENGTH), default="")
    facts: Mapped[list[str]] = mapped_column(default=list)
    availability_percent: Mapped[float] = mapped_column(default=0.0)
    max_gpus: Mapped[int] = mapped_column(default=0)
    min_seconds: Mapped[int] = mapped_column(default=0)
    max_seconds: Mapped[int] = mapped_column(default=0)
    reputation: Mapped[float] = mapped_column(default=0.5)
    placement_factor: Mapped[float] = mapped_column(default=1.0, server_default="1")
    cancellation_hours: Mapped[int] = mapped_column(default=0, server_default="0")
    ends_at: Mapped[datetime | None]
    refreshed_at: Mapped[datetime]
