"""Cases for or against a provider: what its reputation is computed from.

Each part of the marketplace that measures providers gives its cases in this form.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Dimension(StrEnum):
    """What a provider is judged by."""

    AVAILABILITY = "availability"
    JOBS = "jobs"
    RESPONSE = "response"
    CHECKS = "checks"
    SATISFACTION = "satisfaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement of a provider.

    Attributes:
        dimension: what it is about.
        good: how far it speaks for the provider, 0 to 1.
        weight: how many cases it counts as, such as a day of an appliance or an attempt.
        at: when it was measured.
        kind: of what sort it is, stable, such as `node_failed`.
        subject: the id of what it is about: an attempt, appliance, ticket or customer.
        text: for the list of evidence; it names nobody.
    """

    dimension: Dimension
    good: float
    weight: float = 1.0
    at: datetime
    kind: str
    subject: str = ""
    text: str = ""
