"""TLS: whom the agent trusts, and the certificate that it shows.

The files are looked at before each connection's use, so that a certificate renewed on disk is taken
up without a restart.
"""

import logging
import os
import ssl
from threading import Lock

from collector.configuring.tls_files import TLSFiles, make_context

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class TLSContexts:
    """Gives the context for connections, made anew when a file has changed. Safe for threads.

    While a renewed file can't be used, as when it is half written, the old context stays in use.
    """

    def __init__(self, files: TLSFiles | None = None) -> None:
        self._files = files or TLSFiles()
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()

    def current(self) -> ssl.SSLContext:
        """Return the context; the same one as long as the files are the same.

        Raises:
            OSError: a file can't be used, and never could (`ssl.SSLError` is one too).
        """
        with self._lock:
            files = self._files.present
            if self._context is not None and not files.paths and not self._stamp:
                return self._context
            try:
                stamp = _stamp(files)
                if self._context is None or stamp != self._stamp:
                    self._context, self._stamp = make_context(files), stamp
            except OSError as error:
                if self._context is None:
                    raise
                log.debug("the TLS files can't be used yet, going on with the old: %s", error)
            return self._context


def _stamp(files: TLSFiles) -> _Stamp:
    states = [os.stat(path) for path in files.paths]  # noqa: PTH116 - before every request
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
