"""Checks of an inventory: against what its GPU models have, and against itself. Pure."""

from collections import Counter
from collections.abc import Iterator

from marketplace.verification.findings import Finding, failure, note, warning
from marketplace.verification.known import KnownModel, Weakness, model_of, weak_components
from protocol.inventory import GPUInfo, Inventory

GIB = 2**30
# Of the nominal memory: the driver shows less with ECC, and never more.
MEMORY_SHARES = (0.90, 1.03)
SIMULATED = "simulated"
# Of the UUIDs of NVIDIA's driver: only these GPUs are challenged.
NVIDIA_PREFIX = "GPU-"
_REPLACE = "Offer the appliance with the model that it really has."


def inventory_findings(inventory: Inventory, *, accepts_simulated: bool) -> list[Finding]:
    """Return what is wrong with an inventory."""
    return [
        *_general(inventory, accepts_simulated=accepts_simulated),
        *(finding for gpu in inventory.gpus for finding in _gpu(gpu, len(inventory.gpus))),
        *(_weakness(weakness, version) for weakness, version in weak_components(inventory)),
    ]


def shares_memory(gpu: GPUInfo) -> bool:
    """Return whether a GPU's memory is the host's; the known models have their own."""
    return gpu.has_unified_memory and model_of(gpu.model) is None


def _general(inventory: Inventory, *, accepts_simulated: bool) -> Iterator[Finding]:
    if SIMULATED in inventory.executors and not accepts_simulated:
        yield failure(
            "simulated",
            "The appliance is simulated: its jobs run nowhere.",
            "Run the agent with a real executor.",
        )
    for name, values in (
        ("UUID", [gpu.uuid for gpu in inventory.gpus]),
        ("PCI address", [gpu.pci_address for gpu in inventory.gpus if gpu.pci_address]),
        ("serial number", [gpu.serial for gpu in inventory.gpus if gpu.serial]),
    ):
        repeated = [value for value, count in Counter(values).items() if count > 1]
        if repeated:
            yield failure(
                "gpu_listed_twice",
                f"Several GPUs of the inventory have the {name} {repeated[0]}.",
                "Restart the agent. If it stays, the inventory is not that of the driver.",
                values=repeated,
            )
    if inventory.gpus and not inventory.driver_version and _nvidia(inventory):
        yield failure(
            "no_driver",
            "The inventory has NVIDIA GPUs, but no driver.",
            "Update the agent, and check `nvidia-smi` on the appliance.",
        )
    if not inventory.can_challenge:
        yield note(
            "agent_too_old",
            "The agent can't run challenges: only the inventory was checked.",
            "Update the agent, and use the executor `docker`.",
        )


def _nvidia(inventory: Inventory) -> list[GPUInfo]:
    return [gpu for gpu in inventory.gpus if gpu.uuid.startswith(NVIDIA_PREFIX)]


def _gpu(gpu: GPUInfo, count: int) -> Iterator[Finding]:
    card = model_of(gpu.model)
    is_nvidia = card is not None or "nvidia" in gpu.model.lower()
    if is_nvidia and not gpu.uuid.startswith(NVIDIA_PREFIX):
        yield failure(
            "uuid_differs",
            f"GPU {gpu.index} is listed as {gpu.model}, but has the UUID {gpu.uuid}, which is not "
            "of NVIDIA's driver.",
            _REPLACE,
            gpu=gpu.index,
        )
    if card is None:
        if gpu.memory_bytes <= 0:
            yield failure(
                "no_memory", f"GPU {gpu.index} ({gpu.model}) reports no memory.", gpu=gpu.index
            )
        yield note(
            "unknown_model",
            f"Nothing is known of {gpu.model or 'a GPU without a name'}: only its answers were "
            "compared with its inventory.",
            gpu=gpu.index,
        )
        return
    yield from _facts(gpu, card)
    yield from _links(gpu, card, count)


def _facts(gpu: GPUInfo, card: KnownModel) -> Iterator[Finding]:
    for code, what, value, is_right, expected in (
        ("memory_differs", "memory", f"{gpu.memory_bytes / GIB:.1f} GiB",
         MEMORY_SHARES[0] <= gpu.memory_bytes / GIB / card.memory_gib <= MEMORY_SHARES[1],
         f"{card.memory_gib:g} GiB"),
        ("cores_differ", "cores", gpu.core_count, gpu.core_count in {0, card.cores}, card.cores),
        ("compute_differs", "compute capability", gpu.compute_capability,
         gpu.compute_capability in {"", card.compute}, card.compute),
        ("pci_device_differs", "PCI device", gpu.pci_device_id,
         not gpu.pci_device_id or gpu.pci_device_id.removeprefix("10de:") in card.pci_devices,
         ", ".join(f"10de:{device}" for device in card.pci_devices)),
        ("clock_differs", "highest clock", f"{gpu.sm_clock_max_hertz / 1e6:.0f} MHz",
         not gpu.sm_clock_max_hertz
         or card.clock_megahertz[0] <= gpu.sm_clock_max_hertz / 1e6 <= card.clock_megahertz[1],
         "{} to {} MHz".format(*card.clock_megahertz)),
    ):  # fmt: skip
        if not is_right:
            yield failure(
                code,
                f"GPU {gpu.index} is listed as {gpu.model}, which has {expected} ({what}); "
                f"it reports {value}.",
                _REPLACE,
                gpu=gpu.index,
                expected=expected,
                reported=value,
            )
    lowest, highest = card.watts
    if gpu.power_limit_max_watts and not lowest <= gpu.power_limit_max_watts <= highest * 1.05:
        yield warning(
            "power_limit_unusual",
            f"GPU {gpu.index} can draw {gpu.power_limit_max_watts:.0f} W; cards of {card.title} "
            f"have {lowest} to {highest} W.",
            "Check the card's VBIOS.",
            gpu=gpu.index,
        )


def _links(gpu: GPUInfo, card: KnownModel, count: int) -> Iterator[Finding]:
    active = sum(link.is_active for link in gpu.nvlinks)
    if len(gpu.nvlinks) > card.nvlinks:
        yield failure(
            "too_many_nvlinks",
            f"GPU {gpu.index} reports {len(gpu.nvlinks)} NVLinks; {card.title} has {card.nvlinks}.",
            _REPLACE,
            gpu=gpu.index,
        )
    elif gpu.nvlinks and count > 1 and active < card.nvlinks:
        yield warning(
            "nvlink_down",
            f"GPU {gpu.index} has {active} of {card.nvlinks} NVLinks active.",
            "Check the fabric manager and `nvidia-smi nvlink --status`.",
            gpu=gpu.index,
        )


def _weakness(weakness: Weakness, version: str) -> Finding:
    make = failure if weakness.is_blocking else warning
    fixed = " or ".join(weakness.fixed)
    return make(
        f"weakness_{weakness.id.lower().replace('-', '_')}",
        f"{weakness.component} {version} has {weakness.id}: {weakness.text}.",
        f"Update {weakness.component} to {fixed} or later: {weakness.source}",
        component=weakness.component,
        version=version,
        fixed=list(weakness.fixed),
    )
