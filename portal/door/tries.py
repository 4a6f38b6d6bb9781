"""Tries at secrets, counted before they are looked at, so that guessing is slow.

What a wrong one rolls back must not uncount it: the count is a transaction of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flask import request

from portal.context import database, now
from tenants.people.throttling import count_try, take_back


@contextmanager
def counted_try(account: str) -> Iterator[None]:
    """Count a try at an account's secret; take it back when the block ends without an error.

    Raises:
        TooManyTriesError: there were too many wrong ones of late; the block is not entered.
    """
    with database() as db:
        tried = count_try(db, account=account, address=request.remote_addr, now=now())
    yield
    with database() as db:
        take_back(db, tried)
