"""A store that never answers, for the panels that must say so."""

from typing import NoReturn

from timeseries.store import LatestQuery, RangeQuery, StoreUnavailableError

MESSAGE = "The time series store does not answer. Try again in a minute."


class LostStore:
    """Raises on every question and counts them."""

    def __init__(self) -> None:
        self.asked = 0

    def query_range(self, _query: RangeQuery) -> NoReturn:
        self._fail()

    def latest(self, _query: LatestQuery) -> NoReturn:
        self._fail()

    def _fail(self) -> NoReturn:
        self.asked += 1
        raise StoreUnavailableError(MESSAGE)
