"""Decoding structs in many threads: a crash would end the process, so another one does it."""

import subprocess
import sys

DECODE = """
import sys, threading, msgspec
from core.structs import describe_structs

OUTER, INNER, THREADS = 100, 20, 4
text = msgspec.json.encode({f"f{index}": {"a": 1} for index in range(INNER)})
sys.setswitchinterval(1e-6)

def outer(name):
    fields = [msgspec.defstruct(f"{name}_{i}", [("a", int)]) for i in range(INNER)]
    return msgspec.defstruct(name, [(f"f{i}", kind) for i, kind in enumerate(fields)])

def decode(struct, barrier):
    barrier.wait()
    msgspec.json.decode(text, type=struct)

structs = [outer(f"Outer{index}") for index in range(OUTER)]
describe_structs()
for struct in structs:
    barrier = threading.Barrier(THREADS)
    threads = [threading.Thread(target=decode, args=(struct, barrier)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_a_struct_for_the_first_time_together() -> None:
    argv = [sys.executable, "-c", DECODE]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
