"""How soon a program runs when Vedette starts it, beside another way to start it."""

from benchmarks.shared.document import Outcome, Promise, median, percentile, rounded

MOST_SECONDS = 1.0


def compared_starts(
    ours: tuple[str, list[float]], peer: tuple[str, list[float]], *, what: str
) -> Outcome:
    """Return the seconds of each and the promise about their difference; `what` starts."""
    results = {
        name: {"seconds": median(seconds), "seconds_p95": percentile(seconds, 95)}
        for name, seconds in (ours, peer)
    }
    difference = rounded((median(ours[1]) or 0.0) - (median(peer[1]) or 0.0))
    name = f"submit to {what}, above {peer[0]}, median"
    promises = [Promise(name, difference, MOST_SECONDS, "s")]
    return Outcome({**results, "difference": difference}, promises)
