"""TLS: whom the agent trusts, and the certificate that it shows.

The files are looked at before each connection's use, so that a certificate renewed on disk is taken
up without a restart.
"""

import logging
import os
import ssl
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
        key_file: its key; None when the certificate's file holds it too.
        own_file: certificate and key that the portal gives, shown from when they are there and
            where no other is named.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    own_file: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are given."""
        given = (self.ca_file, self.certificate_file, self.key_file)
        return tuple(path for path in given if path is not None)

    @property
    def present(self) -> "TLSFiles":
        """These files as they are at present: the portal's certificate is in use, or not there."""
        if self.own_file is None:
            return self
        if self.certificate_file is None and self.own_file.exists():
            return TLSFiles(self.ca_file, self.own_file)
        return TLSFiles(self.ca_file, self.certificate_file, self.key_file)


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


def make_context(files: TLSFiles) -> ssl.SSLContext:
    """Return a context that trusts and shows what the files say.

    Raises:
        OSError: a file can't be used.
    """
    context = ssl.create_default_context(cafile=files.ca_file)
    if files.certificate_file is not None:
        # An encrypted key would ask for its password on the terminal.
        context.load_cert_chain(files.certificate_file, files.key_file, password=lambda: "")
    return context


def tls_faults(files: TLSFiles) -> list[str]:
    """Return what is wrong with the files, each fault with the setting's name."""
    faults = []
    if files.ca_file is not None:
        faults += _certificates_fault("ca_file", files.ca_file)
    if files.certificate_file is None:
        if files.key_file is not None:
            faults.append("client_key_file is set: set client_certificate_file too")
        return faults
    own = _certificates_fault("client_certificate_file", files.certificate_file)
    if files.key_file is not None:
        own += _reading_fault("client_key_file", files.key_file)
    return faults + (own or _key_fault(files))


def _certificates_fault(setting: str, path: Path) -> list[str]:
    fault = _reading_fault(setting, path)
    if fault:
        return fault
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        return [f"{setting} = {str(path)!r}: holds no certificate in PEM form"]
    return []


def _reading_fault(setting: str, path: Path) -> list[str]:
    try:
        path.read_bytes()
    except OSError as error:
        return [f"{setting} = {str(path)!r}: can't be read: {error.strerror}"]
    return []


def _key_fault(files: TLSFiles) -> list[str]:
    setting = "client_key_file" if files.key_file is not None else "client_certificate_file"
    path = files.key_file or files.certificate_file
    try:
        make_context(TLSFiles(None, files.certificate_file, files.key_file))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            certificate = str(files.certificate_file)
            return [
                f"{setting} = {str(path)!r}: is not the key of the certificate in {certificate!r}"
            ]
        hint = "; name the key in client_key_file" if files.key_file is None else ""
        return [f"{setting} = {str(path)!r}: holds no unencrypted key in PEM form{hint}"]
    return []


def _stamp(files: TLSFiles) -> _Stamp:
    states = [os.stat(path) for path in files.paths]  # noqa: PTH116 - before every request
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
