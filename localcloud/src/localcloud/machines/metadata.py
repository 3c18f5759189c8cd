"""The metadata server of each instance, on the instance's own loopback address.

It serves Google's `computeMetadata/v1` tree: values, directories by `recursive`, tokens of the
instance's service account. All instances share one port that the
server chooses and keeps; where the server may (root), port 80 answers too, so
`http://metadata.google.internal` works inside. It answers only the user of its machines:
other people on this computer reach loopback as well.

What a machine writes below `instance/guest-attributes/` is read by instances.getGuestAttributes
(guest_attributes.py).

Not covered: identity tokens, lists of directories, `alt`, `wait_for_change`, mTLS, oslogin, disk encryption
keys, rate limits, tokens of fewer scopes than the machine's.
"""

import asyncio
import json
import re
import socket
from typing import Any

from aiohttp import web

from localcloud.compute import networks, power
from localcloud.compute.checks import LINK, last
from localcloud.compute.state import Compute, Instance
from localcloud.identity.tokens import Tokens
from localcloud.machines import agent, guest_attributes, peers

HEADERS = {
    "Metadata-Flavor": "Google",
    "Server": "Metadata Server for VM",
    "X-Frame-Options": "SAMEORIGIN",
}
BASE = "/computeMetadata/v1/"
TOKEN_SECONDS = 3600
VERBATIM = ("attributes", "service-accounts")  # whose keys are not spelled our way


class MetadataServer:
    """Listens on the address of every machine that is up."""

    def __init__(self, compute: Compute, tokens: Tokens):
        self.compute, self.tokens, self.port = compute, tokens, 0
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        self.sites: dict[str, list[web.TCPSite]] = {}

    async def start(self) -> None:
        await self.runner.setup()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.compute.metadata_port = self.port
        self.compute.open_address, self.compute.close_address = self.open, self.close

    async def open(self, address: str) -> None:
        if address in self.sites:
            return
        site = web.TCPSite(self.runner, address, self.port)
        await site.start()
        self.sites[address] = [site]
        site = web.TCPSite(self.runner, address, 80)
        try:
            await site.start()
            self.sites[address].append(site)
        except OSError:
            await site.stop()  # an ordinary user may not, or something has port 80 on all addresses

    async def close(self, address: str) -> None:
        for site in self.sites.pop(address, []):
            await site.stop()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if not peers.may_ask(request.transport):
            return page(403, "This metadata server answers only the user of its machine")
        address = request.transport.get_extra_info("sockname")[0]
        instance = self.compute.at_address(address)
        if instance is None or instance.cut or instance.network_down:
            request.transport.abort()
            raise ConnectionResetError("this machine is off the network")
        if (request.method, request.path) == ("POST", "/_berg/network-down"):  # sent by boot.sh
            await power.network_down(self.compute, instance)
            return text("")
        if (request.method, request.path) == ("GET", "/_berg/authorized-keys"):  # likewise
            return text(await agent.answer(self.compute, instance, request.query.get("known", "")))
        if refused := ill_asked(request):
            return refused
        if self.compute.settings.metadata_delay:
            await asyncio.sleep(self.compute.settings.metadata_delay)
        if request.path == "/":  # by which Google's libraries know that this is one of its machines
            return text("computeMetadata/\n")
        path = request.path[len(BASE) :]
        if request.method == "PUT" and path.startswith(guest_attributes.PATH):
            status = guest_attributes.write(self.compute, instance, path, await request.read())
            return page(status, guest_attributes.WHY[status]) if status > 200 else text("")
        if request.method != "GET":
            return page(405, "Method Not Allowed")
        return self.value(request, instance, path)

    def value(self, request: web.Request, instance: Instance, path: str) -> web.StreamResponse:
        if account := re.fullmatch(r"instance/service-accounts/([^/]+)/token", path):
            return self.credentials(instance, account[1])
        found = look_up(self.tree(instance), path)
        if found is None:
            return page(404, "Not Found")
        recursive = request.query.get("recursive", "").lower() == "true"
        if {*request.query} - {"recursive"} or (isinstance(found, (dict, list)) and not recursive):
            return page(501, "The embedded cloud shows values, and directories with recursive=true")
        is_verbatim = path.rstrip("/").rpartition("/")[2] in VERBATIM
        return as_json(camel(found, is_verbatim)) if recursive else text(str(found))

    def credentials(self, instance: Instance, account: str) -> web.StreamResponse:
        rows = {row["email"]: row for row in instance.resource.get("serviceAccounts", [])}
        emails = list(rows)
        email = emails[0] if account == "default" and emails else account
        if email not in emails:
            return page(404, "Not Found")
        now = self.compute.now()
        # The same token until shortly before its end, as on Google, unless all were made to expire.
        if instance.token_expires - now < 300 or not self.tokens.owner(instance.token):
            instance.token = self.tokens.mint(email, TOKEN_SECONDS, rows[email]["scopes"])
            instance.token_expires = now + TOKEN_SECONDS
            self.compute.save(instance)
        seconds = int(instance.token_expires - now)
        return as_json(
            {"access_token": instance.token, "expires_in": seconds, "token_type": "Bearer"}
        )

    def tree(self, instance: Instance) -> dict:
        """The whole tree of one instance, keys as in paths."""
        resource, compute = instance.resource, self.compute
        number = compute.projects[instance.project]["number"]
        common = compute.common_metadata(instance.project)
        accounts = {}
        for row in resource.get("serviceAccounts", []):
            entry = {"aliases": ["default"], "email": row["email"], "scopes": row["scopes"]}
            accounts[row["email"]] = entry
            accounts.setdefault("default", entry)
        scheduling = resource["scheduling"]
        kind = resource["machineType"].rpartition("/")[2]
        disk = compute.row("disks", resource["disks"][0]["source"])
        return {
            "instance": {
                "attributes": instance.metadata(),
                "cpu-platform": resource["cpuPlatform"],
                "description": resource.get("description", ""),
                "disks": [
                    {"device-name": d["deviceName"], "index": d["index"]} for d in resource["disks"]
                ],
                "guest-attributes": guest_attributes.readable(self.compute, instance),
                "hostname": f"{instance.name}.{instance.zone}.c.{instance.project}.internal",
                "id": int(instance.id),
                "image": disk["sourceImage"].removeprefix(LINK),
                "machine-type": f"projects/{number}/machineTypes/{kind}",
                "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"
                if instance.maintained
                else "NONE",
                "name": instance.name,
                "network-interfaces": [
                    interface(compute, row) for row in resource["networkInterfaces"]
                ],
                "preempted": "TRUE" if instance.preempted else "FALSE",
                "scheduling": {
                    "automatic-restart": str(scheduling["automaticRestart"]).upper(),
                    "on-host-maintenance": scheduling["onHostMaintenance"],
                    "preemptible": str(scheduling["preemptible"]).upper(),
                },
                "service-accounts": accounts,
                "tags": resource["tags"].get("items", []),
                "zone": f"projects/{number}/zones/{instance.zone}",
            },
            "project": {
                "attributes": {item["key"]: item["value"] for item in common.get("items", [])},
                "numeric-project-id": int(number),
                "project-id": instance.project,
            },
            "universe": {"universe-domain": "googleapis.com"},
        }


