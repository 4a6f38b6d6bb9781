"""How often an address may be refused: a bucket for each, that nobody else is looked up in.

Who is known by the roll is let in without a look here. Only what has to be looked up in the
database waits (secrets and enrolment tokens, which can be guessed at), and only refusals count. A
certificate was verified before it comes here: its first use is never held up by others.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from core.buckets import Buckets, Monotonic
from core.errors import OverloadedError, UnauthenticatedError
from tenants.people.throttling import network_of

NOWHERE = "nowhere"


class TooManyRefusalsError(OverloadedError):
    """Too much that came from an address was refused of late."""

    default_code = "too_many_requests"


class Refusals:
    """Counts refusals by address.

    Args:
        per_second: how many an address may get in the long run; 0 is any number.
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(self, per_second: float, *, monotonic: Monotonic = time.monotonic) -> None:
        self._buckets = Buckets(per_second, monotonic=monotonic)

    def check(self, scope: Scope) -> None:
        """Let an address ask whose last refusals are long enough ago.

        Raises:
            TooManyRefusalsError: it has to wait.
        """
        seconds = self._buckets.wait(_whose(scope))
        if seconds:
            raise _wait(seconds)

    @contextmanager
    def counted(self, scope: Scope) -> Iterator[None]:
        """Count a refusal in the block, and turn it into a wait where there were too many.

        Raises:
            UnauthenticatedError: the refusal.
            TooManyRefusalsError: the refusal of an address that has to wait.
        """
        try:
            yield
        except UnauthenticatedError as error:
            self.count(scope, error)
            raise

    def count(self, scope: Scope, refusal: UnauthenticatedError) -> None:
        """Count a refusal.

        Raises:
            TooManyRefusalsError: there were too many.
        """
        seconds = self._buckets.take(_whose(scope))
        if seconds:
            raise _wait(seconds) from refusal


def _whose(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0]) if client else NOWHERE


def _wait(seconds: float) -> TooManyRefusalsError:
    whole = math.ceil(seconds)
    return TooManyRefusalsError(
        f"Too much that came from this address was refused of late. Wait {whole} s, and look which "
        "of its agents use a token that is unknown or revoked.",
        retry_after_seconds=whole,
    )
