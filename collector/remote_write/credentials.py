"""The credentials of remote_write, read from their file at each request: they may be rotated."""

from pathlib import Path

from urllib3.util import make_headers

from collector.errors import CollectorError
from collector.remote_write.settings import RemoteWriteSettings


class CredentialsError(CollectorError):
    """The file with the token or the password can't be used; the message says why."""

    default_code = "bad_credentials_file"


def authorization(settings: RemoteWriteSettings) -> dict[str, str]:
    """Return the header with the credentials; none if there are none.

    Raises:
        CredentialsError: their file can't be used.
    """
    if settings.bearer_token_file is not None:
        token = _read("bearer_token_file", settings.bearer_token_file)
        return {"Authorization": f"Bearer {token}"}
    if settings.password_file is not None:
        password = _read("password_file", settings.password_file)
        return dict(make_headers(basic_auth=f"{settings.username}:{password}"))
    return {}


def _read(setting: str, path: Path) -> str:
    try:
        text = path.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CredentialsError(f"{setting} {str(path)!r} can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, RuntimeError) as error:  # the latter of a user without a home
        raise CredentialsError(f"{setting} {str(path)!r} can't be read: {error}") from None
    if not text or not text.isprintable() or not text.isascii():
        what = "is empty" if not text else "has other characters than one line of printable ASCII"
        raise CredentialsError(f"{setting} {str(path)!r} {what}")
    return text
