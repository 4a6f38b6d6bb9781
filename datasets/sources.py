"""Addresses of sources: which kinds there are, what is wrong with one, and how an agent gets it.

The portal never opens an address: an agent of the tenant does.
"""

import json
import re
from collections.abc import Callable
from urllib.parse import SplitResult, parse_qsl, urlsplit

from core.secretbox import SecretBox
from datasets.models import MAX_URL_LENGTH, DataConnection, Dataset
from protocol.datasets import DatasetSource, SourceKind
from protocol.manifests import safe_path

DEFAULT_GATEWAY = "https://trustless-gateway.link"
ON_AN_APPLIANCE = (SourceKind.FILE, SourceKind.NFS)
"""What is at an appliance that the user names, not anywhere."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
# Version 0, and version 1 in base 32: https://github.com/multiformats/cid.
_CID = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}|b[a-z2-7]{58,120}")
_SECRET_PARAMETERS = re.compile(
    r"x-amz-(signature|credential|security-token)|awsaccesskeyid|signature|sig|token|access_token"
    r"|api_?key|password|secret",
    re.IGNORECASE,
)
_EXAMPLES = (
    "s3://bucket/prefix, https://host/file.tar, file:///data/images, nfs://host/export/images or "
    "ipfs://CID"
)


def kind_of(url: str) -> SourceKind | None:
    """Return the kind of a source's address; None if it is none."""
    scheme = url.partition("://")[0].lower()
    kinds = {kind.value: kind for kind in SourceKind if kind is not SourceKind.UPLOAD}
    return kinds.get(scheme) if "://" in url else None


def source_problem(url: str) -> str | None:
    """Return what is wrong with the address of a source, and what to do."""
    kind = kind_of(url)
    if len(url) > MAX_URL_LENGTH or not url.isprintable() or " " in url:
        return (
            f"The address must have at most {MAX_URL_LENGTH} characters, without spaces or control "
            "characters: percent-encode them."
        )
    if kind is None:
        return f"{url[:100]!r} is not the address of a source. Use {_EXAMPLES}."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"{url[:100]!r} is not an address: {error}."
    if "@" in parts.netloc:
        return "The address has a user or password. Leave them out, and use a data connection."
    if parts.fragment or (parts.query and kind is not SourceKind.HTTPS):
        return "The address has a '?' or '#' part. Leave it out."
    return _PROBLEMS[kind](parts)


def connection_fits(connection_url: str, url: str) -> bool:
    """Return whether a connection's address is that of a source, or a folder above it."""
    base = connection_url if connection_url.endswith("/") else f"{connection_url}/"
    return url == connection_url or url.startswith(base)


def source_of(dataset: Dataset, box: SecretBox) -> DatasetSource:
    """Return what an agent needs to read a dataset's source, credentials included.

    Raises:
        UnavailableError: the key of the credentials is missing.
    """
    connection, url = dataset.connection, dataset.source_url
    if connection is None or not connection_fits(connection.url, url):
        gateway = DEFAULT_GATEWAY if dataset.kind is SourceKind.IPFS else ""
        return DatasetSource(kind=dataset.kind, url=url, gateway_url=gateway)
    is_ipfs = dataset.kind is SourceKind.IPFS
    secrets = secrets_of(connection, box)
    return DatasetSource(
        kind=dataset.kind,
        url=url,
        endpoint_url="" if is_ipfs else connection.endpoint_url,
        gateway_url=(connection.endpoint_url or DEFAULT_GATEWAY) if is_ipfs else "",
        region=connection.region,
        access_key_id=connection.access_key_id,
        secret_access_key=secrets.get("secret_access_key", ""),
        session_token=secrets.get("session_token", ""),
        bearer_token=secrets.get("bearer_token", ""),
    )


def secrets_of(connection: DataConnection, box: SecretBox) -> dict[str, str]:
    """Return the decrypted credentials of a connection by the names of `DatasetSource`."""
    stored: dict[str, str] = (
        json.loads(box.decrypt(connection.secrets)) if connection.secrets else {}
    )
    return stored


def is_path(path: str) -> bool:
    """Return whether a path is absolute and stays where it is, without '..'."""
    inner = path.strip("/")
    return path.startswith("/") and (not inner or safe_path(inner))


def _s3_problem(parts: SplitResult) -> str | None:
    if not _BUCKET.fullmatch(parts.netloc):
        return f"{parts.netloc[:80]!r} is not the name of a bucket. Use s3://bucket/prefix."
    prefix = parts.path.strip("/")
    if prefix and not safe_path(prefix):
        return "The prefix in the bucket has '..', '.' or empty names. Use s3://bucket/prefix."
    return None


def _https_problem(parts: SplitResult) -> str | None:
    if not _HOST.fullmatch(parts.netloc.partition(":")[0] if parts.hostname else ""):
        return "The address has no host name. Use https://host/file.tar."
    if parts.path.rstrip("/") == "" or parts.path.endswith("/"):
        return "An https:// source is one file. Use its address, such as https://host/file.tar."
    named = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    secret = next((name for name in named if _SECRET_PARAMETERS.fullmatch(name)), None)
    if secret is not None:
        return (
            f"The address has credentials ({secret[:40]}), which expire and would be shown. Use "
            "the plain address with a data connection."
        )
    return None


def _file_problem(parts: SplitResult) -> str | None:
    if parts.netloc:
        return "A path on the appliance begins with three slashes, as file:///data/images."
    return None if is_path(parts.path) and parts.path.strip("/") else _BAD_PATH


def _nfs_problem(parts: SplitResult) -> str | None:
    if not _HOST.fullmatch(parts.netloc):
        return "Use nfs://host/export/folder, without a port."
    return None if is_path(parts.path) and parts.path.strip("/") else _BAD_PATH


def _ipfs_problem(parts: SplitResult) -> str | None:
    inner = parts.path.strip("/")
    if not _CID.fullmatch(parts.netloc):
        return f"{parts.netloc[:80]!r} is not a CID. Use ipfs://CID, with Qm... or bafy..."
    return None if not inner or safe_path(inner) else _BAD_PATH


_BAD_PATH = "The path must be absolute, without '..', '.' and empty names, as /data/images."
_PROBLEMS: dict[SourceKind, Callable[[SplitResult], str | None]] = {
    SourceKind.S3: _s3_problem,
    SourceKind.HTTPS: _https_problem,
    SourceKind.FILE: _file_problem,
    SourceKind.NFS: _nfs_problem,
    SourceKind.IPFS: _ipfs_problem,
}
