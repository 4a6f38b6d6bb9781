"""Errors of the cache of datasets: what was wrong, where, and the next step."""

from collector.errors import CollectorError


class DataError(CollectorError):
    """Data can't be fetched; the message names the address and the next step."""

    default_code = "data_unavailable"


class TemporaryDataError(DataError):
    """It may work a little later: a server that does not answer, a cache full of data in use."""

    default_code = "data_delayed"


class ContentError(DataError):
    """What was sent is not what the manifest lists."""

    default_code = "data_changed"


class StoppedError(DataError):
    """Nobody wants this data now, or the agent ends."""

    default_code = "data_stopped"
