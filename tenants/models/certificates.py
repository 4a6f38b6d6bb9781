"""Tables of the portal's certificate authority and agents' certificates."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.audit import Audited
from tenants.models.columns import BigNumber, reference, tenant_column

SERIAL_LENGTH = 40
FINGERPRINT_LENGTH = 64


class CertificateAuthority(Base):
    """A key that signs agents' certificates; `private_key` is encrypted PEM.

    It signs from `not_before` until it is retired, and is trusted until `not_after`.
    """

    __tablename__ = "certificate_authorities"
    audited: ClassVar = Audited(
        kind="authority",
        name="id",
        fields=("not_before", "not_after", "retired_at"),
        verbs={"retired_at": ("retired", "reinstated")},
    )

    id: Mapped[str] = id_column()
    certificate: Mapped[str] = mapped_column(Text)
    private_key: Mapped[str] = mapped_column(Text)
    not_before: Mapped[datetime]
    not_after: Mapped[datetime]
    retired_at: Mapped[datetime | None]


class ApplianceCertificate(Base):
    """A certificate of an agent. `serial` and `fingerprint` (SHA-256) are lower case hex.

    A new certificate replaces the others of its appliance when it is first used, not before: its
    agent may not have received it.
    """

    __tablename__ = "appliance_certificates"
    audited: ClassVar = Audited(
        kind="certificate",
        name="serial",
        fields=(
            "appliance_id",
            "fingerprint",
            "not_before",
            "not_after",
            "revoked_at",
            "revocation_reason",
        ),
        verbs={"revoked_at": ("revoked", "restored")},
        created="issued",
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = reference("appliances.id", index=True)
    authority_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("certificate_authorities.id")
    )
    serial: Mapped[str] = mapped_column(String(SERIAL_LENGTH), unique=True)
    fingerprint: Mapped[str] = mapped_column(String(FINGERPRINT_LENGTH), unique=True)
    not_before: Mapped[datetime]
    not_after: Mapped[datetime] = mapped_column(index=True)
    issued_at: Mapped[datetime]
    first_used_at: Mapped[datetime | None]
    replaced_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revocation_reason: Mapped[str] = mapped_column(String(500), default="")


class AgentRegistryRevision(Base):
    """Increases when an agent is blocked: the agent API then reads its registry again."""

    __tablename__ = "agent_registry_revisions"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    number: Mapped[int] = mapped_column(BigNumber)
