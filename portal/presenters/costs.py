"""Costs as pages show them."""

from decimal import Decimal

from core.money import cents, format_amount
from portal.context import portal


def money(amount: Decimal) -> str:
    """Return an amount in cents with the currency of the portal."""
    return format_amount(cents(amount), portal().settings.billing_currency)
