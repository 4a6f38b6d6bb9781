"""Calls of the REST API by path: JSON, files, and the pages of lists."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urljoin

import requests

from core.errors import UnavailableError
from vedette.connection import Connection
from vedette.credentials import Credentials, load_credentials

# A copy may pause for so long.
COPY_SECONDS = 300

COPY_BYTES = 64 * 1024

PAGE_SIZE = 100


def _json(response: requests.Response) -> Any:  # noqa: ANN401 - JSON
    return response.json() if response.content else None


class RESTClient:
    """Calls paths below `/api/v1` of a portal; see `vedette.client.Client`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retry_seconds: float | None = None,
    ) -> None:
        credentials = Credentials(url.rstrip("/"), token) if url and token else load_credentials()
        self._base = f"{credentials.url}/api/v1"
        self._connection = Connection(credentials.token, retry_seconds=retry_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _streamed(
        self,
        url: str,
        params: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        *,
        what: str = "download",
    ) -> Iterator[bytes]:
        arguments = {"params": params, "headers": headers, "stream": True, "timeout": COPY_SECONDS}
        with self._connection.send("GET", url, **arguments) as response:
            try:
                yield from response.iter_content(COPY_BYTES)
            except requests.RequestException as error:
                raise UnavailableError(f"The {what} broke off, and is not complete.") from error

    def _numbered_pages(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        page, count = 1, 0
        while True:
            answer = self.get(path, page=page, page_size=PAGE_SIZE, **query)
            yield from answer["items"]
            count += len(answer["items"])
            if count >= answer["total"] or not answer["items"]:
                return
            page += 1

    def _continued_pages(
        self, path: str, limit: int | None, *, page_size: int, **query: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of pages that name the next one, up to a limit."""
        after: str | None = None
        remaining = math.inf if limit is None else limit
        while remaining > 0:
            size = int(min(remaining, page_size))
            page = self.get(path, after=after, page_size=size, **query)
            yield from page["items"]
            remaining -= len(page["items"])
            after = page["next"]
            if after is None:
                return

    def get(self, path: str, /, **params: object) -> Any:  # noqa: ANN401 - JSON
        """GET a path below /api/v1 and return its JSON."""
        query = {key: str(value) for key, value in params.items() if value is not None}
        return _json(self._connection.send("GET", f"{self._base}{path}", params=query))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """POST JSON to a path below /api/v1 and return the JSON of the response."""
        return _json(self._connection.send("POST", f"{self._base}{path}", json=body or {}))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """PUT JSON to a path below /api/v1 and return the JSON of the response."""
        return _json(self._connection.send("PUT", f"{self._base}{path}", json=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """PATCH JSON to a path below /api/v1 and return the JSON of the response."""
        return _json(self._connection.send("PATCH", f"{self._base}{path}", json=body))

    def delete(self, path: str) -> None:
        """DELETE a path below /api/v1."""
        self._connection.send("DELETE", f"{self._base}{path}")

    def download(self, path: str) -> bytes:
        """GET a file below /api/v1."""
        url = f"{self._base}{path}"
        return self._connection.send("GET", url, timeout=COPY_SECONDS).content

    def download_in_parts(self, path: str, **query: str | None) -> Iterator[bytes]:
        """Yield a large file below /api/v1 in parts.

        Raises:
            UnavailableError: the download broke off, also after its beginning.
        """
        params = {name: value for name, value in query.items() if value is not None}
        return self._streamed(f"{self._base}{path}", params)

    def send_bytes(self, path: str, data: bytes) -> Any:  # noqa: ANN401 - JSON
        """PUT bytes to a path below /api/v1 and return the JSON of the response, if any."""
        url, headers = f"{self._base}{path}", {"Content-Type": "application/octet-stream"}
        return _json(
            self._connection.send("PUT", url, data=data, headers=headers, timeout=COPY_SECONDS)
        )

    def csv_pages(self, path: str, params: Sequence[tuple[str, str]]) -> Iterator[str]:
        """GET a path below /api/v1 as CSV, and the pages that follow it."""
        for response in self._pages(path, params, accept="text/csv"):
            response.encoding = "utf-8"
            yield response.text

    def _pages(
        self, path: str, params: Sequence[tuple[str, str]], *, accept: str
    ) -> Iterator[requests.Response]:
        url, query = f"{self._base}{path}", list(params)
        while url:
            response = self._connection.send("GET", url, params=query, headers={"Accept": accept})
            yield response
            following = response.links.get("next", {}).get("url", "")
            url, query = urljoin(self._base, following) if following else "", []
