"""The mailbox for replies to tickets is checked when the server starts."""

import pytest

from core.errors import ConfigurationError
from core.settings import load_server_settings

IMAP = "imaps://user:password@imap.example.com/INBOX"


def test_an_address_and_a_mailbox_are_accepted() -> None:
    settings = load_server_settings(
        {"VEDETTE_SUPPORT_ADDRESS": "support@example.com", "VEDETTE_SUPPORT_IMAP_URL": IMAP}
    )
    assert (settings.support_address, settings.support_imap_url) == ("support@example.com", IMAP)


@pytest.mark.parametrize(
    ("address", "url", "problem"),
    [
        ("support", IMAP, "use an address such as"),
        ("a+b@example.com", IMAP, "no +"),
        (f"{'x' * 19}@example.com", IMAP, "at most 18 characters"),
        ("support@example.com", "https://example.com", "use imaps://"),
        ("support@example.com", "", "need each other"),
        ("", IMAP, "need each other"),
    ],
)
def test_what_could_not_be_used_is_refused(address: str, url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_server_settings({"VEDETTE_SUPPORT_ADDRESS": address, "VEDETTE_SUPPORT_IMAP_URL": url})
    assert problem in str(caught.value)
