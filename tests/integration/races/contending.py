"""People who contend for one thing, each in a transaction of their own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.errors import VedetteError
from tests.fixtures.racing import race

T = TypeVar("T")


def contend(factory: SessionFactory, racers: Sequence[Callable[[Session], T]]) -> list[T | str]:
    """Let each do its part in a transaction of its own; return answers, or codes of refusals."""

    def run(racer: Callable[[Session], T]) -> T | str:
        try:
            with transaction(factory) as session:
                return racer(session)
        except VedetteError as error:
            return error.code

    return race([partial(run, racer) for racer in racers])
