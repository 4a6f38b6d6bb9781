"""A route of the API: what it takes, and what its description tells of headers and errors."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from portal.answering.idempotency import KEPT, KEY_HEADER, MAX_KEY_LENGTH
from portal.api.needs import Need

IDEMPOTENCY_PARAMETER: dict[str, Any] = {
    "in": "header",
    "name": KEY_HEADER,
    "description": "A word of your choice. The same request with the same one is done once; for "
    f"{KEPT.total_seconds() / 3600:.0f} hours the first answer is given again.",
    "schema": {
        "type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[!-~]+$",
    },
}  # fmt: skip
IF_MATCH_PARAMETER: dict[str, Any] = {
    "in": "header",
    "name": "If-Match",
    "description": "The `ETag` that you read. Where the object is another by now, 412 is answered.",
    "schema": {"type": "string"},
}
IF_NONE_MATCH_PARAMETER: dict[str, Any] = {
    "in": "header",
    "name": "If-None-Match",
    "description": "The `ETag` that you have. Where the object is the same, 304 is answered.",
    "schema": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class Route:
    """What is known of a route before its function is.

    Attributes:
        method: the HTTP method.
        path: below the resource's prefix.
        need: what it asks of who calls.
        row: the model of what it changes, where it heeds `If-Match`.
        volatile: fields that the ETag of what it answers with leaves out.
        is_creation: whether it heeds `Idempotency-Key`.
        has_body: whether it takes one.
        has_query: whether it takes one.
        is_single: whether it answers with one object, and its ETag.
    """

    method: str
    path: str
    need: Need
    row: Any = None
    volatile: Collection[str] = ()
    is_creation: bool = False
    has_body: bool = False
    has_query: bool = False
    is_single: bool = False

    @property
    def may_be_unchanged(self) -> bool:
        """Whether it may answer that the object is as its reader has it."""
        return self.is_single and not self.volatile

    def header_parameters(self) -> list[dict[str, Any]]:
        """Return the request headers that it heeds."""
        return [
            *([IDEMPOTENCY_PARAMETER] if self.is_creation else []),
            *([IF_NONE_MATCH_PARAMETER] if self.may_be_unchanged else []),
            *([IF_MATCH_PARAMETER] if self.row is not None else []),
        ]

    def error_statuses(self) -> list[int]:
        """Return the errors that it may answer with."""
        is_change = self.method != "GET"
        return sorted(
            {
                401,
                403,
                429,
                *((404,) if "<" in self.path else ()),
                *((409,) if is_change else ()),
                *((412,) if self.row is not None else ()),
                *((400, 413, 415) if self.has_body else ()),
                *((422,) if is_change or self.has_body or self.has_query else ()),
            }
        )
