"""What a requested job asks of rented appliances: its highest price, and what they must meet."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from jobqueue.executors.abilities import needs_of
from jobqueue.placement.rental_filters import REFUSED
from jobqueue.placement.rentals import AVAILABILITY, RENTAL_KEYS, REPUTATION, words_of
from protocol.job_spec import JobKind, JobRequest

MAX_VALUE_LENGTH = 500
_MAXIMA = {AVAILABILITY: 100, REPUTATION: 1}
# The fields of needs that are not named after theirs.
_FIELDS = {"network gang": "network", "network host": "network", "gang": "framework"}


def rental_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request about rented appliances, by field."""
    for problem in requirement_errors(request.rental):
        yield "rental", problem
    if not request.max_gpu_hour_price:
        if request.rental:
            yield "rental", "rental is set without max_gpu_hour_price; set the highest price, too."
        return
    needs = needs_of(request, is_service=request.kind is JobKind.SERVICE)
    need = next((need for need in REFUSED if need in needs), None)
    if need is not None:
        name = _FIELDS.get(need, need.value)
        own = f"remove {name}, or set max_gpu_hour_price to 0 to stay on own appliances"
        yield "max_gpu_hour_price", f"Rented appliances {REFUSED[need]}; {own}."
    elif request.cluster_options:
        instead = "remove cluster_options, or set max_gpu_hour_price to 0"
        yield "max_gpu_hour_price", f"No clusters are rented; {instead}."


def requirement_errors(rental: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with requirements, as sentences."""
    return filter(None, (_problem(key, value) for key, value in rental.items()))


def _problem(key: str, value: str) -> str:
    """Return what is wrong with a requirement, as a sentence, or ""."""
    if key not in RENTAL_KEYS:
        near = get_close_matches(key, RENTAL_KEYS, n=1)
        instead = f"Did you mean {near[0]!r}?" if near else f"Use {', '.join(RENTAL_KEYS)}."
        return f"There is no requirement {key[:MAX_VALUE_LENGTH]!r}. {instead}"
    if len(value) > MAX_VALUE_LENGTH or not value.isprintable():
        return f"{key} is too long, or has unprintable characters; enter a short text."
    if key not in _MAXIMA:
        return "" if words_of(value) else f"{key} is empty; enter a value, or remove it."
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if 0 <= number <= _MAXIMA[key]:
        return ""
    return f"{key} is {value!r}; enter a number from 0 to {_MAXIMA[key]}."
