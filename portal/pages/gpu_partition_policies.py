"""`/appliances/gpu-policies`: how GPUs are shared by jobs."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError
from jobqueue.partitions.fleet import Coverage
from jobqueue.partitions.isolation import ISOLATION, MODE_NAMES
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.service import (
    coverage_of,
    create_policy,
    delete_policy,
    get_policy,
    list_policies,
    move_policy,
    preview_policy,
    summary_of,
    update_policy,
)
from portal.context import current_scope, database, now
from portal.forms.gpu_partition_policies import PolicyForm
from portal.pages.common import Pages, changing
from portal.query_string import asked_page
from protocol.gpu_slices import PartitionMode
from tenants.permissions import Permission

pages = Pages("gpu_partition_policies", __name__, url_prefix="/appliances/gpu-policies")
pages.add_app_template_filter(summary_of, "partition_summary")
_MAX_DIGITS = 4


@pages.form("")
def index() -> ResponseReturnValue:
    """List partition policies in their order; add one."""
    return _save(PolicyForm(), None)


@pages.form("/<policy_id>")
def edit(policy_id: str) -> ResponseReturnValue:
    """Change a partition policy."""
    with database() as session:
        policy = get_policy(session, current_scope(), policy_id)
    form = PolicyForm(obj=policy)
    if not form.is_submitted():
        form.mode.data = policy.mode.value
    return _save(form, policy)


@pages.post("/<policy_id>/move")
@changing(back=".index")
def move(session: Session, policy_id: str) -> str:
    """Move a partition policy to another place in the order."""
    get_policy(session, current_scope(), policy_id)
    text = request.form.get("position", "")
    if not (text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ConflictError(f"The position {text[:20]!r} is not a whole number.")
    policy = move_policy(session, current_scope(), policy_id, max(1, int(text)))
    return f"{policy.name} moved to position {policy.position}"


pages.acts(
    "/<policy_id>/delete",
    delete_policy,
    "Policy deleted. Its GPUs change once they are idle.",
    name="remove",
)


def _save(form: PolicyForm, policy: GPUPartitionPolicy | None) -> ResponseReturnValue:
    scope = current_scope()
    scope.require_tenant()
    if form.is_submitted():
        scope.require(Permission.MANAGE_APPLIANCES)
    effect = None
    if form.validate_on_submit():
        with form.showing_errors():
            effect = _effect(form, policy)
            if "check" not in request.form:
                with database() as session:
                    if policy is None:
                        create_policy(session, scope, form.request(), now=now())
                    else:
                        update_policy(session, scope, policy.id, form.request())
                flash(f"Policy saved. {effect.text}", "success")
                return redirect(url_for(".index"))
    with database() as session:
        page = list_policies(session, scope, **asked_page())
        shown = coverage_of(session, page.items)
    text = render_template(
        "appliances/gpu_policies.html",
        page=page,
        coverages=shown,
        policy=policy,
        form=form,
        effect=effect,
        isolation=ISOLATION,
        mode_names=MODE_NAMES,
        modes=[mode for mode in PartitionMode if mode is not PartitionMode.WHOLE],
    )
    return text, form.status


def _effect(form: PolicyForm, policy: GPUPartitionPolicy | None) -> Coverage:
    with database() as session:
        ident = policy.id if policy else None
        return preview_policy(session, current_scope(), form.request(), policy_id=ident)
