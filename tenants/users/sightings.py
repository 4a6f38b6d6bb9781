"""Last uses of credentials, with their address: noted in memory, written in the background.

A request that only reads needs no write for it, so that it never waits for another writer. What is
noted in the last seconds before a crash is lost.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.background import repeated
from core.db import SessionFactory, chunked, transaction
from core.errors import DatabaseUnavailableError
from tenants.models import APIToken, LoginSession, User
from tenants.models.columns import ADDRESS_LENGTH
from tenants.principals import Principal, Via

log = logging.getLogger(__name__)

# The use of a credential is stored at most this often.
SEEN_EVERY = timedelta(minutes=1)
WRITE_SECONDS = 5.0
# A few milliseconds of one transaction.
ROWS_PER_TRANSACTION = 100


@dataclass(frozen=True, slots=True)
class _Sighting:
    via: Via
    at: datetime
    address: str
    browser_zone: str


class Sightings:
    """The uses that are not written yet. For several threads."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._noted_at: dict[str, datetime] = {}
        self._waiting: dict[str, _Sighting] = {}

    def note(
        self, principal: Principal, *, at: datetime, address: str, browser_zone: str = ""
    ) -> None:
        """Remember the use of a principal's credential, at most once a minute for each.

        `browser_zone` is the time zone of the browser, if it is known.
        """
        ident = principal.credential_id
        if ident is None:
            return
        with self._lock:
            last_at = self._noted_at.get(ident)
            if last_at is None or at - last_at >= SEEN_EVERY:
                self._noted_at[ident] = at
                self._waiting[ident] = _Sighting(principal.via, at, address, browser_zone)

    def write(self) -> None:
        """Store the uses that were noted since the last call.

        Raises:
            DatabaseUnavailableError: the next call stores them.
        """
        with self._lock:
            waiting = self._waiting
            self._waiting = {}
            newest_at = max((sighting.at for sighting in waiting.values()), default=None)
            if newest_at is not None:
                self._noted_at = {
                    ident: at for ident, at in self._noted_at.items() if newest_at - at < SEEN_EVERY
                }
        try:
            for part in chunked(waiting.items(), ROWS_PER_TRANSACTION):
                with transaction(self._sessions) as session:
                    for ident, sighting in part:
                        _store(session, ident, sighting)
        except DatabaseUnavailableError:
            with self._lock:
                self._waiting = waiting | self._waiting
            raise

    @contextmanager
    def written_in_background(self) -> Iterator[None]:
        """Write every few seconds during the block, and at its end."""
        try:
            with repeated(self._try_to_write, every_seconds=WRITE_SECONDS, name="sightings"):
                yield
        finally:
            self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self.write()
        except DatabaseUnavailableError as error:
            log.debug("when credentials were used is written later: %s", error.message)
        except Exception:
            log.exception("when credentials were used was not written")


def _store(session: Session, ident: str, sighting: _Sighting) -> None:
    address = sighting.address[:ADDRESS_LENGTH]
    options = {"synchronize_session": False}
    if sighting.via is Via.TOKEN:
        used = update(APIToken).where(APIToken.id == ident)
        values = {"last_used_at": sighting.at, "last_used_address": address}
        session.execute(used.values(values), execution_options=options)
        return
    seen = update(LoginSession).where(LoginSession.id == ident)
    session.execute(
        seen.values(last_seen_at=sighting.at, address=address), execution_options=options
    )
    if sighting.browser_zone:
        # In a support session, the browser is the operator's.
        owner = select(LoginSession.user_id).where(LoginSession.id == ident)
        session.execute(
            update(User)
            .where(
                User.id == owner.scalar_subquery(),
                User.browser_time_zone != sighting.browser_zone,
            )
            .values(browser_time_zone=sighting.browser_zone),
            execution_options=options,
        )
