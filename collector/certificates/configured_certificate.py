"""The certificate that the appliance's admin configured: somebody else renews it, we watch it."""

import logging
from datetime import datetime
from pathlib import Path

from collector.certificates.validity import Validity, validity_of
from collector.errors import CertificateError

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0


class ConfiguredCertificate:
    """Knows until when `client_certificate_file` is good; a loop of the agent calls `step`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._validity: Validity | None = None

    def step(self) -> float:
        """Look at the file again where it has changed; return the seconds until the next look."""
        try:
            state = self._path.stat()
            stamp = (state.st_mtime_ns, state.st_ino)
            if stamp != self._stamp:
                self._validity = validity_of(self._path)
                self._stamp = stamp
        except (OSError, CertificateError) as error:  # half renewed: the connections keep the old
            log.debug("client_certificate_file can't be looked at yet: %s", error)
        return LOOK_SECONDS

    def remaining_seconds(self, now: datetime) -> float | None:
        """Return how long it is good for yet; None as long as nobody looked."""
        return None if self._validity is None else self._validity.remaining_seconds(now)
