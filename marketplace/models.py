"""Tables of accounts, offers and contracts.

Contracts outlive their tenants, as statements of the other side refer to them: their tenants are no
foreign keys, and their names are copied.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from marketplace.states import (
    AccountState,
    ContractState,
    Listing,
    OfferState,
    Side,
    VersionState,
)
from marketplace.terms import Terms, decoded
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference, tenant_column
from tenants.models.rentals import MAX_OFFER_NAME_LENGTH
from tenants.models.users import NAME_LENGTH

MAX_DESCRIPTION_LENGTH = 2000
HASH_LENGTH = 64
# Of a provider without evidence, see `marketplace.reputation.beta.PRIOR`.
INITIAL_REPUTATION, INITIAL_LOW, INITIAL_HIGH = 0.7236, 0.1354, 0.8646


class Account(Base):
    """A tenant on the marketplace: what it is admitted to, and whom its invoices are made out to.

    `tax_percent` and `fee_percent` are None for the settings of the portal. `public_name` is what
    others see; `is_prepaid` customers rent as long as their credit lasts.
    """

    __tablename__ = "market_accounts"
    audited: ClassVar = Audited(
        kind="market_account",
        name="public_name",
        fields=(
            *("public_name", "description", "provider_state", "customer_state"),
            *("legal_name", "address", "country", "tax_number", "billing_email"),
            *("tax_percent", "fee_percent", "is_prepaid"),
        ),
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    public_name: Mapped[str] = mapped_column(String(NAME_LENGTH), default="")
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION_LENGTH), default="")
    provider_state: Mapped[AccountState] = mapped_column(
        enum_column(AccountState), default=AccountState.NONE
    )
    customer_state: Mapped[AccountState] = mapped_column(
        enum_column(AccountState), default=AccountState.NONE
    )
    legal_name: Mapped[str] = mapped_column(String(NAME_LENGTH), default="")
    address: Mapped[str] = mapped_column(String(500), default="")
    country: Mapped[str] = mapped_column(String(2), default="")
    tax_number: Mapped[str] = mapped_column(String(50), default="")
    billing_email: Mapped[str] = mapped_column(String(254), default="")
    tax_percent: Mapped[Decimal | None] = mapped_column(Amount)
    fee_percent: Mapped[Decimal | None] = mapped_column(Amount)
    is_prepaid: Mapped[bool] = mapped_column(default=False)
    reputation: Mapped[float] = mapped_column(default=INITIAL_REPUTATION, server_default="0.5")
    """What a provider is ranked by, 0 to 1; `marketplace.reputation` writes it and those below."""
    reputation_mean: Mapped[float] = mapped_column(default=0.5, server_default="0.5")
    """The expected figure of the provider, 0 to 1."""
    reputation_low: Mapped[float] = mapped_column(default=INITIAL_LOW, server_default="0.1354")
    """It is above this, and below the next, with a probability of 90 %."""
    reputation_high: Mapped[float] = mapped_column(default=INITIAL_HIGH, server_default="0.8646")
    listing: Mapped[Listing] = mapped_column(
        enum_column(Listing), default=Listing.NORMAL, server_default=Listing.NORMAL.value
    )
    placement_factor: Mapped[float] = mapped_column(default=1.0, server_default="1")
    """What placement divides its prices by when it compares offers."""
    max_contract_gpus: Mapped[int] = mapped_column(default=0, server_default="0")
    """That jobs of a contract with it may have at once; 0 is any."""
    updated_at: Mapped[datetime]


class Offer(Base):
    """What a provider lets others use: appliances by id or label, under its terms.

    Attributes:
        appliance_ids: of its appliances; with `labels` empty, only those.
        labels: of other appliances that it covers; all must match.
        calendar: when jobs may start, see `marketplace.offers.calendar`; empty is always.
        needs_approval: whether the provider accepts each contract itself.
        terms: `marketplace.terms.Terms` as JSON.
    """

    __tablename__ = "offers"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="offer",
        name="name",
        fields=(
            *("name", "description", "state", "appliance_ids", "labels", "calendar"),
            *("needs_approval", "terms"),
        ),
        verbs={"state": ("state_changed", "state_changed")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(MAX_OFFER_NAME_LENGTH))
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION_LENGTH), default="")
    state: Mapped[OfferState] = mapped_column(enum_column(OfferState), default=OfferState.DRAFT)
    appliance_ids: Mapped[list[str]] = mapped_column(default=list)
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    calendar: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    needs_approval: Mapped[bool] = mapped_column(default=False)
    terms: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    @property
    def decoded_terms(self) -> Terms:
        """Its terms."""
        return decoded(self.terms)


class Contract(Base):
    """An agreement of a provider and a customer about an offer.

    `noticed_by` gave notice at `noticed_at`; it ends at `ends_at`, also where its term is fixed.
    While its terms can't be read, its use since `uncharged_since` has no billing lines.
    """

    __tablename__ = "contracts"
    audited: ClassVar = Audited(
        kind="contract",
        name="offer_name",
        fields=("state", "offer_id", "starts_at", "ends_at", "noticed_at", "noticed_by"),
        verbs={"state": ("state_changed", "state_changed")},
    )

    id: Mapped[str] = id_column()
    offer_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    offer_name: Mapped[str] = mapped_column(String(MAX_OFFER_NAME_LENGTH))
    provider_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    provider_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    customer_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    customer_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    state: Mapped[ContractState] = mapped_column(enum_column(ContractState), index=True)
    created_at: Mapped[datetime]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    noticed_at: Mapped[datetime | None]
    noticed_by: Mapped[Side | None] = mapped_column(enum_column(Side))
    uncharged_since: Mapped[datetime | None]
    versions: Mapped[list["ContractVersion"]] = relationship(
        back_populates="contract", order_by="ContractVersion.number", lazy="selectin"
    )

    def terms_at(self, at: datetime) -> Terms | None:
        """Return the terms that apply at a time; None before the first accepted version."""
        applying = [
            version
            for version in self.versions
            if version.applies_from is not None and version.applies_from <= at
        ]
        return applying[-1].decoded_terms if applying else None


class ContractVersion(Base):
    """A version of a contract's terms, by whom it was proposed and accepted.

    Terms and hash never change. `applies_from` is set when it is accepted: from then on until the
    next accepted version, prices and promises are its own.
    """

    __tablename__ = "contract_versions"
    __table_args__ = (UniqueConstraint("contract_id", "number"),)
    audited: ClassVar = Audited(
        kind="contract_version",
        name="terms_hash",
        fields=("state", "number", "terms_hash", "contract_id", "accepted_by", "applies_from"),
        verbs={"state": ("state_changed", "state_changed")},
    )

    id: Mapped[str] = id_column()
    contract_id: Mapped[str] = reference("contracts.id")
    number: Mapped[int]
    state: Mapped[VersionState] = mapped_column(enum_column(VersionState))
    terms: Mapped[dict[str, Any]]
    terms_hash: Mapped[str] = mapped_column(String(HASH_LENGTH))
    note: Mapped[str] = mapped_column(Text, default="")
    proposed_side: Mapped[Side] = mapped_column(enum_column(Side))
    proposed_by: Mapped[str] = mapped_column(String(254))
    """The email address of a user: users may be deleted, agreements may not."""
    proposed_at: Mapped[datetime]
    accepted_by: Mapped[str] = mapped_column(String(254), default="")
    accepted_at: Mapped[datetime | None]
    applies_from: Mapped[datetime | None]
    contract: Mapped[Contract] = relationship(back_populates="versions")

    @property
    def decoded_terms(self) -> Terms:
        """Its terms."""
        return decoded(self.terms)
