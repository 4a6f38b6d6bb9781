"""Signed addresses of parts in a tenant's own bucket.

Agents and browsers use them without the credentials, and signing needs no connection. The portal
itself opens none: the tenant names the server.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.secretbox import SecretBox
from datasets.models import DataConnection

# An upload of a part over a slow line takes this long at most.
PUT_LIFETIME = timedelta(hours=6)
GET_LIFETIME = timedelta(hours=1)
_DEFAULT_REGION = "us-east-1"
BUCKET_GONE = "The file is in a bucket whose data connection was deleted."


@dataclass(frozen=True, slots=True)
class Bucket:
    """A tenant's bucket; `store` is obstore's."""

    store: Any

    def put_url(self, sha256: str) -> str:
        """Return where a part can be put."""
        return self._signed("PUT", sha256, PUT_LIFETIME)

    def get_url(self, sha256: str) -> str:
        """Return where a part can be fetched."""
        return self._signed("GET", sha256, GET_LIFETIME)

    def delete_url(self, sha256: str) -> str:
        """Return where a part can be deleted."""
        return self._signed("DELETE", sha256, GET_LIFETIME)

    def _signed(self, method: Any, sha256: str, lifetime: timedelta) -> str:  # noqa: ANN401 - a literal
        try:
            return str(obstore.sign(self.store, method, part_key(sha256), lifetime))
        except BaseError as error:
            raise UnavailableError(
                "The credentials of the tenant's bucket can't sign addresses: "
                f"{str(error).partition(chr(10))[0]}. Enter them again in the data connection."
            ) from error


def part_key(sha256: str) -> str:
    """Return the key of a part in a bucket, below the prefix of its connection."""
    return f"parts/{sha256[:2]}/{sha256}"


def bucket_of(session: Session, connection_id: str | None, box: SecretBox) -> Bucket | None:
    """Return the bucket of a connection; None without one.

    Raises:
        UnavailableError: its credentials can't be decrypted.
    """
    connection = session.get(DataConnection, connection_id) if connection_id else None
    if connection is None:
        return None
    secrets = json.loads(box.decrypt(connection.secrets)) if connection.secrets else {}
    place = urlsplit(connection.url)
    endpoint = connection.endpoint_url
    options: dict[str, Any] = {
        "region": connection.region or _DEFAULT_REGION,
        "access_key_id": connection.access_key_id,
        "secret_access_key": secrets.get("secret_access_key", ""),
    }
    if secrets.get("session_token"):
        options["session_token"] = secrets["session_token"]
    if endpoint:
        options["endpoint"] = endpoint
    try:
        store = S3Store(
            place.netloc,
            prefix=place.path.strip("/") or None,
            client_options={"allow_http": endpoint.startswith("http://")},
            **options,
        )
    except (BaseError, ValueError) as error:
        raise UnavailableError(
            f"The data connection {connection.name!r} can't be used: "
            f"{str(error).partition(chr(10))[0]}. Check its address and region."
        ) from error
    return Bucket(store)
