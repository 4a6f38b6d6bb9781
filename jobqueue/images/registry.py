"""The HTTP API of an OCI registry, as far as the portal needs it.

Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from core.clock import Clock
from core.errors import UnavailableError
from core.settings import ServerSettings
from jobqueue.images.tokens import DELETE, PULL, Access, RegistryTokens

if TYPE_CHECKING:
    from requests import Response

TIMEOUT_SECONDS = 10
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
# Manifests of an image for several platforms that are added up.
MAX_PLATFORMS = 32
MAX_NAMES = 10_000
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    *INDEXES,
)
_CATALOG = Access("catalog", ("*",), kind="registry")


class RegistryUnavailableError(UnavailableError):
    """The registry does not answer as it should; nothing was changed."""

    default_code = "registry_unavailable"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest that a tag refers to; layers have `digest` and `size_bytes`."""

    digest: str
    media_type: str
    size_bytes: int
    layers: list[dict[str, Any]]


class Registry:
    """The configured registry. Every call may raise `RegistryUnavailableError`."""

    def __init__(self, settings: ServerSettings, tokens: RegistryTokens, clock: Clock) -> None:
        self._base = settings.registry_internal_url or settings.registry_url
        self._tokens = tokens
        self._clock = clock
        self.shared_namespace = tokens.shared_namespace

    def repositories(self) -> Iterator[str]:
        """Yield the names of all repositories."""
        yield from self._names("/v2/_catalog", "repositories", _CATALOG)

    def tags(self, repository: str) -> Iterator[str]:
        """Yield the tags of a repository."""
        path = f"/v2/{quote(repository)}/tags/list"
        yield from self._names(path, "tags", Access(repository, (PULL,)))

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return what a tag or digest refers to, with the layers of all platforms; None if gone."""
        answer = self._read(repository, reference)
        if answer is None:
            return None
        digest, body = answer
        media_type = str(body.get("mediaType", MANIFESTS[0]))
        parts = [body]
        if media_type in INDEXES:
            children = [child for child in body.get("manifests", []) if _is_platform(child)]
            read = (self._read(repository, child["digest"]) for child in children[:MAX_PLATFORMS])
            parts = [child[1] for child in read if child is not None]
        layers = _sizes(layer for part in parts for layer in part.get("layers", []))
        configs = _sizes(part["config"] for part in parts if "config" in part)
        return Manifest(
            digest=digest,
            media_type=media_type,
            # Images for several platforms may share layers.
            size_bytes=sum((layers | configs).values()),
            layers=[{"digest": key, "size_bytes": size} for key, size in layers.items()],
        )

    def delete(self, repository: str, digest: str) -> None:
        """Delete a manifest with all its tags; one that is gone is no error."""
        path = f"/v2/{quote(repository)}/manifests/{digest}"
        self._request("DELETE", path, Access(repository, (PULL, DELETE)))

    def _read(self, repository: str, reference: str) -> tuple[str, dict[str, Any]] | None:
        response = self._request(
            "GET",
            f"/v2/{quote(repository)}/manifests/{quote(reference)}",
            Access(repository, (PULL,)),
            headers={"Accept": ", ".join(MANIFESTS)},
        )
        if response is None:
            return None
        digest = response.headers.get("Docker-Content-Digest", "")
        return digest, self._json(response)

    def _names(self, path: str, key: str, access: Access) -> Iterator[str]:
        url, count = f"{path}?n=100", 0
        while url and count < MAX_NAMES:
            response = self._request("GET", url, access)
            if response is None:
                return
            names = self._json(response).get(key) or []
            count += len(names)
            yield from names
            url = response.links.get("next", {}).get("url", "")

    def _request(
        self, method: str, path: str, access: Access, *, headers: Mapping[str, str] | None = None
    ) -> "Response | None":
        """Send a request; None if there is no such thing."""
        import requests  # noqa: PLC0415 - 4 MiB that servers without a registry save

        token = self._tokens.sign("portal", [access], now=self._clock())
        try:
            response = requests.request(
                method,
                urljoin(f"{self._base}/", path),
                headers={"Authorization": f"Bearer {token}", **(headers or {})},
                timeout=TIMEOUT_SECONDS,
                stream=True,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise RegistryUnavailableError(
                f"The registry {self._base} does not answer. Try again in a minute."
            ) from error
        if response.status_code == HTTPStatus.NOT_FOUND:
            response.close()
            return None
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            response.close()
            raise RegistryUnavailableError(
                f"The registry answered {response.status_code} to {method} {path}. Its "
                "configuration must be that of `vedette registry config`."
            )
        return response

    def _json(self, response: "Response") -> dict[str, Any]:
        with response:
            body = response.raw.read(MAX_MANIFEST_BYTES + 1, decode_content=True)
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if len(body) > MAX_MANIFEST_BYTES or not isinstance(document, dict):
            raise RegistryUnavailableError(f"The registry's answer to {response.url} is not valid.")
        return document


def _sizes(blobs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {str(blob["digest"]): int(blob["size"]) for blob in blobs}


def _is_platform(child: Mapping[str, Any]) -> bool:
    """Return whether a manifest in an index is an image: build tools add attestations."""
    return bool(child.get("platform", {}).get("os") != "unknown")
