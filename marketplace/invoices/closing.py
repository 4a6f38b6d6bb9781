"""Close months: put lines into closings, then issue documents.

A month is closed some days after its end, when the ledger has all of its hours and all of them are
charged. What the ledger corrects later is in the next month's documents, as items of the earlier
month. Each step is a short transaction that finds what is left to do, so a run that was killed, or
two at once, end with the same documents: a line is in one closing, a sealed closing never changes,
and a tenant has one document of a kind for a month.

An error of a contract keeps the month open: its two sides get their documents once it is gone, and
those of later months after that. All others get theirs in time; what is added for them meanwhile
is in those of the next month.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import SessionFactory, begin_writing, changed_one, transaction
from core.errors import ConflictError
from marketplace.charges.models import BillingLine
from marketplace.charges.service import is_charged
from marketplace.invoices.commitments import add_commitment, contracts_of
from marketplace.invoices.documents import Issuing, issue, left_to_issue
from marketplace.invoices.items import encoded, items_of
from marketplace.invoices.models import (
    BillingDocument,
    BillingMonth,
    ClosedLine,
    Closing,
    DocumentKind,
)
from marketplace.models import Contract
from marketplace.months import month_of, next_month, previous_month
from marketplace.tenant_errors import TenantErrors

log = logging.getLogger(__name__)

# The ledger's second check of the last hour has then been made.
CLOSE_AFTER = timedelta(days=2)
BATCH = 5000


@dataclass(frozen=True, slots=True)
class _Group:
    """What a closing is of."""

    tenant_id: str
    provider_id: str | None
    contract_id: str | None

    @property
    def scope_key(self) -> str:
        return self.contract_id or self.tenant_id

    @property
    def sides(self) -> tuple[str, ...]:
        """The tenants whose documents have it."""
        return (self.tenant_id,) if self.provider_id is None else (self.tenant_id, self.provider_id)

    @property
    def documents(self) -> ColumnElement[bool]:
        """The condition that documents are of the kinds that have it, and of its sides."""
        kind, owner = BillingDocument.kind, BillingDocument.tenant_id
        if self.provider_id is None:
            return and_(kind == DocumentKind.COST_STATEMENT, owner == self.tenant_id)
        return or_(
            and_(kind == DocumentKind.INVOICE, owner == self.tenant_id),
            and_(kind == DocumentKind.STATEMENT, owner == self.provider_id),
        )

    @property
    def lines(self) -> ColumnElement[bool]:
        """The condition that lines are its own."""
        if self.contract_id is None:
            own = BillingLine.tenant_id == self.tenant_id
            return and_(own, BillingLine.contract_id.is_(None))
        return BillingLine.contract_id == self.contract_id


def close_months(
    sessions: SessionFactory,
    issuing: Issuing,
    *,
    now: datetime,
    is_stopping: Callable[[], bool] = lambda: False,
) -> list[datetime]:
    """Close the months that have ended and are complete; return those that were closed.

    Raises:
        TenantsFailedError: not for all tenants; the next call repeats it for these.
        ConflictError: another process closes the same month; the next call continues.
    """
    closed: list[datetime] = []
    run = _Run(sessions, issuing, now)
    with transaction(sessions) as session:
        month_at = open_month(session)
    while month_at is not None and not is_stopping():
        with transaction(sessions) as session:
            is_due = _is_due(session, month_at, now=now)
        if not is_due:
            break
        try:
            run.close(month_at)
        except IntegrityError as error:
            raise ConflictError("Another process closes the same month. Try again.") from error
        if not run.errors.tenant_ids:
            log.info("issued the invoices and statements of %s", f"{month_at:%Y-%m}")
            closed.append(month_at)
        month_at = next_month(month_at)
    run.errors.raise_if_any()
    return closed


def open_month(session: Session) -> datetime | None:
    """Return the first month that is not closed; None before the first line or contract."""
    last = session.scalar(
        select(func.max(BillingMonth.month_at)).where(BillingMonth.closed_at.is_not(None))
    )
    if last is not None:
        return next_month(last)
    # A contract that nobody uses has no line until its commitment is charged.
    firsts = [
        session.scalar(select(func.min(column, type_=column.type)))
        for column in (BillingLine.at, Contract.starts_at)
    ]
    return min((month_of(at) for at in firsts if at is not None), default=None)


def _is_due(session: Session, month_at: datetime, *, now: datetime) -> bool:
    """Return whether a month has ended, and is complete."""
    if now < next_month(month_at) + CLOSE_AFTER:
        return False
    if not is_charged(session, next_month(month_at)):
        log.warning("%s is not closed: the usage ledger is not complete yet", f"{month_at:%Y-%m}")
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `close_months`; what fails in a month is left out of later ones.

    Attributes:
        failed: scope keys of what is not sealed.
        errors: tenants that get no documents now.
    """

    sessions: SessionFactory
    issuing: Issuing
    now: datetime
    failed: set[str] = field(default_factory=set)
    errors: TenantErrors = field(default_factory=lambda: TenantErrors("close months"))

    def close(self, month_at: datetime) -> None:
        """Take all steps of a month, and close it if no tenant was left out."""
        with transaction(self.sessions) as session:
            month = session.get(BillingMonth, month_at)
            is_sealed = month is not None and month.sealed_at is not None
        if not is_sealed:
            self._seal(month_at)
        with transaction(self.sessions) as session:
            waiting = left_to_issue(session, month_at)
        for kind, tenant_id in waiting:
            if tenant_id not in self.errors.tenant_ids:
                with self.errors.of(tenant_id), transaction(self.sessions) as session:
                    issue(session, self.issuing, kind, tenant_id, month_at, now=self.now)
        if not self.errors.tenant_ids:
            with transaction(self.sessions) as session:
                session.get_one(BillingMonth, month_at).closed_at = self.now

    def _seal(self, month_at: datetime) -> None:
        """Put the lines of a month into closings, and compute their items."""
        for earlier_at in (previous_month(month_at), month_at):
            self._add_commitments(earlier_at)
        with transaction(self.sessions) as session:
            groups = list(_groups(session, month_at))
        for group in groups:
            if group.scope_key not in self.failed:
                with self._of(group.scope_key, *group.sides):
                    _seal(self.sessions, group, month_at, now=self.now)
        with transaction(self.sessions) as session:
            month = session.get(BillingMonth, month_at) or BillingMonth(month_at=month_at)
            session.add(month)
            month.sealed_at = None if self.failed else self.now

    def _add_commitments(self, month_at: datetime) -> None:
        with transaction(self.sessions) as session:
            contracts = contracts_of(session, month_at)
        for contract_id, *sides in contracts:
            with self._of(contract_id, *sides), transaction(self.sessions) as session:
                add_commitment(session, contract_id, month_at, now=self.now)

    @contextmanager
    def _of(self, scope_key: str, *sides: str) -> Iterator[None]:
        """Leave a contract, or a tenant's own use, out of the run after an error."""
        with self.errors.of(*sides):
            try:
                yield
            except Exception:
                self.failed.add(scope_key)
                raise


