"""`/console/access-points`: the addresses at which agents reach the portal, for operators."""

from typing import Any

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import select
from wtforms import IntegerField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, InputRequired

from portal.context import current_scope, database, now, public_url
from portal.forms.form import Form
from portal.pages.common import Pages
from portal.presenters.access_points import SETTINGS_FILE, START_COMMAND, relay_settings
from portal.query_string import asked_page
from tenants.fleet.access_points import (
    AccessPointKind,
    AccessPointRequest,
    ListedAccessPoint,
    change_access_point,
    create_access_point,
    delete_access_point,
    get_access_point,
    list_access_points,
    relay_problems,
    renew_relay_token,
)
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission
from tenants.tenants import tenant_names

pages = Pages("access_points", __name__, url_prefix="/console/access-points")

_KINDS = [
    SelectChoice(AccessPointKind.RELAY.value, "Relay: stores samples while the portal is away"),
    SelectChoice(AccessPointKind.DIRECT.value, "Direct: a process of the portal"),
]


class AccessPointForm(Form):
    """A new access point, or a change of one."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    url = StringField("Address", [DataRequired("Enter the address that agents connect to.")])
    kind = SelectField("Type", choices=_KINDS)
    region = StringField("Region")
    weight = IntegerField("Weight", [InputRequired("Enter 0 to 1000.")], default=100)
    tenant_id = SelectField("Tenant")


@pages.get("")
def index() -> ResponseReturnValue:
    """List the access points."""
    with database() as session:
        page = list_access_points(session, current_scope(), now=now(), **asked_page())
        tenants = tenant_names(session, (listed.point.tenant_id or "" for listed in page.items))
    problems = [
        problem for listed in page.items for problem in relay_problems(listed.point, now=now())
    ]
    return render_template(
        "console/access_points.html",
        page=page,
        tenants=tenants,
        problems=problems,
        public_url=public_url(),
    )


@pages.form("/new")
def add() -> ResponseReturnValue:
    """Add an access point; show the token of a relay once."""
    current_scope().require(Permission.OPERATE)
    form = AccessPointForm()
    _offer_tenants(form)
    if form.validate_on_submit():
        with form.showing_errors():
            request = AccessPointRequest(kind=AccessPointKind(form.kind.data), **_values(form))
            with database() as session:
                made = create_access_point(
                    session, current_scope(), request, public_url=public_url(), now=now()
                )
            return _show_token(made) if made.secret else _saved(made)
    return render_template("console/access_point.html", form=form, point=None), form.status


@pages.form("/<access_point_id>")
def edit(access_point_id: str) -> ResponseReturnValue:
    """Change an access point."""
    with database() as session:
        listed = get_access_point(session, current_scope(), access_point_id, now=now())
    point = listed.point
    form = AccessPointForm(obj=point, data={"kind": listed.kind.value})
    form.kind.validate_choice = False
    form.kind.data = listed.kind.value
    _offer_tenants(form, chosen=point.tenant_id or "")
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                changed = change_access_point(
                    session,
                    current_scope(),
                    access_point_id,
                    _values(form),
                    public_url=public_url(),
                    now=now(),
                )
            return _saved(changed)
    return render_template("console/access_point.html", form=form, point=listed), form.status


@pages.post("/<access_point_id>/token")
def renew_token(access_point_id: str) -> ResponseReturnValue:
    """Give a relay a new token, and show it once."""
    with database() as session:
        return _show_token(renew_relay_token(session, current_scope(), access_point_id, now=now()))


pages.acts("/<access_point_id>/delete", delete_access_point, "Access point removed", name="remove")


def _offer_tenants(form: AccessPointForm, *, chosen: str = "") -> None:
    offered = select(Tenant.id, Tenant.name).where(
        (Tenant.state == TenantState.ACTIVE) | (Tenant.id == chosen)
    )
    with database() as session:
        rows = session.execute(offered.order_by(Tenant.name)).all()
    form.tenant_id.choices = [
        SelectChoice("", "All tenants"),
        *(SelectChoice(*row) for row in rows),
    ]


def _values(form: AccessPointForm) -> dict[str, Any]:
    return {
        "name": form.name.data,
        "url": form.url.data,
        "region": form.region.data or "",
        "weight": form.weight.data,
        "tenant_id": form.tenant_id.data or None,
    }


def _saved(listed: ListedAccessPoint) -> ResponseReturnValue:
    flash(f"Access point {listed.point.name} saved", "success")
    return redirect(url_for(".index"))


def _show_token(listed: ListedAccessPoint) -> str:
    return render_template(
        "console/relay_token.html",
        point=listed.point,
        settings_file=SETTINGS_FILE,
        settings=relay_settings(listed.secret).rstrip(),
        command=START_COMMAND,
    )
