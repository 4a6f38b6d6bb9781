"""Errors of gangs' networks."""


class NetworkError(Exception):
    """A network can't be made; the message says why, for the job's page."""


class LostError(NetworkError):
    """What a running member needs is gone, and can't be made again."""


class BusyError(NetworkError):
    """The engine does not answer now; a later try may succeed."""
