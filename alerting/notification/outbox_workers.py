"""Drains the outbox with several threads, so that a slow receiver delays nobody else's messages.

Each recipient is served by one thread at a time, which keeps its messages in order. A tenant has a
part of the threads only, so that its slow receivers never take them all.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from alerting.notification.outbox import UNLIMITED, DueRecipient, drain_recipient, due_recipients
from alerting.notification.senders.notify import Sender
from alerting.states import ReceiverKind
from core.clock import Clock
from core.db import SessionFactory
from core.errors import DatabaseUnavailableError
from tenants.lifecycle.message_budgets import MessageBudgets

logger = logging.getLogger(__name__)

THREADS = 32
THREADS_PER_TENANT = 4


class OutboxWorkers:
    """Sends what is due.

    Args:
        sessions: the database.
        senders: by kind of receiver.
        clock: the time.
        may_send: whether this process still is the one that sends.
        budgets: of messages within an hour.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        senders: Mapping[ReceiverKind, Sender],
        *,
        clock: Clock,
        may_send: Callable[[], bool] = lambda: True,
        budgets: MessageBudgets = UNLIMITED,
    ) -> None:
        self._sessions = sessions
        self._senders = senders
        self._clock = clock
        self._may_send = may_send
        self._budgets = budgets
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="outbox")
        self._lock = threading.Lock()
        self._busy: set[DueRecipient] = set()

    def start_due(self) -> None:
        """Start to serve the recipients with due notifications, unless they are served already."""
        due = due_recipients(self._sessions, kinds=self._senders.keys(), now=self._clock())
        with self._lock:
            of_tenant = Counter(recipient.tenant_id for recipient in self._busy)
            for recipient in due:
                is_full = of_tenant[recipient.tenant_id] >= THREADS_PER_TENANT
                if recipient in self._busy or is_full or len(self._busy) >= THREADS:
                    continue
                of_tenant[recipient.tenant_id] += 1
                self._busy.add(recipient)
                self._pool.submit(self._serve, recipient)

    def close(self) -> None:
        """Wait for the messages that are being sent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _serve(self, recipient: DueRecipient) -> None:
        delivered = 0
        try:
            delivered = drain_recipient(
                self._sessions,
                self._senders,
                recipient,
                clock=self._clock,
                may_send=self._may_send,
                budgets=self._budgets,
            )
        except DatabaseUnavailableError as error:
            logger.debug("the notifications of %s come later: %s", recipient.key, error.message)
        except Exception:
            logger.exception("sending the notifications of %s failed", recipient.key)
        finally:
            with self._lock:
                self._busy.discard(recipient)
        if delivered and self._may_send():
            self._start_next()

    def _start_next(self) -> None:
        """Serve those that waited for a thread, and what is left of a recipient with many."""
        try:
            self.start_due()
        except (RuntimeError, DatabaseUnavailableError):
            return  # it is closed; or the next interval starts them
        except Exception:
            logger.exception("starting the next deliveries failed")
