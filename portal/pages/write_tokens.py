"""Write tokens: hosts that send by Telegraf, collectd, Prometheus or OpenTelemetry alone."""

from flask import render_template
from flask.typing import ResponseReturnValue

from portal.context import current_scope, database, now, public_url
from portal.forms.appliances import WriteTokenForm
from portal.pages.common import Pages
from portal.presenters.write_tokens import ca_command, configurations, write_token_progress
from portal.query_string import asked_page
from tenants.permissions import Permission
from tenants.write_tokens import create_write_token, list_write_tokens, revoke_write_token

pages = Pages("write_tokens", __name__)


@pages.get("/appliances/write-tokens")
def index() -> ResponseReturnValue:
    """List write tokens."""
    with database() as session:
        page = list_write_tokens(session, current_scope(), **asked_page())
    return render_template("appliances/write_tokens.html", page=page)


@pages.form("/appliances/new/other-program")
def add() -> ResponseReturnValue:
    """Create a write token and show it once with the configurations to paste."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    form = WriteTokenForm()
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                token, secret = create_write_token(
                    session,
                    scope,
                    name=form.name.data.strip(),
                    appliance_pattern=form.appliance_pattern.data.strip(),
                    lifetime=form.chosen_lifetime,
                    now=now(),
                )
            return _render(token.id, secret)
    return render_template("appliances/write_token_new.html", form=form), form.status


@pages.get("/appliances/write-tokens/<write_token_id>")
def show(write_token_id: str) -> ResponseReturnValue:
    """Show which hosts' samples come with a token."""
    return _render(write_token_id, "")


pages.acts("/appliances/write-tokens/<write_token_id>/revoke", revoke_write_token, "Token revoked")


def _render(token_id: str, secret: str) -> str:
    progress = write_token_progress(token_id)
    return render_template(
        "appliances/write_token.html",
        token=progress.token,
        progress=progress,
        portal_url=public_url(),
        secret_token=secret,
        configurations=configurations(progress.token, secret) if secret else [],
        ca_command=ca_command() if secret else "",
    )
