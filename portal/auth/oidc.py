"""Sign-in through an identity provider, if the settings name one."""

from typing import TYPE_CHECKING

from flask import Flask, current_app

from portal.context import Portal

if TYPE_CHECKING:
    from portal.auth.oidc_provider import Provider

CALLBACK_PATH = "/login/oidc/callback"
EXTENSION = "vedette-oidc"


def install_oidc(app: Flask, parts: Portal) -> None:
    """Connect the app to the identity provider of the settings, if there is one.

    Raises:
        ConfigurationError: lists all errors in the settings.
    """
    settings = parts.settings
    is_connected = bool(settings.oidc_issuer)
    app.jinja_env.globals["oidc_label"] = settings.oidc_label if is_connected else ""
    if is_connected:
        # 3 MiB that servers without an identity provider save.
        from portal.auth.oidc_provider import Provider  # noqa: PLC0415

        redirect_uri = f"{settings.resolved_public_url}{CALLBACK_PATH}"
        app.extensions[EXTENSION] = Provider(settings, redirect_uri=redirect_uri, clock=parts.clock)


def provider() -> "Provider | None":
    """Return the identity provider of the running portal, if there is one."""
    configured: Provider | None = current_app.extensions.get(EXTENSION)
    return configured
