"""Stands in for the metrics port of libtpu, which tpu_info 0.14.2 reads as well: libtpu.py SECONDS."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from berg.google import events
from berg.machine import usage


def serve(chips: dict[int, tuple[float, int, int]], port: int = usage.PORT):
    """Serve percent, used and total bytes of each chip."""

    def answer(request: bytes, context) -> bytes:
        name = dict(events.fields(request))[1].decode()
        position = list(usage.METRICS.values()).index(name)
        metrics = b""
        for chip, values in chips.items():
            value = values[position]
            gauge = events.fixed(1, "<d", value) if position == 0 else events.number(2, int(value))
            attribute = events.embedded(1, b"device-id") + events.embedded(
                2, events.number(3, chip)
            )
            metrics += events.embedded(3, events.embedded(1, attribute) + events.embedded(3, gauge))
        return events.embedded(1, events.embedded(1, name.encode()) + metrics)

    service, method = usage.METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_secure_port(f"localhost:{port}", grpc.local_server_credentials())
    server.start()
    return server


if __name__ == "__main__":
    running = serve({0: (90.5, 2**30, 32 * 2**30), 1: (0.0, 0, 32 * 2**30)})
    time.sleep(float(sys.argv[1]))
