"""Access points: how a relay is started."""

from portal.context import portal

SETTINGS_FILE = "/etc/vedette/relay.env"
START_COMMAND = "vedette relay"


def relay_settings(secret: str) -> str:
    """Return the settings that a new relay needs, as lines of its file."""
    url = portal().settings.resolved_public_url
    return f"VEDETTE_RELAY_UPSTREAM_URL={url}\nVEDETTE_RELAY_TOKEN={secret}\n" if secret else ""
