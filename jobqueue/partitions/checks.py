"""Checks of a partition policy before it is saved, with the nearest thing that would work."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated

from core.spec import About, limit_errors
from jobqueue.partitions.fleet import SharingAppliance, covered, listed, profiles_by_model
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.partitions.mig import place_layout, slots_of
from jobqueue.partitions.models import MAX_MODEL_WORD_LENGTH, MAX_NAME_LENGTH
from jobqueue.partitions.orders import GPU, Policy
from protocol.gpu_slices import MAX_INSTANCES, MAX_SHARES, MIGProfile, PartitionMode
from tenants.fleet.appliance_changes import label_errors

# Kinds of GPUs against which a layout is checked; a tenant has a handful.
MAX_KINDS = 8
MAX_POLICIES = 100
_PROFILE = re.compile(r"(\d{1,3})g\.(\d{1,5})gb")
_SHARING = {PartitionMode.MPS, PartitionMode.TIME_SLICING}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """A partition policy as a user writes it."""

    name: str
    mode: Annotated[
        PartitionMode,
        About("How GPUs are shared: `whole`, `mig`, `mps` or `time_slicing`."),
    ]
    gpu_model: Annotated[
        str, About("A word of the GPU model, such as `H100`; empty for all models.")
    ] = ""
    labels: Annotated[
        Mapping[str, str], About("Labels that the appliances must have; none for all appliances.")
    ] = field(default_factory=dict)
    layout: Annotated[
        list[str],
        About(
            "Under MIG, profiles of the instances that each GPU has; none makes them on demand.",
            maximum=MAX_INSTANCES,
        ),
    ] = field(default_factory=list)
    may_change_layout: Annotated[
        bool, About("Whether a waiting job may change the layout of an idle GPU.")
    ] = False
    shares: Annotated[
        int,
        About(
            "Under MPS and time slicing, how many jobs share a GPU.",
            minimum=1,
            maximum=MAX_SHARES,
        ),
    ] = 1
    position: Annotated[
        int | None,
        About(
            "Its place in the order, from 1; the first policy that fits a GPU counts. Null: the "
            "last, or where it is.",
            minimum=1,
            maximum=MAX_POLICIES,
        ),
    ] = None


def policy_errors(
    request: PolicyRequest,
    *,
    names: Iterable[str],
    policies: Sequence[Policy],
    place: int,
    fleet: Sequence[SharingAppliance],
) -> dict[str, list[str]]:
    """Return what is wrong with a policy, by field.

    Args:
        request: the policy.
        names: of the tenant's other policies.
        policies: all of them with it, in their order.
        place: where it is among them.
        fleet: the tenant's appliances.
    """
    errors: dict[str, list[str]] = {}
    own = (*limit_errors(request), *_text_errors(request, names), *_mode_errors(request))
    for name, error in own:
        errors.setdefault(name, []).append(error)
    if not errors and request.mode is PartitionMode.MIG:
        gpus = [gpu for _, gpu, at in covered(fleet, policies) if at == place]
        for name, error in _mig_errors(request, gpus, fleet):
            errors.setdefault(name, []).append(error)
    return errors


def _text_errors(request: PolicyRequest, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    name = request.name.strip()
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        yield "name", f"The name must have 1 to {MAX_NAME_LENGTH} printable characters."
    if name.casefold() in {other.casefold() for other in names}:
        yield "name", f"A policy named {name!r} already exists. Choose another name."
    word = request.gpu_model
    if len(word) > MAX_MODEL_WORD_LENGTH or not word.isprintable():
        limit = f"at most {MAX_MODEL_WORD_LENGTH} printable characters"
        yield "gpu_model", f"The GPU model must have {limit}, such as 'H100'."
    yield from (("labels", error) for error in label_errors(request.labels))


def _mode_errors(request: PolicyRequest) -> Iterator[tuple[str, str]]:
    name = MODE_NAMES[request.mode]
    if request.mode is not PartitionMode.MIG:
        if request.layout:
            yield "layout", f"{name} has no layout; leave it empty, or choose MIG."
        if request.may_change_layout:
            yield "may_change_layout", f"{name} has no layout that could change; choose MIG."
    elif request.may_change_layout and not request.layout:
        yield "may_change_layout", "Without a layout, instances are made for each job anyway."
    if request.mode not in _SHARING and request.shares > 1:
        problem = f"{name} has no shares; leave it at 1, or choose MPS or time slicing"
        yield "shares", f"{problem}."


def _mig_errors(
    request: PolicyRequest, gpus: Sequence[GPU], fleet: Sequence[SharingAppliance]
) -> Iterator[tuple[str, str]]:
    if gpus and not any(gpu.is_mig_capable for gpu in gpus):
        lacking = listed(sorted({gpu.model for gpu in gpus}))
        able = sorted({gpu.model for row in fleet for gpu in row.gpus if gpu.is_mig_capable})
        others = f", or name a model with MIG: {listed(able)}" if able else ""
        yield "mode", f"{lacking} can't use MIG. Choose MPS or time slicing{others}."
    by_model = profiles_by_model(fleet)
    kinds = {
        (gpu.model, profiles)
        for gpu in gpus
        if (profiles := gpu.mig_profiles or by_model.get(gpu.model, ()))
    }
    for model, profiles in sorted(kinds, key=lambda kind: kind[0])[:MAX_KINDS]:
        yield from (("layout", error) for error in layout_errors(request.layout, model, profiles))


def layout_errors(
    layout: Sequence[str], model: str, profiles: Sequence[MIGProfile]
) -> Iterator[str]:
    """Yield why a layout doesn't work on a GPU, with what would."""
    unknown = [name for name in dict.fromkeys(layout) if name not in {p.name for p in profiles}]
    if unknown:
        yield unknown_profile(unknown[0], model, profiles)
    elif place_layout(profiles, layout) is None:
        slots = {profile.name: profile.slots for profile in profiles}
        fitting: list[str] = []
        for name in sorted(layout, key=lambda profile: (-slots[profile], profile)):
            if place_layout(profiles, [*fitting, name]) is not None:
                fitting.append(name)
        needed = sum(slots[name] for name in layout)
        has = f"they need {needed} of {slots_of(profiles)} slots, and not every place is possible"
        nearest = ", ".join(fitting)
        yield f"The layout doesn't fit on {model}: {has}. The nearest that fits: {nearest}."


def unknown_profile(name: str, model: str, profiles: Sequence[MIGProfile]) -> str:
    """Return that a GPU has no such profile, and which it has."""
    offered = [profile.name for profile in profiles if profile.starts]
    nearest = nearest_profile(name, offered)
    hint = f" The nearest is {nearest}." if nearest else ""
    return f"{model} has no MIG profile {name[:32]!r}; it offers {', '.join(offered)}.{hint}"


def nearest_profile(name: str, offered: Sequence[str]) -> str:
    """Return the smallest profile that has all of another, or the largest, or a like name."""
    wanted = _figures(name)
    sizes = {other: size for other in offered if (size := _figures(other))}
    if wanted and sizes:
        large = [
            other for other, size in sizes.items() if size[0] >= wanted[0] and size[1] >= wanted[1]
        ]
        return min(large, key=sizes.__getitem__) if large else max(sizes, key=sizes.__getitem__)
    return next(iter(get_close_matches(name, offered, 1)), "")


def _figures(name: str) -> tuple[int, int] | None:
    """Return the slices and gigabytes of a profile's name."""
    match = _PROFILE.fullmatch(name.strip().lower())
    return (int(match[1]), int(match[2])) if match else None
