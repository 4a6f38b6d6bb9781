"""What the filters of hosts reject, by GPUs, cores and memory, and the facts about one of them."""

import numpy as np

from core.quantities import format_size
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.placement.ledger import Ints, Ledger, Mask
from jobqueue.placement.views import JobShape
from protocol.gpu_slices import WHOLE_GPU


def count_free(ledger: Ledger, shape: JobShape) -> Ints:
    """Return for each appliance the number of GPUs with the capacity that the job needs."""
    counts: Ints = np.count_nonzero(ledger.with_room(shape), axis=0)
    return counts


def gpus_free_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return what is free on an appliance, such as `3 of 8 GPUs free, 4 requested`."""
    count = np.count_nonzero(ledger.with_room(shape)[:, place])
    free = "free" if shape.slice is None else "with room"
    facts = [f"{count} of {ledger.gpus_total[place]} GPUs {free}"]
    failed, outside = ledger.gpus_failed[place], ledger.gpus_outside[place]
    switching = sum(gpu.is_switching for gpu in ledger.views[place].gpus)
    notes = [
        (failed, "failed"),
        (outside, "used outside of jobs"),
        (switching, "to be partitioned anew once idle"),
    ]
    facts += [f"{number} {note}" for number, note in notes if number]
    return ", ".join([*facts, requested_text(shape)])


def requested_text(shape: JobShape) -> str:
    """Return the requested GPUs, such as `4 requested` or `1 with 40 GiB requested`."""
    if shape.slice is not None:
        return f"{shape.slice.need} requested"
    share = f"{shape.gpu_milli / WHOLE_GPU:g} of " if shape.gpu_milli < WHOLE_GPU else ""
    models = f" {' or '.join(sorted(shape.gpu_models))}" if shape.gpu_models else ""
    memory = f" with {format_size(shape.gpu_memory_bytes)}" if shape.gpu_memory_bytes else ""
    return f"{share}{shape.gpus}{models}{memory} requested"


def too_few_usable(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances with too few GPUs that work."""
    usable = np.count_nonzero(ledger.eligible(shape) & ledger.usable, axis=0)
    is_too_small: Mask = shape.gpus > usable
    return is_too_small


def failed_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how many of an appliance's GPUs have failed, and why."""
    view = ledger.views[place]
    failed = [gpu for gpu in view.gpus if gpu.is_failed]
    causes = ", ".join(sorted({gpu.failure for gpu in failed if gpu.failure}))
    why = f" ({causes})" if causes else ""
    has = f"has {count_text(len(view.gpus), 'GPU')}, {len(failed)} failed{why}"
    return f"{has}, {requested_text(shape)}"


def eligible_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how many of an appliance's GPUs are of the kind that the job needs."""
    kind = "of that memory" if not shape.gpu_models else "of that kind"
    unknown = sum(not gpu.memory_bytes for gpu in ledger.views[place].gpus)
    note = f" and {unknown} of unknown memory" if unknown and shape.gpu_memory_bytes else ""
    count = count_text(sum(ledger.eligible_at(place, shape)), "GPU")
    return f"has {count} {kind}{note}, {requested_text(shape)}"


def only_used_outside(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only programs outside of jobs keep the job from its GPUs."""
    free = count_free(ledger, shape)
    blocked = np.count_nonzero(ledger.used_outside & ledger.eligible(shape), axis=0)
    is_blocked: Mask = (shape.gpus > free) & (shape.gpus <= free + blocked)
    return is_blocked


def partitioned(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only the partition of the GPUs keeps the job from them."""
    if ledger.slices is None and shape.slice is None:
        return np.zeros(ledger.size, np.bool_)
    able = np.count_nonzero(ledger.eligible(shape), axis=0)
    large = np.count_nonzero(ledger.large_enough(shape), axis=0)
    is_partitioned: Mask = (shape.gpus > able) & (shape.gpus <= large)
    return is_partitioned


def partitioned_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how an appliance's GPUs are partitioned."""
    if shape.slice is None:
        count = np.count_nonzero(ledger.eligible(shape)[:, place])
        total = count_text(int(ledger.gpus_total[place]), "GPU")
        return f"has {count} whole of {total}, the others are cut by MIG; {requested_text(shape)}"
    kinds = [gpu.kind for gpu in ledger.views[place].gpus if gpu.kind is not None]
    offered = sorted({profile.name for kind in kinds for profile in kind.offered})
    modes = sorted({MODE_NAMES[kind.mode] for kind in kinds})
    has = f"has {', '.join(offered)}" if offered else "has whole GPUs only"
    has = f"has shares by {' and '.join(modes)}" if modes and not offered else has
    return f"{has}, {requested_text(shape)}"


def not_isolated(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only jobs that the job must not share a GPU with are in its way."""
    if shape.slice is None or ledger.slices is None:
        return np.zeros(ledger.size, np.bool_)
    room = np.count_nonzero(ledger.with_room(shape, is_isolated=False), axis=0)
    is_blocked: Mask = (room > 0) & (count_free(ledger, shape) == 0)
    return is_blocked


def not_isolated_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how many GPUs with room other users' jobs keep from the job."""
    count = np.count_nonzero(ledger.with_room(shape, is_isolated=False)[:, place])
    gpus = count_text(int(count), "GPU")
    return (
        f"{gpus} with room, where jobs of others run that the tenant wants "
        f"isolated from it; {requested_text(shape)}"
    )


def memory_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how much of an appliance's memory is free."""
    free, total = max(int(ledger.memory_free[place]), 0), int(ledger.memory_total[place])
    wanted = format_size(shape.memory_bytes)
    return f"{format_size(free)} of {format_size(total)} of memory free, {wanted} requested"


def cpus_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return how many of an appliance's CPU cores are free."""
    free, total = max(float(ledger.cpus_free[place]), 0.0), float(ledger.cpus_total[place])
    return f"{free:g} of {total:g} CPU cores free, {shape.cpus:g} requested"


def count_text(number: int, noun: str) -> str:
    """Return a number of things, such as `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
