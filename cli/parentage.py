"""Children that end with their parent: a killed `vedette up` leaves no process behind."""

import os
import signal
import threading
import time

PARENT_VARIABLE = "VEDETTE_PARENT_PID"
POLL_SECONDS = 1.0


def stop_with_parent() -> None:
    """Send this process SIGTERM as soon as the parent named in the environment is gone.

    Does nothing when the process was not started by `vedette up`.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
