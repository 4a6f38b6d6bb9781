"""Commands in running jobs, over a WebSocket; see `Client.exec`."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlencode

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from core.errors import UnavailableError
from vedette.errors import PortalError

# The first byte of a message: docs/jobs.md.
_STDIN, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 2, 3, 4, 255

Size = tuple[int, int]
"""Columns and rows of a terminal."""
Output = Callable[[bytes, bool], None]
"""Takes output, and whether it is that of stderr."""


class _Status(msgspec.Struct):
    exit_code: int | None = None
    code: str = ""
    message: str = ""


class Exec:
    """A running command. `write`, `close_input` and `resize` may be called from other threads."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        """Send input."""
        self._connection.send(bytes((_STDIN,)) + data)

    def close_input(self) -> None:
        """End the input."""
        self._connection.send(bytes((_CLOSE, _STDIN)))

    def resize(self, size: Size) -> None:
        """Set the size of the terminal."""
        body = msgspec.json.encode({"columns": size[0], "rows": size[1]})
        self._connection.send(bytes((_RESIZE,)) + body)

    def wait(self, on_output: Output) -> int:
        """Pass output on until the command ends; return its exit code.

        Raises:
            PortalError: the portal ended it, and says why.
            UnavailableError: the connection broke.
        """
        try:
            for data in self._connection:
                if not isinstance(data, bytes) or not data:
                    continue
                if data[0] == _STATUS:
                    status = msgspec.json.decode(data[1:], type=_Status)
                    if status.exit_code is None:
                        raise PortalError(status.message, code=status.code)
                    return status.exit_code
                on_output(data[1:], data[0] == _STDERR)
        except ConnectionClosed:
            pass
        raise UnavailableError("The connection to the portal was lost.")


@contextmanager
def open_exec(
    url: str,
    headers: Mapping[str, str],
    command: Sequence[str],
    *,
    size: Size | None,
) -> Iterator[Exec]:
    """Open a command at the address of a job, in a terminal if it has a size."""
    query = [("command", word) for word in command]
    if size is not None:
        query += [("terminal", "true"), ("columns", str(size[0])), ("rows", str(size[1]))]
    context = None
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE"))
    address = f"ws{url.removeprefix('http')}?{urlencode(query)}"
    try:
        with connect(address, additional_headers=headers, ssl=context, max_size=None) as connection:
            yield Exec(connection)
    except InvalidStatus as error:
        raise _refusal(error) from error
    except (OSError, WebSocketException) as error:
        raise UnavailableError(f"{url} does not answer ({type(error).__name__}).") from error


def _refusal(error: InvalidStatus) -> PortalError:
    try:
        body = msgspec.json.decode(error.response.body or b"", type=dict[str, object])
    except msgspec.MsgspecError:
        body = {}
    text = body.get("message") or f"The portal answered {error.response.status_code}."
    return PortalError(str(text), code=str(body.get("code") or ""))
