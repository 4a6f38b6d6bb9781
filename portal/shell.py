"""The frame around the dashboards: Dash's own parts inside our layout."""

from collections.abc import Mapping

from flask import render_template
from markupsafe import Markup


def render_shell(title: str, parts: Mapping[str, str]) -> str:
    """Return the page of a dashboard.

    Args:
        title: what the browser's tab says.
        parts: Dash's markup by placeholder: metas, favicon, css, app_entry, config, scripts,
            renderer.
    """
    # Dash escapes its own parts: they are markup, not text.
    safe = {name: Markup(markup) for name, markup in parts.items()}  # noqa: S704
    return render_template("dash_shell.html", title=title, parts=safe)
