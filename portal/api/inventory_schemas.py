"""An appliance's inventory in API answers: the agent's own words, as of its last heartbeat."""

from marshmallow import Schema, fields


class NVLinkSchema(Schema):
    """One NVLink of a GPU."""

    link = fields.Integer()
    is_active = fields.Boolean()
    remote = fields.String(
        metadata={"description": "A GPU's UUID, `switch`, or empty where the driver is silent."}
    )


class GPUSchema(Schema):
    """One GPU; what its driver does not say is empty or 0."""

    index = fields.Integer()
    uuid = fields.String()
    model = fields.String()
    memory_bytes = fields.Integer()
    core_count = fields.Integer()
    architecture = fields.String()
    compute_capability = fields.String()
    memory_bus_bits = fields.Integer()
    sm_clock_max_hertz = fields.Integer()
    memory_clock_max_hertz = fields.Integer()
    power_limit_max_watts = fields.Float()
    pci_address = fields.String()
    pcie_generation = fields.Integer()
    pcie_generation_max = fields.Integer()
    pcie_width = fields.Integer()
    pcie_width_max = fields.Integer()
    serial = fields.String()
    vbios_version = fields.String()
    is_mig_enabled = fields.Boolean()
    nvlinks = fields.List(fields.Nested(NVLinkSchema))


class GPUPathSchema(Schema):
    """How two GPUs reach each other."""

    first_index = fields.Integer()
    second_index = fields.Integer()
    kind = fields.String(
        metadata={"description": "`NV18` (so many NVLinks), PIX, PXB, PHB, NODE or SYS."}
    )


class DiskSchema(Schema):
    """One disk, whole."""

    name = fields.String()
    size_bytes = fields.Integer()
    model = fields.String()
    is_rotational = fields.Boolean()


class NICSchema(Schema):
    """One network card."""

    name = fields.String()
    address = fields.String()
    driver = fields.String()
    speed_bits_per_second = fields.Integer(metadata={"description": "0 while its line is down."})


class InventorySchema(Schema):
    """What an appliance has; keys that its agent did not send are absent."""

    hostname = fields.String()
    os = fields.String()
    kernel = fields.String()
    boot_id = fields.String(metadata={"description": "Another after each start of the host."})
    vendor = fields.String()
    product = fields.String()
    serial = fields.String()
    cpu_model = fields.String()
    cpu_count = fields.Integer(metadata={"description": "Hardware threads."})
    cpu_core_count = fields.Integer()
    cpu_socket_count = fields.Integer()
    memory_bytes = fields.Integer()
    driver_version = fields.String()
    cuda_version = fields.String()
    gpus = fields.List(fields.Nested(GPUSchema))
    gpu_paths = fields.List(fields.Nested(GPUPathSchema))
    disks = fields.List(fields.Nested(DiskSchema))
    nics = fields.List(fields.Nested(NICSchema))
    executors = fields.List(fields.String())
