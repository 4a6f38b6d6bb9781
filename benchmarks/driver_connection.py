"""One HTTP connection of a driver: a post at a time, without waiting for the socket."""

import socket
from http import HTTPStatus

RECEIVE_BYTES = 65_536
CONNECT_SECONDS = 60.0
_END_OF_HEAD = b"\r\n\r\n"


class DriverError(Exception):
    """The server does not speak HTTP as a driver needs it."""


class Connection:
    """One connection; posts one body at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._outgoing = memoryview(b"")
        self._incoming = b""
        self._request = b""
        self.since = 0.0
        self.is_waiting = False
        self.is_retried = False

    def fileno(self) -> int:
        """Return the socket's number, for the selector."""
        if self._socket is None:
            raise DriverError("this connection is closed")
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Return whether there is a socket."""
        return self._socket is not None

    def open(self) -> None:
        """Connect anew."""
        self.close()
        self._socket = socket.create_connection(self._address, CONNECT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(0.0)

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._incoming = None, b""

    def begin(self, request: bytes, since: float) -> bool:
        """Start to send; return whether all is sent."""
        self.since, self._request, self._outgoing = since, request, memoryview(request)
        self.is_waiting, self.is_retried = True, False
        return self.send()

    def retry(self) -> bool:
        """Send the same anew; return whether all is sent."""
        self.is_retried, self._outgoing = True, memoryview(self._request)
        return self.send()

    def send(self) -> bool:
        """Send what fits now; return whether all is sent."""
        if self._socket is None:
            raise DriverError("this connection is closed")
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return False
            self._outgoing = self._outgoing[sent:]
        return True

    def receive(self) -> tuple[int, bytes] | None:
        """Return status and body of the answer; None while it is not whole.

        Raises:
            ConnectionResetError: the server has closed the connection.
        """
        if self._socket is None:
            raise DriverError("this connection is closed")
        try:
            piece = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        if not piece:
            raise ConnectionResetError("the server has closed the connection")
        self._incoming += piece
        reply = parse_reply(self._incoming)
        if reply is not None:
            self._incoming = b""
        return reply


def parse_reply(data: bytes) -> tuple[int, bytes] | None:
    """Return status and body of an HTTP answer with a length; None while it is not whole."""
    end = data.find(_END_OF_HEAD)
    if end < 0:
        return None
    status = int(data[9:12])
    if status == HTTPStatus.NO_CONTENT:
        return status, b""
    length = 0
    for line in data[:end].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    start = end + len(_END_OF_HEAD)
    return (status, data[start : start + length]) if len(data) >= start + length else None
