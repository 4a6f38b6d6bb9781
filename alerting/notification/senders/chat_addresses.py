"""Addresses of chat services, in the notation of apprise.

Only services with hosts of their own are allowed, and of their options only those that change the
message or who gets it: others of apprise name files and addresses to read, turn off the check of
certificates, or hold the outbox for longer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from apprise.plugins import NotifyBase

# Each is a request of its own, and apprise waits between them.
MAX_TARGETS = 10


@dataclass(frozen=True, slots=True)
class ChatService:
    """A service.

    Attributes:
        name: as users know it.
        hosts: what it sends to; one that begins with a dot stands for its subdomains.
        options: the names of allowed options, in lower case.
    """

    name: str
    hosts: tuple[str, ...]
    options: frozenset[str] = frozenset()

    def has_host(self, host: str) -> bool:
        """Return whether a host is one of the service's own."""
        return any(
            host == own or (own.startswith(".") and host.endswith(own)) for own in self.hosts
        )


def _service(name: str, *hosts: str, options: str = "") -> ChatService:
    return ChatService(name, hosts, frozenset(options.split()))


SERVICES = {
    "discord": _service(
        "Discord",
        "discord.com",
        options="avatar avatar_url fields flags footer footer_logo ping thread tts",
    ),
    "gchat": _service("Google Chat", "chat.googleapis.com", options="key thread token workspace"),
    "pover": _service(
        "Pushover",
        "api.pushover.net",
        options="expire interval priority sound to url url_title",
    ),
    "signl4": _service(
        "SIGNL4", "connect.signl4.com", options="alerting_scenario filtering location service"
    ),
    "slack": _service(
        "Slack",
        "slack.com",
        "hooks.slack.com",
        "hooks.slack-gov.com",
        options="blocks footer image mode timestamp to token",
    ),
    "tgram": _service(
        "Telegram",
        "api.telegram.org",
        options="mdv preview silent thread to topic",
    ),
    "twilio": _service("Twilio", "api.twilio.com", options="apikey from method sid to token"),
    "victorops": _service(
        "VictorOps", "alert.victorops.com", options="apikey entity_id route routing_key"
    ),
    "webex": _service("Webex", "webexapis.com", "api.ciscospark.com", options="mode to token"),
    # Microsoft Teams has no webhooks of its own any more.
    "workflows": _service(
        "Microsoft Teams (Workflows)",
        ".logic.azure.com",
        ".api.powerplatform.com",
        options="api-version id image pa powerautomate route routeid sig ver wrap",
    ),
}
REPLACED = {
    "opsgenie": _service(
        "Opsgenie",
        "api.opsgenie.com",
        "api.eu.opsgenie.com",
        options="alias entity priority region tags to",
    ),
    "pagerduty": _service(
        "PagerDuty",
        "events.pagerduty.com",
        "events.eu.pagerduty.com",
        options="class click group region severity",
    ),
}
"""Services with a type of receiver of their own; see `paging_addresses`."""
Services = dict[str, ChatService]


def chat_errors(target: str, *, services: Services = SERVICES) -> list[str]:
    """Return why a text is not the address of a chat service; the text is never repeated."""
    scheme, _, rest = target.partition("://")
    if not rest or scheme not in services:
        names = ", ".join(sorted(services))
        text = f"Use an address of apprise that starts with one of these and '://': {names}."
        if scheme in REPLACED:
            text = f"Add a receiver of the type {scheme} instead: it resolves what it opens."
        return [text]
    parsed = _parsed(target)
    see = f"See https://appriseit.com/services/{scheme}/."
    if parsed is None:
        return [f"The address is not complete. {see}"]
    options = services[scheme].options
    for name in sorted(parsed["qsd"].keys() - options):
        allowed = f"Allowed are {', '.join(sorted(options))}." if options else "It has none."
        return [f"The option {name[:40]!r} is not allowed for {scheme}. {allowed}"]
    service = _instance(parsed)
    if service is None:
        return [f"The address is not complete. {see}"]
    if len(service) > MAX_TARGETS:
        return [f"The address has {len(service)} targets. The maximum is {MAX_TARGETS}."]
    return []


def chat_service(target: str) -> "NotifyBase | None":
    """Return what sends to an address without errors."""
    parsed = _parsed(target)
    return None if parsed is None else _instance(parsed)


def _parsed(target: str) -> dict[str, Any] | None:
    """Return the parts of an address as apprise reads them: it has its own rules."""
    from apprise.plugins import url_to_dict  # noqa: PLC0415 - see alerting.notification.senders.chat

    try:
        parsed: dict[str, Any] | None = url_to_dict(target)  # type: ignore[no-untyped-call] # apprise's
    except ValueError:  # such as a bad bracket
        return None
    return parsed if parsed and parsed["schema"] == urlsplit(target).scheme else None


def _instance(parsed: dict[str, Any]) -> "NotifyBase | None":
    from apprise import Apprise  # noqa: PLC0415 - see alerting.notification.senders.chat

    return Apprise.instantiate(parsed)
