"""The inventory of this host, or of a simulated appliance."""

from collections.abc import Sequence
from itertools import combinations

from core.clock import Clock
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from plugins.base import PluginError
from plugins.inventory.reader import InventorySource
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig, Workload
from protocol.challenges import ChallengeOrder, DeviceAnswer
from protocol.inventory import DiskInfo, GPUInfo, GPUPath, Inventory, NICInfo, NVLinkInfo

GIGABIT = 10**9
# NVLinks per GPU, by a part of the model's name.
NVLINKS = {"A100-SXM4": 12, "H100 80GB HBM3": 18, "H200": 18}
# By a part of the model's name: PCI device, SMs, and bytes per second of the memory.
CARDS = {
    "A100-SXM4-40GB": ("10de:20b0", 108, 1.555e12),
    "A100-SXM4-80GB": ("10de:20b2", 108, 2.039e12),
    "H100 80GB HBM3": ("10de:2330", 132, 3.352e12),
    "H100 PCIe": ("10de:2331", 114, 2.039e12),
    "H200": ("10de:2335", 132, 4.8e12),
    "L40S": ("10de:26b9", 142, 8.64e11),
}
NO_CARD = ("", 0, 0.0)
# Of its nominal bandwidth, a plain loop over all memory gets so much.
READ_SHARE = 0.88
# Without NVLinks: how many neighbors are connected like this.
_SHARED = (("PXB", 2), ("NODE", 4))


def host_inventory(*, with_nvidia: bool = True) -> Inventory:
    """Return the inventory of this host.

    Args:
        with_nvidia: query NVIDIA's driver, whose library stays loaded in this process: for short
            commands only, the agent uses the plugin `inventory` instead. If the driver does not
            respond, the inventory has no GPUs.
    """
    source = InventorySource(with_nvidia=with_nvidia)
    try:
        return source.read(executors=())
    except PluginError:
        return InventorySource(with_nvidia=False).read(executors=())
    finally:
        source.close()


def simulated_inventory(config: SimulationConfig, *, executors: Sequence[str] = ()) -> Inventory:
    """Return the inventory of a simulated appliance: a server with its GPUs on switches."""
    gpus = [_simulated_gpu(config, index) for index in range(config.gpu_count)]
    return Inventory(
        hostname=config.hostname,
        os="Ubuntu 22.04.5 LTS (simulated)",
        kernel="5.15.0-1063-nvidia",
        vendor="Vedette",
        product="Simulated GPU server",
        cpu_model="Intel(R) Xeon(R) Platinum 8480CL",
        cpu_count=config.cpu_count,
        cpu_core_count=config.cpu_count // 2,
        cpu_socket_count=2,
        memory_bytes=config.memory_bytes,
        driver_version="550.127.05",
        cuda_version="12.4",
        gpus=gpus,
        gpu_paths=[
            GPUPath(first_index=first.index, second_index=second.index, kind=_path(first, second))
            for first, second in combinations(gpus, 2)
        ],
        disks=_simulated_disks(),
        nics=_simulated_nics(),
        executors=list(executors),
    )


def _simulated_gpu(config: SimulationConfig, index: int) -> GPUInfo:
    is_hopper = config.is_hopper
    down = int(index == config.nvlink_down_gpu)  # links; as in the samples of simulated_gpu
    return GPUInfo(
        index=index,
        uuid=config.gpu_uuids[index],
        model=config.gpu_model,
        memory_bytes=config.gpu_memory_bytes,
        core_count=16896 if is_hopper else 6912,
        architecture="Hopper" if is_hopper else "Ampere",
        compute_capability="9.0" if is_hopper else "8.0",
        memory_bus_bits=5120,
        sm_clock_max_hertz=1_980_000_000 if is_hopper else 1_410_000_000,
        memory_clock_max_hertz=2_619_000_000 if is_hopper else 1_593_000_000,
        power_limit_max_watts=config.power_limit_watts,
        pci_address=f"0000:{0x1B + 0x10 * index:02x}:00.0",
        pci_device_id=_card(config)[0],
        pcie_generation=5 if is_hopper else 4,
        pcie_generation_max=5 if is_hopper else 4,
        pcie_width=16,
        pcie_width_max=16,
        vbios_version="96.00.74.00.0D" if is_hopper else "92.00.45.00.05",
        nvlinks=[
            NVLinkInfo(link=link, is_active=link >= down, remote="switch" if link >= down else "")
            for link in range(_link_count(config))
        ],
    )


def simulated_challenges(model: SimulatedAppliance, *, clock: Clock) -> SimulatedChallenges:
    """Return what answers challenges for a simulated appliance, and loads it meanwhile."""

    def load(order: ChallengeOrder) -> None:
        model.add(
            Workload(
                workload_id=_workload_id(order),
                gpu_uuids=tuple(order.gpu_uuids),
                started_at=clock(),
            )
        )

    return SimulatedChallenges(
        clock,
        lambda: simulated_devices(model.config),
        on_start=load,
        on_end=lambda order: model.remove(_workload_id(order)),
    )


def simulated_devices(config: SimulationConfig) -> list[DeviceAnswer]:
    """Return what the driver and measurements say of simulated GPUs."""
    _, processors, speed = _card(config)
    return [
        DeviceAnswer(
            uuid=gpu.uuid,
            model=gpu.model,
            pci_address=gpu.pci_address,
            memory_bytes=gpu.memory_bytes,
            processor_count=processors,
            clock_hertz=gpu.sm_clock_max_hertz,
            compute_capability=gpu.compute_capability,
            fill_seconds=0.4,
            walk_seconds=0.02,
            read_bytes_per_second=READ_SHARE * speed,
            copy_bytes_per_second=2.2e10 * gpu.pcie_generation / 4,
        )
        for gpu in simulated_inventory(config).gpus
    ]


def _workload_id(order: ChallengeOrder) -> str:
    return f"challenge-{order.number}"


def _card(config: SimulationConfig) -> tuple[str, int, float]:
    return next((card for name, card in CARDS.items() if name in config.gpu_model), NO_CARD)


def _link_count(config: SimulationConfig) -> int:
    counts = (count for model, count in NVLINKS.items() if model in config.gpu_model)
    return next(counts, 0) if config.gpu_count > 1 else 0


def _path(first: GPUInfo, second: GPUInfo) -> str:
    """Return the NVLinks if there are any; else two GPUs share a switch, and four a socket."""
    links = min(sum(link.is_active for link in gpu.nvlinks) for gpu in (first, second))
    if links:
        return f"NV{links}"
    shared = [kind for kind, count in _SHARED if first.index // count == second.index // count]
    return shared[0] if shared else "SYS"


def _simulated_disks() -> list[DiskInfo]:
    system = DiskInfo(name="nvme0n1", size_bytes=960 * 10**9, model="SAMSUNG MZ1L2960HCJR-00A07")
    data = [
        DiskInfo(name=f"nvme{n}n1", size_bytes=3_840_755_982_336, model="KIOXIA KCM6DRUL3T84")
        for n in range(1, 5)
    ]
    return [system, *data]


def _simulated_nics() -> list[NICInfo]:
    front = NICInfo(
        name="ens1f0", address="00:00:5e:00:53:01", driver="ice", speed_bits_per_second=25 * GIGABIT
    )
    fabric = [
        NICInfo(
            name=f"mlx5_{n}",
            address=f"0000:5e00:5300:00{n:02x}",
            driver="mlx5_core",
            speed_bits_per_second=400 * GIGABIT,
        )
        for n in range(4)
    ]
    return [front, *fabric]
