"""How busy a machine's TPUs are, as libtpu tells while a program uses them: gRPC on a port of loopback.

The messages are those of https://github.com/AI-Hypercomputer/cloud-accelerator-diagnostics (tpu_info), by their fields'
numbers. Not covered: which program it is; of several on one machine only the first has this port.
"""

import functools
import struct
from typing import Any

from berg.google import wire

ADDRESS = "localhost:8431"
METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
TIMEOUT = 2  # seconds
METRICS = {
    "percent": "tpu.runtime.tensorcore.dutycycle.percent",
    "memory_mb": "tpu.runtime.hbm.memory.usage.bytes",
    "memory_total_mb": "tpu.runtime.hbm.memory.total.bytes",
}
NAME, METRIC = 1, 1  # of the request, and of the answer
METRICS_OF = 3  # of the answer's metric: one for each chip
ATTRIBUTE, GAUGE = 1, 3  # of those
ATTRIBUTE_VALUE, INTEGER = 2, 3  # the chip's number
AS_DOUBLE, AS_INTEGER = 1, 2


def read(address: str = ADDRESS) -> list[dict[str, Any]] | None:
    """The machine's TPUs; [] while no program uses them, None where grpc, which tells, is not installed."""
    try:
        import grpc
    except ImportError:
        return None
    chips: dict[int, dict[str, Any]] = {}
    try:
        ask = channel(address).unary_unary(METHOD)
        for key, name in METRICS.items():
            answer = ask(wire.embedded(NAME, name.encode()), timeout=TIMEOUT)
            for chip, value in values(answer):
                value = value / 2**20 if key.startswith("memory") else value
                chips.setdefault(chip, {"index": chip})[key] = round(value, 1)
    except (grpc.RpcError, ValueError, IndexError, TypeError, AttributeError, struct.error):
        channel(address).close()
        channel.cache_clear()
        return []  # nobody listens, or it speaks otherwise
    return [chips[chip] for chip in sorted(chips)]


@functools.cache
def channel(address: str):
    """A channel for all samples of a program: one for each would take more CPU than the rest of the sample."""
    import grpc

    return grpc.secure_channel(address, grpc.local_channel_credentials())


def values(answer: bytes) -> list[tuple[int, float]]:
    """Number and value of each chip in an answer."""
    found = []
    for field, each in wire.fields(dict(wire.fields(answer)).get(METRIC, b"")):
        if field == METRICS_OF:
            metric = dict(wire.fields(each))
            attribute = dict(wire.fields(metric.get(ATTRIBUTE, b"")))
            chip = dict(wire.fields(attribute.get(ATTRIBUTE_VALUE, b""))).get(INTEGER, 0)
            gauge = dict(wire.fields(metric.get(GAUGE, b"")))
            double = gauge.get(AS_DOUBLE)
            found.append((chip, struct.unpack("<d", double)[0] if double else float(gauge.get(AS_INTEGER, 0))))
    return found
