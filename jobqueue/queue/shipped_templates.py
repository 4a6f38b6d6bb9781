"""The job templates that ship: requests to start from, with official images."""

from dataclasses import dataclass

from protocol.gangs import Framework
from protocol.job_spec import GIB, FailureClass, JobKind, JobRequest, OnMemberLoss, Port

_PYTORCH = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
_HOUR = 3600

BURN_IN = """\
import sys, threading, time, torch

SECONDS, SIZE = 600, 8192

def burn(gpu):
    torch.cuda.set_device(gpu)
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16)
    expected = a @ a
    begin, count, wrong = time.time(), 0, 0
    while time.time() - begin < SECONDS:
        for _ in range(50):
            found = a @ a
        torch.cuda.synchronize()
        wrong += not torch.equal(found, expected)
        count += 50
    teraflops = count * 2 * SIZE**3 / (time.time() - begin) / 1e12
    print(f"GPU {gpu}: {teraflops:.0f} TFLOPS, {wrong} wrong results", flush=True)
    errors.append(wrong)

errors = []
threads = [threading.Thread(target=burn, args=(gpu,)) for gpu in range(torch.cuda.device_count())]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(errors) != len(threads) or sum(errors) > 0 or not threads)
"""

BANDWIDTH = """\
import os, time, torch, torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
for mib in (1, 4, 16, 64, 256, 1024):
    data = torch.ones(mib * 2**18, device="cuda")
    for _ in range(5):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(20):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.time() - begin) / 20
    bandwidth = mib * 2**20 / seconds * 2 * (world - 1) / world / 1e9
    if rank == 0:
        took = f"{seconds * 1e3:8.3f} ms"
        print(f"all_reduce {mib:5} MiB: {took}, bus bandwidth {bandwidth:6.1f} GB/s", flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedTemplate:
    """A template of every tenant; its name is its id."""

    name: str
    description: str
    request: JobRequest
    is_shipped = True
    user = None

    @property
    def id(self) -> str:
        """Its name."""
        return self.name


SHIPPED = (
    ShippedTemplate(
        name="pytorch-training",
        description="Distributed training on the GPUs of one appliance. Enter an image with your "
        "script, or mount it in the working directory.",
        request=JobRequest(
            name="pytorch-training",
            image=_PYTORCH,
            command=["torchrun", "--standalone", "--nproc-per-node=gpu", "train.py"],
            env={"NCCL_DEBUG": "WARN"},
            gpus=2,
            cpus=8.0,
            memory_bytes=64 * GIB,
            shared_memory_bytes=16 * GIB,
            working_dir="/workspace",
            max_retries=2,
            retry_on=[FailureClass.START.value, FailureClass.APPLIANCE.value],
        ),
    ),
    ShippedTemplate(
        name="pytorch-several-appliances",
        description="Distributed training on several appliances, with a process for each GPU. "
        "Enter an image with your script, or mount it in the working directory.",
        request=JobRequest(
            name="pytorch-several-appliances",
            image=_PYTORCH,
            command=["torchrun", "train.py"],
            env={"NCCL_DEBUG": "WARN"},
            gpus=8,
            cpus=32.0,
            memory_bytes=256 * GIB,
            shared_memory_bytes=64 * GIB,
            working_dir="/workspace",
            nodes=2,
            framework=Framework.TORCH.value,
            on_member_loss=OnMemberLoss.RESTART.value,
            max_retries=2,
            retry_on=[FailureClass.START.value, FailureClass.APPLIANCE.value],
        ),
    ),
    ShippedTemplate(
        name="jupyterlab",
        description="Notebooks with PyTorch on 8 GiB of a GPU, or a whole one where none is "
        "shared. The log shows the address with its token. Stops after 12 hours, or when the GPU "
        "is measured idle for two.",
        request=JobRequest(
            name="jupyterlab",
            image="quay.io/jupyter/pytorch-notebook:cuda12-latest",
            command=["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"],
            gpu_memory_bytes=8 * GIB,
            cpus=4.0,
            memory_bytes=16 * GIB,
            ports=[Port(container_port=8888, name="web")],
            time_limit_seconds=12 * _HOUR,
            idle_gpu_percent=1,
            idle_gpu_seconds=2 * _HOUR,
        ),
    ),
    ShippedTemplate(
        name="vllm-server",
        description="A language model behind an OpenAI-compatible API. Gated models need the "
        "secret HF_TOKEN.",
        request=JobRequest(
            name="vllm-server",
            image="vllm/vllm-openai:v0.8.5",
            command=["--model=Qwen/Qwen2.5-7B-Instruct", "--host=0.0.0.0", "--port=8000"],
            kind=JobKind.SERVICE,
            gpus=1,
            gpu_memory_bytes=24 * GIB,
            cpus=4.0,
            memory_bytes=32 * GIB,
            shared_memory_bytes=8 * GIB,
            ports=[Port(container_port=8000, name="api")],
        ),
    ),
    ShippedTemplate(
        name="tensorboard",
        description="Charts of training runs. Mount the folder with the runs at /logs.",
        request=JobRequest(
            name="tensorboard",
            image="tensorflow/tensorflow:2.19.0",
            command=["tensorboard", "--logdir=/logs", "--host=0.0.0.0", "--port=6006"],
            kind=JobKind.SERVICE,
            memory_bytes=4 * GIB,
            ports=[Port(container_port=6006, name="web")],
        ),
    ),
    ShippedTemplate(
        name="gpu-burn-in",
        description="Multiplies matrices on every GPU for ten minutes and compares the results: "
        "fails if one is wrong. Request all GPUs of an appliance.",
        request=JobRequest(
            name="gpu-burn-in",
            image=_PYTORCH,
            command=["python", "-c", BURN_IN],
            gpus=1,
            cpus=2.0,
            memory_bytes=8 * GIB,
            time_limit_seconds=_HOUR,
        ),
    ),
    ShippedTemplate(
        name="nccl-bandwidth",
        description="Measures all_reduce between the GPUs of an appliance by NCCL: two or more.",
        request=JobRequest(
            name="nccl-bandwidth",
            image=_PYTORCH,
            command=[
                *("torchrun", "--standalone", "--nproc-per-node=gpu", "--no-python"),
                *("python", "-c", BANDWIDTH),
            ],
            gpus=2,
            cpus=4.0,
            memory_bytes=16 * GIB,
            shared_memory_bytes=8 * GIB,
            time_limit_seconds=_HOUR,
        ),
    ),
)
