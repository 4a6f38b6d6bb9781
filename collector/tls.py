"""TLS: trusted authorities, the client certificate, and the checks of both settings.

Files are checked before each use of a connection, so that a certificate that was renewed on disk is
used without a restart.
"""

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files.

    Attributes:
        ca_file: trusted authorities, in place of the system's.
        certificate_file: the client certificate with its chain.
        key_file: its key; None if the certificate's file contains it.
        issued_file: certificate and key from the portal, used once it exists and if no
            `certificate_file` is set.
        also_trusted: further authorities; those that exist are trusted once the first one exists.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    issued_file: Path | None = None
    also_trusted: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are set."""
        paths = (self.ca_file, self.certificate_file, self.key_file)
        return tuple(path for path in paths if path is not None) + self.also_trusted

    def resolved(self, *, is_issued_usable: bool = True) -> "TLSFiles":
        """Return the files that are in use now: those from the portal only if they exist.

        Args:
            is_issued_usable: whether the portal's certificate is still valid.
        """
        trusted = self.also_trusted
        if trusted:
            is_in_use = trusted[0].exists()
            trusted = tuple(path for path in trusted if path.exists()) if is_in_use else ()
        certificate_file, issued_file = self.certificate_file, self.issued_file
        is_usable = is_issued_usable and issued_file is not None and issued_file.exists()
        if certificate_file is None and is_usable:
            certificate_file = issued_file
        return TLSFiles(self.ca_file, certificate_file, self.key_file, also_trusted=trusted)


class TLSContexts:
    """Provides the TLS context, a new one after a file has changed. Thread-safe.

    While a changed file can't be used, for example half written, the old context stays in use.

    Args:
        files: the files.
        is_issued_expired: whether the portal's certificate has expired. It is then not presented:
            a server would end the connection without a word, and can answer this way.
    """

    def __init__(
        self,
        files: TLSFiles | None = None,
        *,
        is_issued_expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self._files = files or TLSFiles()
        self._is_issued_expired = is_issued_expired
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()

    def current(self) -> ssl.SSLContext:
        """Return the context; the same object while the files are the same.

        Raises:
            OSError: a file can't be used, and there is no earlier context.
        """
        with self._lock:
            files = self._files.resolved(is_issued_usable=not self._is_issued_expired())
            if self._context is not None and not files.paths and not self._stamp:
                return self._context
            try:
                stamp = _stamp(files)
                if self._context is None or stamp != self._stamp:
                    self._context, self._stamp = make_context(files), stamp
            except OSError as error:
                if self._context is None:
                    raise
                log.debug("can't use the changed TLS files yet: %s", error)
            return self._context


def make_context(files: TLSFiles) -> ssl.SSLContext:
    """Return a client context with these authorities and this certificate.

    Raises:
        OSError: a file can't be used.
    """
    context = ssl.create_default_context(cafile=files.ca_file)
    for authority_file in files.also_trusted:
        context.load_verify_locations(authority_file)
    if files.certificate_file is not None:
        # Without a password callback, an encrypted key would prompt on the terminal.
        context.load_cert_chain(files.certificate_file, files.key_file, password=lambda: "")
    return context


def tls_errors(files: TLSFiles) -> list[str]:
    """Return what is wrong with the files, by setting."""
    errors = []
    if files.ca_file is not None:
        errors += _certificate_errors("ca_file", files.ca_file)
    if files.certificate_file is None:
        if files.key_file is not None:
            errors.append("client_key_file is set without client_certificate_file; set both")
        return errors
    own = _certificate_errors("client_certificate_file", files.certificate_file)
    if files.key_file is not None:
        own += read_errors("client_key_file", files.key_file)
    return errors + (own or _key_errors(files))


def _certificate_errors(setting: str, path: Path) -> list[str]:
    if errors := read_errors(setting, path):
        return errors
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        return [f"{setting} = {str(path)!r}: contains no certificate in PEM format"]
    return []


def read_errors(setting: str, path: Path) -> list[str]:
    """Return the error of a setting that names a file, if that can't be read."""
    try:
        path.expanduser().read_bytes()
    except OSError as error:
        return [f"{setting} = {str(path)!r}: can't be read: {error.strerror}"]
    return []


def _key_errors(files: TLSFiles) -> list[str]:
    setting = "client_key_file" if files.key_file is not None else "client_certificate_file"
    path = files.key_file or files.certificate_file
    try:
        make_context(TLSFiles(None, files.certificate_file, files.key_file))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            certificate = str(files.certificate_file)
            return [f"{setting} = {str(path)!r}: doesn't match the certificate in {certificate!r}"]
        hint = "; set client_key_file" if files.key_file is None else ""
        return [f"{setting} = {str(path)!r}: contains no unencrypted key in PEM format{hint}"]
    return []


def _stamp(files: TLSFiles) -> _Stamp:
    states = [os.stat(path) for path in files.paths]  # noqa: PTH116 - before every request
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
