"""Helpers that read the emails of a portal and compare pages."""

import re
import threading
from email.message import Message

LETTER_SECONDS = 60
# Signed with the second in which it is made: two equal pages need not hold the same one.
_CSRF_TOKEN = re.compile(r'csrf[-_]token"[^>]*>')
_LINK = re.compile(r"http://portal\.example(/\S+)")


def wait_for_letters() -> None:
    """Wait until everything is sent that the portal sends beside its requests."""
    for thread in threading.enumerate():
        if thread.name in {"reset-link", "sign-up-link"}:
            thread.join(LETTER_SECONDS)


def text_of(letter: Message) -> str:
    """Return a letter's plain text."""
    part = next(part for part in letter.walk() if part.get_content_type() == "text/plain")
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def link_in(text: str) -> str:
    """Return the path of the portal's link in a letter or on a page."""
    match = _LINK.search(text)
    assert match is not None, text
    return match[1].rstrip('"')


def without_tokens(page: str) -> str:
    """Return a page without its CSRF tokens."""
    return _CSRF_TOKEN.sub("TOKEN>", page)
