"""Which contracts a user sees: two tenants see a contract, everybody else gets a 404."""

from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import NotFoundError
from marketplace.models import Contract
from marketplace.states import Side
from tenants.scope import Scope


def select_contracts(scope: Scope, *, side: Side | None = None) -> Select[Any]:
    """Return the contracts of a scope, as provider, customer or both; the operator's are all."""
    statement = select(Contract)
    if scope.tenant_id is None:
        return statement
    columns = {Side.PROVIDER: Contract.provider_id, Side.CUSTOMER: Contract.customer_id}
    wanted = columns.values() if side is None else [columns[side]]
    return statement.where(or_(*(column == scope.tenant_id for column in wanted)))


def locked_contract(session: Session, scope: Scope, ident: str) -> Contract:
    """Return a contract as it is now, which nobody else changes until the transaction ends.

    Raises:
        NotFoundError: as for `read_contract`.
    """
    begin_writing(session)
    return read_contract(session, scope, ident, is_locked=True)


def side_of(contract: Contract, scope: Scope) -> Side | None:
    """Return the side of the scope's tenant; None for the operator."""
    sides = {contract.provider_id: Side.PROVIDER, contract.customer_id: Side.CUSTOMER}
    return None if scope.tenant_id is None else sides.get(scope.tenant_id)


def read_contract(
    session: Session, scope: Scope, ident: str, *, is_locked: bool = False
) -> Contract:
    """Return a contract of the scope, for update if it `is_locked`.

    Raises:
        NotFoundError: it does not exist, or others made it; both look the same.
    """
    statement = select_contracts(scope).where(Contract.id == ident)
    if is_locked:
        statement = statement.with_for_update().execution_options(populate_existing=True)
    contract: Contract | None = session.scalar(statement)
    if contract is None:
        raise NotFoundError.of("contract", ident)
    return contract
