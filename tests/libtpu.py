"""Stands in for the metrics port of libtpu, which tpu_info 0.14.2 reads as well: libtpu.py SECONDS."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from berg.google import wire
from berg.machine import tpus


def serve(chips: dict[int, tuple[float, int, int]], port: int = tpus.PORT):
    """Serve percent, used and total bytes of each chip."""

    def answer(request: bytes, context) -> bytes:
        name = dict(wire.fields(request))[1].decode()
        position = list(tpus.METRICS.values()).index(name)
        metrics = b""
        for chip, values in chips.items():
            value = values[position]
            gauge = wire.fixed(1, "<d", value) if position == 0 else wire.number(2, int(value))
            attribute = wire.embedded(1, b"device-id") + wire.embedded(2, wire.number(3, chip))
            metrics += wire.embedded(3, wire.embedded(1, attribute) + wire.embedded(3, gauge))
        return wire.embedded(1, wire.embedded(1, name.encode()) + metrics)

    service, method = tpus.METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_secure_port(f"localhost:{port}", grpc.local_server_credentials())
    server.start()
    return server


if __name__ == "__main__":
    running = serve({0: (90.5, 2**30, 32 * 2**30), 1: (0.0, 0, 32 * 2**30)})
    time.sleep(float(sys.argv[1]))
