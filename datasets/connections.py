"""Data connections: credentials of a tenant for stores, encrypted, and never shown again."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Unpack
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from core.secretbox import SecretBox
from datasets.models import MAX_NAME_LENGTH, MAX_URL_LENGTH, DataConnection, DataPart, Dataset
from datasets.settings import settings_of
from datasets.sources import kind_of, secrets_of
from datasets.targets import notify_caches
from protocol.datasets import SourceKind
from tenants.checks import raise_if_invalid
from tenants.permissions import Permission
from tenants.quotas import count_rows
from tenants.scope import Scope

MAX_CONNECTIONS = 100
MAX_SECRET_LENGTH = 4000
CONNECTION_SORTS: Columns = {
    "name": DataConnection.name,
    "created_at": DataConnection.created_at,
}
SECRETS = ("secret_access_key", "session_token", "bearer_token")
_URL_PROBLEM = (
    "Enter what the connection is for, such as s3://bucket, https://host/ or ipfs://, without a "
    "user or password."
)
_KINDS = (SourceKind.S3, SourceKind.HTTPS, SourceKind.IPFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRequest:
    """A connection as a user writes it; a change keeps the stored credentials that it leaves empty.

    Attributes:
        url: what it is for, such as `s3://bucket`, `https://host/` or `ipfs://`.
        endpoint_url: of a server with S3's API, or of an IPFS gateway.
    """

    name: str
    url: str
    endpoint_url: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    bearer_token: str = ""

    @property
    def secrets(self) -> dict[str, str]:
        """The credentials that were entered."""
        return {name: text for name in SECRETS if (text := getattr(self, name).strip())}


def list_connections(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[DataConnection]:
    """Return the connections of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(DataConnection), DataConnection)
    ordered = statement.order_by(DataConnection.name, DataConnection.id)
    return list_page(session, ordered, CONNECTION_SORTS, last=DataConnection.id, **paging)


def get_connection(session: Session, scope: Scope, connection_id: str) -> DataConnection:
    """Return a connection of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, DataConnection, connection_id, kind="data connection")


def create_connection(
    session: Session, scope: Scope, request: ConnectionRequest, *, box: SecretBox, now: datetime
) -> DataConnection:
    """Add a connection to the scope's tenant.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the tenant has `MAX_CONNECTIONS`.
    """
    scope.require(Permission.MANAGE_DATA)
    tenant_id = scope.require_tenant()
    if count_rows(session, DataConnection.tenant_id == tenant_id) >= MAX_CONNECTIONS:
        raise ConflictError(f"There are {MAX_CONNECTIONS} data connections. Delete one first.")
    connection = DataConnection(tenant_id=tenant_id, created_at=now)
    _check(session, request, connection, is_new=True)
    _fill(connection, request, request.secrets, box)
    session.add(connection)
    session.flush()
    return connection


def update_connection(
    session: Session,
    scope: Scope,
    connection_id: str,
    request: ConnectionRequest,
    *,
    box: SecretBox,
) -> DataConnection:
    """Change a connection; credentials that are left out stay, unless they would go elsewhere.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.MANAGE_DATA)
    connection = get_connection(session, scope, connection_id)
    _check(session, request, connection, is_new=False)
    # Credentials that were for another address don't go to this one.
    stored = {} if _has_moved(connection, request) else secrets_of(connection, box)
    _fill(connection, request, stored | request.secrets, box)
    session.flush()
    notify_caches(session, connection.tenant_id)
    return connection


def delete_connection(session: Session, scope: Scope, connection_id: str) -> None:
    """Delete a connection.

    Raises:
        ConflictError: datasets use it, and names some; or results are in its bucket.
    """
    scope.require(Permission.MANAGE_DATA)
    connection = get_connection(session, scope, connection_id)
    if _is_for_results(session, connection):
        raise ConflictError(
            f"The tenant's results are in the bucket of {connection.name}. Choose another place "
            "for them in the data settings first."
        )
    if _has_parts(session, connection):
        raise ConflictError(
            f"Results of jobs are still in the bucket of {connection.name}. Its connection can be "
            "deleted a day after they are: by hand, or when their retention ends."
        )
    uses = select(Dataset.name).where(Dataset.connection_id == connection.id)
    names = session.scalars(uses.order_by(Dataset.name).limit(4)).all()
    if names:
        listed = ", ".join(names[:3]) + (" and others" if names[3:] else "")
        raise ConflictError(
            f"Datasets use {connection.name} ({listed}). Delete them, or give them another "
            "connection, first."
        )
    session.delete(connection)
    session.flush()


def _fill(
    connection: DataConnection, request: ConnectionRequest, secrets: dict[str, str], box: SecretBox
) -> None:
    for name, text in asdict(request).items():
        if name not in SECRETS:
            setattr(connection, name, text.strip())
    connection.secrets = box.encrypt(json.dumps(secrets)) if secrets else None


def _check(
    session: Session, request: ConnectionRequest, connection: DataConnection, *, is_new: bool
) -> None:
    name, url, endpoint = request.name.strip(), request.url.strip(), request.endpoint_url.strip()
    errors: dict[str, list[str]] = {}
    same = select(DataConnection.id).where(
        DataConnection.tenant_id == connection.tenant_id, DataConnection.name == name
    )
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        errors["name"] = [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    elif session.scalar(same) not in {None, connection.id}:
        errors["name"] = [f"A data connection named {name!r} already exists. Choose another name."]
    if kind_of(url) not in _KINDS or not _is_plain(url):
        errors["url"] = [_URL_PROBLEM]
    if endpoint and not (endpoint.startswith(("https://", "http://")) and _is_plain(endpoint)):
        errors["endpoint_url"] = ["Enter the address of a server, such as https://minio.example."]
    errors |= _credential_errors(request, is_new=is_new)
    has_moved = not is_new and _has_moved(connection, request)
    if has_moved and connection.secrets and not request.secrets:
        errors["url"] = [
            "Enter the credentials again: those that are stored were for another address."
        ]
    has_results = _is_for_results(session, connection) or _has_parts(session, connection)
    if has_moved and kind_of(url) is not SourceKind.S3 and has_results:
        errors["url"] = ["The tenant's results are in this bucket: it must begin with s3://."]
    raise_if_invalid(errors, "The data connection was not saved")


def _has_moved(connection: DataConnection, request: ConnectionRequest) -> bool:
    wanted = (request.url.strip(), request.endpoint_url.strip())
    return wanted != (connection.url, connection.endpoint_url)


def _is_for_results(session: Session, connection: DataConnection) -> bool:
    return settings_of(session, connection.tenant_id).results_connection_id == connection.id


def _has_parts(session: Session, connection: DataConnection) -> bool:
    stored = select(DataPart.sha256).where(
        DataPart.tenant_id == connection.tenant_id, DataPart.connection_id == connection.id
    )
    return session.scalar(stored.limit(1)) is not None


def _credential_errors(request: ConnectionRequest, *, is_new: bool) -> dict[str, list[str]]:
    limits = {"region": 100, "access_key_id": 200, **dict.fromkeys(SECRETS, MAX_SECRET_LENGTH)}
    errors = {
        field: [f"Use at most {limit} printable characters."]
        for field, limit in limits.items()
        if len(text := getattr(request, field).strip()) > limit or not text.isprintable()
    }
    if request.access_key_id.strip() and not request.secret_access_key and is_new:
        errors["secret_access_key"] = ["An access key ID needs its secret access key."]
    return errors


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return (
        len(url) <= MAX_URL_LENGTH
        and url.isprintable()
        and " " not in url
        and "@" not in parts.netloc
        and not parts.query
        and not parts.fragment
    )