def _groups(session: Session, month_at: datetime) -> Iterator[_Group]:
    """Yield what has lines that are in no closing, and closings that are not sealed.

    What is added for tenants that have their documents of the month waits for the next one.
    """
    until = next_month(month_at)
    keys = (BillingLine.tenant_id, BillingLine.provider_id, BillingLine.contract_id)
    unclosed = select(*keys).where(BillingLine.at < until, ~_is_closed()).distinct()
    unsealed = select(Closing.tenant_id, Closing.provider_id, Closing.contract_id).where(
        Closing.sealed_at.is_(None)
    )
    groups = {
        _Group(*row) for statement in (unclosed, unsealed) for row in session.execute(statement)
    }
    for group in sorted(groups, key=lambda group: (group.tenant_id, group.scope_key)):
        issued = exists().where(BillingDocument.month_at == month_at, group.documents)
        if not session.scalar(select(issued)):
            yield group


def _is_closed() -> ColumnElement[bool]:
    return exists().where(ClosedLine.line_id == BillingLine.id)


def _seal(sessions: SessionFactory, group: _Group, month_at: datetime, *, now: datetime) -> None:
    """Put the lines of a group into its closing, in batches, then compute its items."""
    with transaction(sessions) as session:
        statement = select(Closing).where(
            Closing.month_at == month_at, Closing.scope_key == group.scope_key
        )
        closing = session.scalar(statement)
        if closing is None:
            closing = Closing(
                month_at=month_at,
                scope_key=group.scope_key,
                tenant_id=group.tenant_id,
                provider_id=group.provider_id,
                contract_id=group.contract_id,
            )
            session.add(closing)
            session.flush()
        closing_id, is_sealed = closing.id, closing.sealed_at is not None
    after: datetime | None = None
    while not is_sealed:
        with transaction(sessions) as session:
            lines = session.execute(_lines(group, month_at, after)).all()
            if not lines:
                is_sealed = _complete(session, closing_id, now=now)
                continue
            _require_open(session, closing_id)
            session.execute(
                insert(ClosedLine),
                [{"line_id": line_id, "closing_id": closing_id} for _, line_id in lines],
            )
            after = lines[-1][0]


def _lines(group: _Group, month_at: datetime, after: datetime | None) -> Select[datetime, str]:
    """Select the next lines that are in no closing."""
    statement = (
        select(BillingLine.at, BillingLine.id)
        .where(group.lines, BillingLine.at < next_month(month_at), ~_is_closed())
        .order_by(BillingLine.at, BillingLine.id)
        .limit(BATCH)
    )
    if after is None:
        return statement
    return statement.where(BillingLine.at >= after)


def _require_open(session: Session, closing_id: str) -> None:
    """Lock a closing that is not sealed, so that nobody seals it meanwhile."""
    statement = update(Closing).where(Closing.id == closing_id, Closing.sealed_at.is_(None))
    if not changed_one(session, statement.values(id=Closing.id)):
        raise ConflictError("Another process closes the same month. Try again.")


def _complete(session: Session, closing_id: str, *, now: datetime) -> bool:
    """Compute the items of a closing; a line that was added meanwhile waits for the next month."""
    begin_writing(session)
    _require_open(session, closing_id)
    closing = session.get_one(Closing, closing_id)
    closing.items = encoded(items_of(session, closing))
    closing.sealed_at = now
    return True