def interface(compute: Compute, row: dict) -> dict:
    """A network interface of the tree."""
    network = networks.row_at(compute, row["network"]) or {}
    subnetwork = networks.row_at(compute, row["subnetwork"]) or {}
    owner = row["network"].removeprefix(LINK).split("/")[1]
    return {
        "access-configs": [
            {"external-ip": config.get("natIP", ""), "type": config["type"]}
            for config in row.get("accessConfigs", [])
        ],
        "dns-servers": ["169.254.169.254"],
        "gateway": subnetwork.get("gatewayAddress", ""),
        "ip": row["networkIP"],
        "mac": networks.mac_of(row["networkIP"]),
        "mtu": network.get("mtu", networks.MTU),
        "network": f"projects/{compute.projects[owner]['number']}/networks/{last(row['network'])}",
    }


def ill_asked(request: web.Request) -> web.Response | None:
    """Return the answer to what asks for no value: without the header, or above the tree."""
    if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
        return page(403, "Missing required header: Metadata-Flavor: Google")
    if request.path == "/":  # where google-auth looks for a metadata server
        return text("computeMetadata/\n")
    if not f"{request.path}/".startswith(BASE):
        return page(404, "Not Found")
    return None


def look_up(tree: Any, path: str) -> Any:
    """The value at a path, None if there is none. Lists of things with parts are directories `0/`,
    `1/`…
    """
    for name in path.strip("/").split("/") if path.strip("/") else []:
        if (
            isinstance(tree, list)
            and name.isdigit()
            and int(name) < len(tree)
            and isinstance(tree[int(name)], dict)
        ):
            tree = tree[int(name)]
        elif isinstance(tree, dict) and name in tree:
            tree = tree[name]
        else:
            return None
    return tree


def camel(value: Any, verbatim: bool = False) -> Any:
    """Keys as JSON answers spell them: machineType for machine-type; the user's own keys stay."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    spell = (
        (lambda name: name)
        if verbatim
        else (lambda name: re.sub(r"-(\w)", lambda m: m[1].upper(), name))
    )
    return {
        spell(name): item if name == "guest-attributes" else camel(item, name in VERBATIM)
        for name, item in value.items()
    }


def text(content: str) -> web.Response:
    return web.Response(text=content, headers=HEADERS, content_type="application/text")


def as_json(value: Any) -> web.Response:
    return web.Response(text=json.dumps(value), headers=HEADERS, content_type="application/json")


def page(status: int, message: str) -> web.Response:
    content = (
        f"<!DOCTYPE html><html><title>Error {status}</title><p><b>{status}.</b> {message}</html>\n"
    )
    return web.Response(status=status, text=content, headers=HEADERS, content_type="text/html")
