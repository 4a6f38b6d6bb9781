"""Table of saved reports, with the schedules on which they are emailed."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from dash_app.reports.report import FileFormat, ReportBy, ReportKind
from tenants.models import User, enum_column
from tenants.models.audit import Audited
from tenants.models.columns import tenant_column, user_column

MAX_NAME_LENGTH = 100
MAX_FILTER_LENGTH = 200


class ReportPeriod(StrEnum):
    """A period of whole days before today, in the time zone of a saved report."""

    YESTERDAY = "yesterday"
    LAST_7_DAYS = "last-7-days"
    LAST_30_DAYS = "last-30-days"
    LAST_90_DAYS = "last-90-days"
    LAST_WEEK = "last-week"
    LAST_MONTH = "last-month"


class SavedReport(Base):
    """A report with a name: what it reports, and when and to whom it is emailed.

    `recipients` are the ids of users of the tenant; without a `schedule` nothing is emailed.
    """

    __tablename__ = "saved_reports"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="saved_report",
        name="name",
        fields=(
            "name",
            "kind",
            "by",
            "period",
            "time_zone",
            "appliances",
            "price_per_kilowatt_hour",
            "target_percent",
            "schedule",
            "file_format",
            "recipients",
            "is_enabled",
        ),
        verbs={"is_enabled": ("resumed", "paused"), "name": ("renamed", "renamed")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    user_id: Mapped[str] = user_column()
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    kind: Mapped[ReportKind] = mapped_column(enum_column(ReportKind))
    by: Mapped[ReportBy] = mapped_column(enum_column(ReportBy))
    period: Mapped[ReportPeriod] = mapped_column(enum_column(ReportPeriod))
    time_zone: Mapped[str] = mapped_column(String(64))
    appliances: Mapped[str] = mapped_column(String(MAX_FILTER_LENGTH))
    price_per_kilowatt_hour: Mapped[float]
    target_percent: Mapped[float]
    schedule: Mapped[str] = mapped_column(String(200))
    file_format: Mapped[FileFormat] = mapped_column(enum_column(FileFormat))
    recipients: Mapped[list[str]] = mapped_column(default=list)
    is_enabled: Mapped[bool]
    next_run_at: Mapped[datetime | None] = mapped_column(index=True)
    last_run_at: Mapped[datetime | None]
    last_error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    user: Mapped[User] = relationship(lazy="joined")
