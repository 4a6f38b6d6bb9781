"""Schemas that the resources of billing share."""

from typing import Any

from marshmallow import fields

from core.money import amount_text
from portal.api.schemas import about


class AmountField(fields.String):
    """A decimal as text, such as `1240.50`, in the currency of the portal."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **options: Any) -> Any:  # noqa: ANN401 - marshmallow's
        text = None if value is None else amount_text(value)
        return super()._serialize(text, attr, obj, **options)


def amount_field(description: str, **options: Any) -> AmountField:  # noqa: ANN401 - marshmallow's
    """Return a field for an amount of money in an answer."""
    return AmountField(**about(description, example="1240.50"), **options)
