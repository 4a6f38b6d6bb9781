"""The form of a price list."""

from typing import Any

from wtforms import DateTimeLocalField, StringField
from wtforms.validators import Optional

from marketplace.prices.service import PriceListRequest, PriceRow
from portal.forms.form import Form, LinesField
from portal.time_zone import in_reader_zone

ALL_OTHERS = "*"
_FORMAT = "%Y-%m-%dT%H:%M"


def parse_price(line: str) -> PriceRow:
    """Return the price of `H100 = 2.45`; `*`, or nothing, stands for all other models."""
    model, equals, price = (part.strip() for part in line.partition("="))
    if not equals:
        raise ValueError(f"Expected MODEL=PRICE, got {line.strip()[:50]!r}.")
    return PriceRow(price=price, gpu_model="" if model == ALL_OTHERS else model)


def format_price(row: PriceRow) -> str:
    """Return a price as a line that `parse_price` accepts."""
    return f"{row.gpu_model or ALL_OTHERS}={row.price}"


class PriceListForm(Form):
    """A new price list: a line for each word of a model."""

    prices = LinesField("Prices of a GPU for an hour", parse=parse_price, format=format_price)
    valid_from = DateTimeLocalField("From", [Optional()], format=_FORMAT)
    valid_until = DateTimeLocalField("Until", [Optional()], format=_FORMAT)
    note = StringField("Note", default="")

    def request(self) -> PriceListRequest:
        """Return the price list that was entered."""
        times: dict[str, Any] = {
            field.name: in_reader_zone(field.data) if field.data else None
            for field in (self.valid_from, self.valid_until)
        }
        return PriceListRequest(prices=self.prices.data or [], note=self.note.data, **times)
