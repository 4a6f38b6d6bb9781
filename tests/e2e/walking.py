"""Walking the portal as somebody would: by its links, one page of every kind, in several looks."""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import Page

from cli.bootstrap import DEMO_PASSWORD

# Downloads, and what is no page of ours.
SKIPPED = re.compile(
    r"^/(static|docs|api/v1/(?!docs)|api/public)|/(export|pdf|csv|qr\.svg|codes\.txt)$|^/login/oidc"
)
IDENT = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/gpus/)\d+|(?<=/runbooks/)[a-z0-9-]+")
MOST_PAGES = 80
REFERENCE = "/api/v1/docs"

TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Look(NamedTuple):
    """A window's width and its theme."""

    width: int
    theme: str


WIDE_LIGHT, WIDE_DARK = Look(1440, "light"), Look(1440, "dark")
MIDDLE_DARK = Look(820, "dark")
NARROW_LIGHT, NARROW_DARK = Look(390, "light"), Look(390, "dark")


def sign_in(page: Page, email: str, password: str = DEMO_PASSWORD) -> None:
    """Sign somebody in and wait for the dashboards."""
    page.goto("/login")
    page.get_by_label("Email address").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboards/**")


def show(page: Page, path: str) -> None:
    """Open a page and wait until it is drawn."""
    page.goto(path)
    if urlsplit(path).path.startswith("/dashboards/"):
        page.locator("#page > *").first.wait_for()
        page.wait_for_load_state("networkidle")
    if path == REFERENCE:
        page.locator(".opblock").first.wait_for()


def put_on(page: Page, look: Look) -> None:
    """Give the open page a width and a theme, and let it be drawn."""
    page.set_viewport_size({"width": look.width, "height": 900})
    page.emulate_media(
        color_scheme="dark" if look.theme == "dark" else "light", reduced_motion="reduce"
    )
    page.evaluate(TWO_FRAMES)


def pages_from(page: Page, start: str, *, without: Collection[str] = ()) -> Iterator[str]:
    """Open every kind of page that links lead to, one of each, and yield its kind meanwhile."""
    waiting, seen = [start], {start, *without}
    while waiting:
        path = waiting.pop(0)
        show(page, path)
        yield IDENT.sub("ID", path)
        for href in page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"):
            url = urlsplit(urljoin(page.url, href))
            kind = IDENT.sub("ID", url.path)
            is_ours = url.netloc == urlsplit(page.url).netloc and not SKIPPED.search(url.path)
            if is_ours and kind not in seen:
                seen.add(kind)
                waiting.append(url.path)
        assert len(seen) <= MOST_PAGES
