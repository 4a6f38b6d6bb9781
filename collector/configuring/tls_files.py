"""The TLS files that a configuration names: whom to trust, what to show, and their faults."""

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files.

    Attributes:
        ca_file: trusted authorities, in place of the system's.
        certificate_file: the client certificate with its chain.
        key_file: its key; None when the certificate's file holds it too.
        own_file: certificate and key that the portal gives, shown from when they are there and
            where no other is named.
        also_trusted: authorities that are trusted beside the others, those of them that are
            there, and none before the first one is.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    own_file: Path | None = None
    also_trusted: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are given."""
        given = (self.ca_file, self.certificate_file, self.key_file)
        return tuple(path for path in given if path is not None) + self.also_trusted

    @property
    def present(self) -> "TLSFiles":
        """These files as they are at present: what the portal gives is in use, or not there."""
        trusted = self.also_trusted
        if trusted:
            is_in_use = trusted[0].exists()
            trusted = tuple(path for path in trusted if path.exists()) if is_in_use else ()
        certificate_file = self.certificate_file
        if certificate_file is None and self.own_file is not None and self.own_file.exists():
            certificate_file = self.own_file
        return TLSFiles(self.ca_file, certificate_file, self.key_file, also_trusted=trusted)


def make_context(files: TLSFiles) -> ssl.SSLContext:
    """Return a context that trusts and shows what the files say.

    Raises:
        OSError: a file can't be used.
    """
    context = ssl.create_default_context(cafile=files.ca_file)
    for authority_file in files.also_trusted:
        context.load_verify_locations(authority_file)
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
