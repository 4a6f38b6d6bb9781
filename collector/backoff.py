"""How long to wait before trying again: doubling, with jitter, up to a cap."""

from random import Random

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
# Who was shut out waits for a person, who need not be knocked up twice a minute.
REFUSED_LONGEST_SECONDS = 300.0


class Backoff:
    """Counts failures in a row; jitter keeps a fleet from returning all at once."""

    def __init__(
        self,
        *,
        first_seconds: float = FIRST_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
        random: Random | None = None,
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self.failures = 0

    def next_seconds(self, *, at_least: float | None = None, is_refused: bool = False) -> float:
        """Count a failure and return the wait, no shorter than the other side asked for.

        Args:
            at_least: what it asked for.
            is_refused: whether it does not let this agent in; the wait doubles further then.
        """
        longest_seconds = REFUSED_LONGEST_SECONDS if is_refused else self._longest_seconds
        doubled = self._first_seconds * 2.0 ** min(self.failures, 16)
        self.failures += 1
        jittered = min(longest_seconds, doubled) * self._random.uniform(0.5, 1.0)
        return max(jittered, at_least or 0.0)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0
