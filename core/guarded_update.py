"""Guarded updates: change a row only while it is still in the state that the caller read.

Portal, scheduler and agent API change the same rows concurrently. The expected state stands in the
statement's WHERE clause, so that only the first writer changes the row; the others see `False`.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.orm import Session


def changed_one(
    session: Session,
    statement: Update | Delete,
    parameters: Mapping[str, object] | None = None,
    *,
    synchronize_session: Literal["auto", False] = "auto",
) -> bool:
    """Execute a guarded UPDATE or DELETE of one row; return whether the row matched."""
    row_count = changed_rows(
        session, statement, parameters, synchronize_session=synchronize_session
    )
    return row_count == 1


def changed_rows(
    session: Session,
    statement: Update | Delete,
    parameters: Mapping[str, object] | None = None,
    *,
    synchronize_session: Literal["auto", False] = "auto",
) -> int:
    """Execute an UPDATE or DELETE; return the number of rows that matched its WHERE clause.

    Args:
        session: where the statement runs; the caller owns the transaction.
        statement: the guarded statement.
        parameters: of its `bindparam`s.
        synchronize_session: `False` leaves objects that the session has loaded as they are.
    """
    result = session.execute(
        statement, parameters, execution_options={"synchronize_session": synchronize_session}
    )
    return cast("CursorResult[Any]", result).rowcount
