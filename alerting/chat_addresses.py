"""Addresses of chat and paging services, in the notation of apprise.

Only services with hosts of their own are allowed: the address of any other would make the portal
connect into the operator's network.
"""

from urllib.parse import parse_qs, urlsplit

SERVICES = frozenset(
    {
        "discord",
        "gchat",
        "msteams",
        "opsgenie",
        "pagerduty",
        "pover",
        "signl4",
        "slack",
        "tgram",
        "twilio",
        "victorops",
        "webex",
    }
)
# They would let a receiver hold the outbox for longer.
_BLOCKED_OPTIONS = frozenset({"cto", "rto", "retry", "wait"})


def chat_errors(target: str, *, services: frozenset[str] = SERVICES) -> list[str]:
    """Return why a text is not the address of a chat service; the text is never repeated."""
    try:
        url = urlsplit(target)
        options = parse_qs(url.query).keys()
    except ValueError:
        return ["This is not an address. Use one like slack://TOKEN_A/TOKEN_B/TOKEN_C."]
    if url.scheme not in services:
        known = ", ".join(sorted(services))
        return [f"Use an address of apprise that starts with one of these and '://': {known}."]
    blocked = sorted(options & _BLOCKED_OPTIONS)
    if blocked:
        return [f"Leave out the options {', '.join(blocked)}: the portal has its own."]
    from apprise import Apprise  # noqa: PLC0415 - see alerting.chat

    if Apprise.instantiate(target) is None:
        return [f"The address is not complete. See https://appriseit.com/services/{url.scheme}/."]
    return []
