"""Errors in the query parameters of a dashboard's address.

A dashboard with a mistyped parameter would show another time, or unfiltered data, without a word.
"""

from collections.abc import Collection
from urllib.parse import parse_qs

from core.query_parameters import is_added_by_others, unknown_parameters
from dash_app.timerange import EARLIER, PARAMETERS, RANGES, REFRESHES, Controls

# The portal reads it: the page is shown in a frame.
_EMBED = "embed"
_WINDOW_ADVICE = "Use milliseconds since 1970, the first before the second."


def parameter_problem(
    search: str | None, *, names: Collection[str], peers: Collection[str] = ()
) -> str:
    """Return the errors of an address as a message, empty for none.

    Args:
        search: the query string.
        names: the page's own parameters.
        peers: what the page can be compared with, besides earlier periods.
    """
    query = {
        name: values[-1]
        for name, values in parse_qs((search or "").removeprefix("?")).items()
        if not is_added_by_others(name)
    }
    unknown = unknown_parameters(query, sorted({*PARAMETERS, _EMBED, *names}))
    errors = [text for texts in unknown.values() for text in texts]
    controls = Controls.parse(search)
    has_window = "from" in query or "to" in query
    ignored = {
        "range": query.get("range", controls.range_key) != controls.range_key,
        "refresh": query.get("refresh", controls.refresh_key) != controls.refresh_key,
        "tz": "tz" in query and not controls.zone,
        "compare": bool(controls.compare) and controls.compare not in {*EARLIER, *peers},
        "from": has_window and controls.window is None,
    }
    advice = {
        "range": f"Use {', '.join(RANGES)}.",
        "refresh": f"Use {', '.join(REFRESHES)}.",
        "tz": "Use a name such as Europe/Oslo.",
        "compare": f"Use {', '.join([*EARLIER, *peers])}.",
        "from": _WINDOW_ADVICE,
    }
    errors += [
        f"Invalid {name} {query.get(name, '')[:100]!r}. {advice[name]}"
        for name, is_ignored in ignored.items()
        if is_ignored
    ]
    return " ".join(errors)
