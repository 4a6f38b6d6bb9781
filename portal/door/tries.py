"""Tries at secrets, counted before they are looked at, so that guessing is slow.

What a wrong one rolls back must not uncount it: the count is a transaction of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import request
from sqlalchemy.orm import Session

from core.errors import OverloadedError
from portal.context import database, now
from tenants.people.throttling import Try, count_try, take_back, uncount


@contextmanager
def counted_try(account: str) -> Iterator[Session]:
    """Count a try at an account's secret; give a transaction in which the secret is looked at.

    When the block ends without an error, the same transaction takes the try back.

    Raises:
        TooManyTriesError: there were too many wrong ones of late; the block is not entered.
    """
    with database() as db:
        tried = count_here(db, account)
    with uncounted_if_unseen(tried), database() as db:
        yield db
        take_back(db, tried)


def count_here(db: Session, account: str) -> Try:
    """Count a try at an account's secret from this request's address, in a transaction to commit.

    Raises:
        TooManyTriesError: there were too many wrong ones of late.
    """
    return count_try(db, account=account, address=request.remote_addr, now=now())


@contextmanager
def uncounted_if_unseen(tried: Try) -> Iterator[None]:
    """Take a try back where the block was too busy to look at its secret."""
    try:
        yield
    except OverloadedError:
        with database() as db:
            uncount(db, tried)
        raise
