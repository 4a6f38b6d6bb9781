"""Query parameters of addresses: what is wrong with those that nothing reads."""

import difflib
from collections.abc import Collection, Iterable
from itertools import islice

# Mail programs and other sites add them to links; `next` leads back after signing in.
_ADDED_BY_OTHERS = frozenset({"next", "fbclid", "gclid", "msclkid"})
_TRACKING_PREFIX = "utm_"
_MOST_LISTED = 12
_MOST_REPORTED = 20


def unknown_parameters(names: Iterable[str], valid_names: Collection[str]) -> dict[str, list[str]]:
    """Return the errors of parameters that are not among the known ones, by name.

    The first ones, because each is compared with all known ones.
    """
    unknown = (name for name in names if name not in valid_names)
    return {name: [_error(name, valid_names)] for name in islice(unknown, _MOST_REPORTED)}


def is_added_by_others(name: str) -> bool:
    """Return whether a parameter is no part of an address that Vedette made or documents."""
    return name in _ADDED_BY_OTHERS or name.startswith(_TRACKING_PREFIX)


def _error(name: str, valid_names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, valid_names, n=1)
    if near:
        advice = f"Did you mean {near[0]!r}?"
    elif valid_names:
        ellipsis = ", ..." if len(valid_names) > _MOST_LISTED else ""
        advice = f"Use {', '.join(sorted(valid_names)[:_MOST_LISTED])}{ellipsis}, or remove it."
    else:
        advice = "This address has none. Remove it."
    return f"Unknown query parameter {name[:100]!r}. {advice}"
