"""Close months as the scheduler does, two days after their end."""

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.usage.models import UsageHour
from marketplace.invoices.closing import CLOSE_AFTER, close_months
from marketplace.invoices.documents import Issuing
from tests.unit.marketplace.ledger import APRIL, accrue_all

ISSUING = Issuing(
    currency="EUR",
    tax_percent=Decimal(25),
    fee_percent=Decimal(10),
    issuer="Vedette AS, Storgata 1, Oslo, NO 987654321 MVA",
    public_url="https://portal.example",
)
DUE = APRIL + CLOSE_AFTER
LAST_HOUR = timedelta(hours=1)


def record_until(session: Session, until: datetime) -> None:
    """Let the ledger have all hours before a time: the last one is enough."""
    if session.get(UsageHour, until - LAST_HOUR) is None:
        session.add(UsageHour(hour_at=until - LAST_HOUR, recorded_at=until, appends=0))
        session.flush()


def close(sessions: SessionFactory, *, month_end: datetime = APRIL) -> list[datetime]:
    with sessions.begin() as session:
        record_until(session, month_end)
    accrue_all(sessions, now=month_end)
    return close_months(sessions, ISSUING, now=month_end + CLOSE_AFTER)
