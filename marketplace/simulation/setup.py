"""Who is on a simulated market, and how they behave.

*Bad* providers are cheaper, fail jobs, are down, and fail checks. Some of them are in a *ring*:
they praise each other, and each has *raters*, customers of its own making, which run jobs there
and praise it. Raters of which nothing is known are *hidden*; the others share an email domain with
their provider. Some providers join late.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.errors import InvalidInputError
from core.spec import About, limit_errors

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class MarketSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the market, and who is bad."""

    providers: Annotated[int, About("Providers.", minimum=10, maximum=10_000)] = 1000
    bad_percent: Annotated[float, About("Of providers that are bad.", maximum=90)] = 10.0
    ring_percent: Annotated[float, About("Of bad providers that are in the ring.", maximum=100)] = (
        50.0
    )
    raters: Annotated[
        int, About("Customers that each provider of the ring makes.", maximum=200)
    ] = 20
    hidden_percent: Annotated[float, About("Of these, that nothing ties to it.", maximum=100)] = (
        50.0
    )
    customers: Annotated[int, About("Honest customers.", minimum=10, maximum=20_000)] = 2000
    contracts: Annotated[int, About("Of each customer.", minimum=1, maximum=50)] = 15
    jobs_per_day: Annotated[int, About("Of all customers.", minimum=10, maximum=50_000)] = 5000
    days: Annotated[int, About("That are simulated.", minimum=10, maximum=1000)] = 180
    late_percent: Annotated[float, About("Of good providers that join half way.", maximum=90)] = 5.0
    half_life_days: Annotated[float, About("Of evidence.", minimum=1, maximum=1000)] = 60.0


@dataclass(frozen=True, slots=True)
class Population:
    """The providers of a market; arrays have an entry for each.

    Attributes:
        prices: of a GPU for an hour.
        slots: jobs that it can run in a day.
        fault_rates: of its jobs, that its faults end.
        down_rates: of its days, on which it was not available for longer than a minute.
        check_rates: of its weekly checks, that fail.
        slow_rates: of its answers to requests, that are late.
        breach_rates: of its days, with a breach of a contract.
        joins_at: its first day.
    """

    is_bad: Mask
    in_ring: Mask
    prices: Floats
    slots: Ints
    fault_rates: Floats
    down_rates: Floats
    check_rates: Floats
    slow_rates: Floats
    breach_rates: Floats
    joins_at: Ints

    @property
    def size(self) -> int:
        """The number of providers."""
        return len(self.prices)


# Of good and of bad providers.
_RATES = {
    "fault_rates": (0.01, 0.25),
    "down_rates": (0.02, 0.5),
    "check_rates": (0.005, 0.30),
    "slow_rates": (0.05, 0.50),
    "breach_rates": (0.003, 0.12),
}
# How bad providers attract customers.
BAD_PRICE = 0.8
_PRICE, _SPREAD = 2.0, 0.15
_MEAN_SLOTS = 10


def check_setup(setup: MarketSetup) -> None:
    """Check a setup.

    Raises:
        InvalidInputError: names every field that is out of its limits.
    """
    errors: dict[str, list[str]] = {}
    for name, problem in limit_errors(setup):
        errors.setdefault(name, []).append(problem)
    if setup.contracts > setup.providers // 2:
        errors["contracts"] = ["A customer has contracts with half of the providers at most."]
    if errors:
        text = " ".join(problem for problems in errors.values() for problem in problems)
        raise InvalidInputError(text, errors=errors)


def populate(setup: MarketSetup, seed: int) -> Population:
    """Return the providers of a market, drawn at random."""
    rng = np.random.default_rng(seed)
    size = setup.providers
    bad = round(size * setup.bad_percent / 100)
    is_bad = np.arange(size) < bad
    in_ring = np.arange(size) < round(bad * setup.ring_percent / 100)
    is_late = ~is_bad & (rng.random(size) < setup.late_percent / 100)
    prices = _PRICE * rng.lognormal(0, _SPREAD, size) * np.where(is_bad, BAD_PRICE, 1.0)
    # Rates differ from provider to provider, by half up or down.
    rates: dict[str, Any] = {
        name: np.where(is_bad, high, low) * rng.uniform(0.5, 1.5, size)
        for name, (low, high) in _RATES.items()
    }
    return Population(
        is_bad=is_bad,
        in_ring=in_ring,
        prices=np.round(prices, 4),
        slots=1 + rng.geometric(1 / (_MEAN_SLOTS - 1), size),
        joins_at=np.where(is_late, setup.days // 2, 0),
        **rates,
    )
