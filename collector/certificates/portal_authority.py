"""The authority of the portal's own certificate, where no system knows it.

It is kept in the data folder. From then on it is trusted beside those of the system, and so are the
authorities that the portal tells with each client certificate.
"""

from pathlib import Path

from collector.certificates.own_certificate import AUTHORITIES_NAME
from collector.errors import EnrolmentError
from collector.files import replace_file

AUTHORITY_NAME = "portal-ca.pem"


def trusted_files(data_dir: Path) -> tuple[Path, ...]:
    """Return what is trusted beside the system's authorities, from when the first is there."""
    return data_dir / AUTHORITY_NAME, data_dir / AUTHORITIES_NAME


def keep_authority(pem: str, *, data_dir: Path) -> None:
    """Trust an authority from now on.

    Raises:
        EnrolmentError: the folder can't be written.
    """
    path = data_dir / AUTHORITY_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        replace_file(path, pem.encode(), mode=0o644)
    except OSError as error:
        raise EnrolmentError(f"{path} can't be written: {error.strerror}") from error
