"""Tables of the portal's own certificate authority, and of the certificates that it gave."""

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import tenant_column

SERIAL_LENGTH = 40
FINGERPRINT_LENGTH = 64


class CertificateAuthority(Base):
    """A key that signs agents' certificates; `private_key` is encrypted PEM.

    The newest one that is not retired signs; all that have not run out are trusted.
    """

    __tablename__ = "certificate_authorities"

    id: Mapped[str] = id_column()
    certificate: Mapped[str] = mapped_column(Text)
    private_key: Mapped[str] = mapped_column(Text)
    not_before: Mapped[datetime]
    not_after: Mapped[datetime]
    retired_at: Mapped[datetime | None]


class ApplianceCertificate(Base):
    """A certificate of an agent. `serial` and `fingerprint` (SHA-256) are lower case hex."""

    __tablename__ = "appliance_certificates"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE"), index=True
    )
    authority_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("certificate_authorities.id")
    )
    serial: Mapped[str] = mapped_column(String(SERIAL_LENGTH), unique=True)
    fingerprint: Mapped[str] = mapped_column(String(FINGERPRINT_LENGTH), unique=True)
    not_before: Mapped[datetime]
    not_after: Mapped[datetime] = mapped_column(index=True)
    issued_at: Mapped[datetime]
    replaced_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revocation_reason: Mapped[str] = mapped_column(String(500), default="")
