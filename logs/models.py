"""Tables of logs: new lines of appliances, files of lines, and forwarding."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar
from urllib.parse import urlsplit

from sqlalchemy import BigInteger, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from jobqueue.models import LongText
from protocol.lines import LogLevel
from tenants.models import enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference

KEY_LENGTH = 64


class ForwardKind(StrEnum):
    """The protocol of a target of lines."""

    OTLP = "otlp"
    LOKI = "loki"
    ELASTICSEARCH = "elasticsearch"
    SYSLOG = "syslog"


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
    tenant_id: Mapped[str] = reference("tenants.id")
    appliance_id: Mapped[str] = reference("appliances.id")
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
    tenant_id: Mapped[str] = reference("tenants.id")
    attempt_id: Mapped[str | None] = reference("attempts.id", unique=True)
    name: Mapped[str] = mapped_column(String(200))
    first_ns: Mapped[int] = mapped_column(BigInteger)
    last_ns: Mapped[int] = mapped_column(BigInteger)
    line_count: Mapped[int]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class LogForward(Base):
    """Where the lines of a tenant are forwarded to, and how far.

    Attributes:
        token: encrypted; the value of `Authorization`, or a bearer token.
        position: the last batch that was delivered.
        dropped_lines: lines that were dropped because the queue was full.
        refused_lines: lines that the target does not accept.
    """

    __tablename__ = "log_forwards"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="log_forward",
        name="name",
        fields=("name", "kind", "sources", "minimum_level", "is_enabled"),
        # A URL may contain a key.
        secrets={"url": "url", "token": "token"},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[ForwardKind] = mapped_column(enum_column(ForwardKind))
    url: Mapped[str] = mapped_column(String(500))
    token: Mapped[str] = mapped_column(String(1000), default="")
    sources: Mapped[list[str]] = mapped_column(default=list)
    minimum_level: Mapped[LogLevel] = mapped_column(enum_column(LogLevel))
    is_enabled: Mapped[bool] = mapped_column(default=True)
    position: Mapped[str] = mapped_column(String(ID_LENGTH), default="")
    sent_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    refused_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    dropped_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    failures: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str] = mapped_column(Text, default="")
    next_try_at: Mapped[datetime]
    last_sent_at: Mapped[datetime | None]
    created_at: Mapped[datetime]

    @property
    def shown_url(self) -> str:
        """The URL without what may be a secret: scheme and host."""
        url = urlsplit(self.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


class ForwardBatch(Base):
    """Lines of a tenant that wait to be forwarded, in the order of their arrival.

    With a `job_id`, `data` is a part of an attempt's log from `offset`; else the JSON of lines of
    an appliance.
    """

    __tablename__ = "log_forward_batches"
    __table_args__ = (Index("ix_log_forward_batches_tenant_id_id", "tenant_id", "id"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    appliance_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    job_id: Mapped[str] = mapped_column(String(ID_LENGTH), default="")
    attempt_number: Mapped[int] = mapped_column(default=0)
    offset: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime]
    line_count: Mapped[int]
    size_bytes: Mapped[int]
    data: Mapped[str] = mapped_column(LongText)
