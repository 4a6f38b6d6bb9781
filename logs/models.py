"""Tables of logs: new lines of appliances, and the files that have older ones and logs of jobs."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from jobqueue.models import LongText

KEY_LENGTH = 64


class LogBatch(Base):
    """Lines that an appliance has sent, until they are in a file.

    `data` is their JSON, an array of `protocol.lines.ApplianceLine`.
    """

    __tablename__ = "log_batches"
    __table_args__ = (
        UniqueConstraint("appliance_id", "key"),
        Index("ix_log_batches_tenant_id_last_ns", "tenant_id", "last_ns"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE")
    )
    appliance_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE")
    )
    key: Mapped[str] = mapped_column(String(KEY_LENGTH))
    received_at: Mapped[datetime] = mapped_column(index=True)
    first_ns: Mapped[int] = mapped_column(BigInteger)
    last_ns: Mapped[int] = mapped_column(BigInteger)
    line_count: Mapped[int]
    size_bytes: Mapped[int]
    data: Mapped[str] = mapped_column(LongText)


class LogFile(Base):
    """A file of lines that can be searched: of appliances, or of the log of one attempt.

    Attributes:
        name: below the folder of logs.
        attempt_id: whose log it has; None for lines of appliances.
        first_ns, last_ns: times of its lines, in nanoseconds since 1970.
    """

    __tablename__ = "log_files"
    __table_args__ = (Index("ix_log_files_tenant_id_last_ns", "tenant_id", "last_ns"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE")
    )
    attempt_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("attempts.id", ondelete="CASCADE"), unique=True
    )
    name: Mapped[str] = mapped_column(String(200))
    first_ns: Mapped[int] = mapped_column(BigInteger)
    last_ns: Mapped[int] = mapped_column(BigInteger)
    line_count: Mapped[int]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
