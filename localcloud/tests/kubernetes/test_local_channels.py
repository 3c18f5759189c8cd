"""Ports forwarded in channels of a WebSocket, as the official client for Python asks for them."""

import asyncio
import ssl

import aiohttp
import pytest
from local_machines import until

SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8799)"


async def exchange(kube, pod: str, ports: str, send=None) -> list[bytes]:
    """What comes on a forwarded port until it is closed, or until an error comes."""
    context = ssl.create_default_context(cafile=str(kube.ca))
    url = f"{kube.server}/api/v1/namespaces/default/pods/{pod}/portforward?{ports}"
    headers, said = {"Authorization": f"Bearer {kube.token}"}, []
    options = {"headers": headers, "ssl": context, "protocols": ("v4.channel.k8s.io",)}
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as socket:
        assert socket.protocol == "v4.channel.k8s.io"
        if send is not None:
            await (socket.send_str if isinstance(send, str) else socket.send_bytes)(send)
        async for message in socket:
            said.append(message.data)
            if message.data[0] == 1 and len(message.data) > 3:
                break
    return said


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_port_in_channels_takes_text_and_bytes(kube, kind):
    name = f"serves-{kind.__name__}"
    container = {"name": "main", "image": "python:3.12", "command": ["python3", "-c", SERVER]}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kube.create(pod)
    until(lambda: kube.get("pods", name)["status"].get("phase") == "Running", "the pod")
    asked = "\0GET / HTTP/1.0\r\n\r\n"
    sent = asked if kind is str else asked.encode()

    def answered() -> bytes:
        said = asyncio.run(asyncio.wait_for(exchange(kube, name, "ports=8799", sent), 20))
        port = (8799).to_bytes(2, "little")
        assert said[:2] == [b"\0" + port, b"\1" + port]
        return b"".join(each[1:] for each in said[2:] if each[0] == 0)

    assert until(answered, "its server listens").startswith(b"HTTP/1.0 200")
    said = asyncio.run(asyncio.wait_for(exchange(kube, name, "ports=8798"), 20))
    assert said[-1][0] == 1 and b"connection refused" in said[-1]
    for ports in ("", "ports=0", "ports=http"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            asyncio.run(exchange(kube, name, ports))
        assert refused.value.status == 400
    kube.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")
