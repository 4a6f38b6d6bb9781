"""Parts of results to and from the portal's store, or the tenant's bucket by signed addresses."""

import hashlib
from collections.abc import Callable, Iterator

import urllib3

from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.byte_rate import ByteRate
from collector.sending.http import HTTP_ERRORS, HTTPClient, error_message, root_cause
from collector.sending.portal_connection import (
    OVERLOADED,
    STREAM_TIMEOUT_SECONDS,
    SUCCESS,
    PortalConnection,
)

CHUNK_BYTES = 64 * 1024
_FORBIDDEN = 403


class ChangedError(Exception):
    """The file changed while it was read."""


class DamagedError(Exception):
    """The content that was fetched has another hash."""


class PartClient:
    """Puts and gets parts. For one thread."""

    def __init__(self, portal: PortalConnection, rate: ByteRate) -> None:
        self.portal = portal
        self._rate = rate
        # A bucket's certificate has nothing to do with that of the portal.
        self._http = HTTPClient()

    def put(self, url: str, read: Callable[[int, int], bytes], sha256: str, size: int) -> None:
        """Upload a part as it is read; its last bytes are sent only if its hash is right.

        Args:
            url: where to; a path is one of the agent API.
            read: returns bytes of the part by offset and length.
            sha256: of the part.
            size: of the part, in bytes.

        Raises:
            ChangedError: the content is another one by now.
            PortalUnreachableError, PortalRefusedError: try again later.
        """
        body = _Body(read, sha256, size, self._rate)
        if url.startswith("/"):
            self.portal.stream("PUT", url, body=body, size_bytes=size).release_conn()
            return
        response = self._bucket("PUT", url, body, {"Content-Length": str(size)})
        response.release_conn()

    def get(self, url: str, sha256: str, size: int) -> Iterator[bytes]:
        """Yield the content of a part.

        Raises:
            DamagedError: it is not what was stored; raised after the last bytes.
            PortalUnreachableError, PortalRefusedError: try again later.
        """
        is_portal = url.startswith("/")
        response = (
            self.portal.stream("GET", url, body=None)
            if is_portal
            else self._bucket("GET", url, None, {})
        )
        digest, received = hashlib.sha256(), 0
        try:
            while received <= size and (data := response.read(CHUNK_BYTES)):
                digest.update(data)
                received += len(data)
                yield data
        except HTTP_ERRORS as error:
            raise PortalUnreachableError(
                f"A part of the results broke off: {root_cause(error)}."
            ) from error
        finally:
            response.close()
        if digest.hexdigest() != sha256:
            raise DamagedError(f"The part {sha256} has another content in its store.")

    def close(self) -> None:
        """Close the connections."""
        self.portal.close()
        self._http.close()

    def _bucket(
        self, method: str, url: str, body: "_Body | None", headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse:
        host = url.split("?", 1)[0]
        seconds = STREAM_TIMEOUT_SECONDS
        try:
            response = self._http.pool_for(url).request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except HTTP_ERRORS as error:
            raise PortalUnreachableError(
                f"The bucket at {host} does not answer: {root_cause(error)}."
            ) from error
        if response.status in SUCCESS:
            return response
        reason = error_message(response.data, default=response.reason or "")
        message = f"The bucket answered {response.status} to {method} {host}: {reason}"
        # A signed address that has expired is refused; the next announcement gets a new one.
        if response.status in OVERLOADED or response.status == _FORBIDDEN:
            raise PortalUnreachableError(message)
        raise PortalRefusedError(message, http_status=response.status)


class _Body:
    """The content of a part as a body, which can be read again."""

    def __init__(
        self, read: Callable[[int, int], bytes], sha256: str, size: int, rate: ByteRate
    ) -> None:
        self._read = read
        self._sha256 = sha256
        self._size = size
        self._rate = rate

    def __iter__(self) -> Iterator[bytes]:
        digest, offset = hashlib.sha256(), 0
        while offset < self._size:
            data = self._read(offset, min(CHUNK_BYTES, self._size - offset))
            digest.update(data)
            offset += len(data)
            if not data or (offset == self._size and digest.hexdigest() != self._sha256):
                raise ChangedError
            self._rate.wait(len(data))
            yield data
