"""The reports of agents about their appliances, parsed once for all readers.

A fleet's reports are megabytes of JSON that rarely change. A cache reads and parses a report again
only when its `report_id` has changed.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sqlalchemy import Text, select, type_coerce
from sqlalchemy.orm import Session

from core.db import chunked
from tenants.models import Appliance

T = TypeVar("T")
MAX_REPORTS = 20_000
"""The capacity of a cache of parsed reports."""


class ReportCache(Generic[T]):
    """Parsed reports of appliances.

    Args:
        parse: from an inventory and a health report as JSON, as they are stored, to what its
            readers need; they must not change it.
        max_reports: how many stay parsed.
    """

    def __init__(
        self, parse: Callable[[str, str | None], T], *, max_reports: int = MAX_REPORTS
    ) -> None:
        self._parse = parse
        self._max_reports = max_reports
        # By appliance, with the id of the report. Threads may parse one twice.
        self._parsed: dict[str, tuple[str, T]] = {}

    def read(self, session: Session, report_ids: Mapping[str, str | None]) -> dict[str, T]:
        """Return the reports of appliances by id, without those that were deleted meanwhile.

        Args:
            session: the database session.
            report_ids: the id of each appliance's report, by the appliance's id, which the caller
                has read in its scope.
        """
        reports = {}
        for ident, report_id in report_ids.items():
            cached = self._parsed.get(ident)
            if cached is not None and cached[0] == report_id:
                reports[ident] = cached[1]
        unread = [ident for ident in report_ids if ident not in reports]
        for ids in chunked(unread):
            statement = select(
                Appliance.id,
                Appliance.report_id,
                type_coerce(Appliance.inventory, Text),
                type_coerce(Appliance.health, Text),
            ).where(Appliance.id.in_(ids))
            for ident, report_id, inventory, health in session.execute(statement):
                reports[ident] = self._parse(inventory, health)
                if len(self._parsed) >= self._max_reports:
                    self._parsed.clear()
                if report_id is not None:
                    self._parsed[ident] = report_id, reports[ident]
        return reports
