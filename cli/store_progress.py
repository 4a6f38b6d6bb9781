"""How long runs of `vedette store` show where they are, and how they are asked to stop."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

import click

_FIRST_LINE_SECONDS = 2.0
_LINE_SECONDS = 10.0
_REDRAW_SECONDS = 0.5


class ProgressLine:
    """Says on stderr how far a long run is: nothing in its first two seconds, then now and then.

    On a terminal the line is redrawn in place.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first: int | None = None
        self._due = self._started + _FIRST_LINE_SECONDS
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False

    def update(self, what: str, done: int, total: int) -> None:
        """Show what is being done, and points done of about `total`."""
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now < self._due:
            return
        rate = (done - self._first) / (now - self._started)
        left = timedelta(seconds=round(max(0, total - done) / rate)) if rate else "?"
        share = min(100, 100 * done // total) if total else 0
        text = f"{what}: {done:,} points, {share} %, {rate:,.0f}/s, {left} left"
        click.echo(
            f"\r\033[K{text}" if self._is_terminal else text, err=True, nl=not self._is_terminal
        )
        self._is_drawn = self._is_terminal
        self._due = now + (_REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS)

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._is_drawn:
            click.echo(err=True)
            self._is_drawn = False


class StopRequest:
    """Whether Ctrl-C or SIGTERM asked this process to stop; `signal_number` says which."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal_number = 0

    def is_made(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, but no longer than until somebody asks."""
        return self._event.wait(seconds)

    def make(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; the second one ends the process at once."""
        if self.is_made():
            raise KeyboardInterrupt
        self.signal_number = number
        self._event.set()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a request while the block runs."""
    request = StopRequest()
    before = {
        number: signal.signal(number, request.make) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
