"""The page around the dashboards: Dash's markup in the portal's layout."""

from collections.abc import Mapping

from flask import render_template
from markupsafe import Markup


def render_shell(title: str, parts: Mapping[str, str]) -> str:
    """Return the page of a dashboard.

    Args:
        title: title of the browser tab.
        parts: Dash's markup by placeholder: metas, favicon, css, app_entry, config, scripts,
            renderer.
    """
    # Dash escapes its markup.
    safe = {name: Markup(markup) for name, markup in parts.items()}  # noqa: S704
    return render_template("dash_shell.html", title=title, parts=safe)
