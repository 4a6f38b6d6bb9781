"""The query parameter `sort` of lists."""

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields

from core.errors import InvalidInputError
from core.sorting import sort_terms


def sort_field(columns: Mapping[str, Any], *, default: str) -> fields.String:
    """Return the field of a list that can be sorted by these names.

    Args:
        columns: what may be sorted by.
        default: how it is sorted without being asked; empty where no name says it.
    """

    def check(value: str) -> None:
        try:
            sort_terms(value, columns)
        except InvalidInputError as error:
            raise ValidationError(error.errors["sort"]) from error

    names = "|".join(columns)
    return fields.String(
        load_default=default,
        validate=lambda value: check(value) if value else None,
        metadata={
            "description": "Names with commas between, a hyphen before one to turn it round: "
            + ", ".join(f"`{name}`" for name in columns),
            "pattern": f"^(-?({names})(,-?({names}))*)?$",
            "example": f"-{next(iter(columns))}",
        },
    )
