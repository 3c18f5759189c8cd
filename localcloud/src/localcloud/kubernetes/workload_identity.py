"""Workload Identity: the metadata server that pods see in place of their node's, and whose tokens
it gives.

On nodes of pools with GKE_METADATA every pod has it at an address of its own. It knows the project,
the cluster and the account of the pod, and nothing else of the node: no attributes, no notice of
preemption, no guest attributes. A pod acts as the account of Google's that the annotation of its
Kubernetes account names, if that account lets it (roles/iam.workloadIdentityUser), or else as the
principal that it is itself. The token of the node is not to be had.

A token goes to processes of the pod's own containers alone: pods share this computer's loopback.

Not covered: identity tokens (501), other scopes than the usual, pods with hostNetwork, which on
Google get their node's token and here none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from localcloud.call import Cloud
from localcloud.identity import permissions
from localcloud.kubernetes import containers, nodes
from localcloud.kubernetes.plane import Plane
from localcloud.machines import metadata, peers, processes

ANNOTATION = "iam.gke.io/gcp-service-account"
SCOPES = [
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
]
ACT = "iam.serviceAccounts.getAccessToken"
ACCOUNT = re.compile(r"instance/service-accounts/([^/]+)/(token|identity)")


def pool_of(project: str) -> str:
    """The workload identity pool that Google keeps for a project's clusters."""
    return f"{project}.svc.id.goog"


def has_own_server(plane: Plane, pod: dict) -> bool:
    """Whether a pod that has a node sees the metadata server for pods."""
    node = plane.store.get("nodes", "", pod["spec"].get("nodeName", ""))
    labels = node["metadata"]["labels"] if node else {}
    return nodes.GKE_METADATA in labels and not pod["spec"].get("hostNetwork")


@dataclass(frozen=True)
class Answer:
    """The answer instead of a token."""

    status: int
    text: str


@dataclass
class Server:
    """The metadata server of one pod."""

    cloud: Cloud
    plane: Plane
    pod: dict

    @property
    def principal(self) -> str:
        """Who the pod is to IAM, without the word for the kind of member."""
        account = self.pod["spec"].get("serviceAccountName", "default")
        namespace = self.pod["metadata"]["namespace"]
        return f"{pool_of(self.plane.project)}[{namespace}/{account}]"

    @property
    def annotated(self) -> str:
        """The account of Google's that the pod's own is to act as; "" for none."""
        name = self.pod["spec"].get("serviceAccountName", "default")
        found = self.plane.store.get("serviceaccounts", self.pod["metadata"]["namespace"], name)
        annotations = found["metadata"].get("annotations") if found else None
        return (annotations or {}).get(ANNOTATION, "")

    @property
    def email(self) -> str:
        return self.annotated or pool_of(self.plane.project)

    def answer(self, request: web.Request, path: str) -> web.StreamResponse:
        """Answer a GET below `computeMetadata/v1/`."""
        if asked := ACCOUNT.fullmatch(path):
            return self.credentials(request, *asked.groups())
        found = metadata.look_up(self.tree(), path)
        recursive = request.query.get("recursive", "").lower() == "true"
        if found is None:
            return metadata.page(404, "Not Found")
        if isinstance(found, dict) and not request.path.endswith("/") and not recursive:
            asked_for = f"?{request.query_string}" if request.query_string else ""
            location = f"http://{request.host}{request.path}/{asked_for}"
            headers = {**metadata.HEADERS, "Location": location}
            return web.Response(status=301, headers=headers)
        return metadata.render(found, recursive, request.query.get("alt"), path)

    def tree(self) -> dict:
        """What there is for pods, keys as in paths."""
        plane, compute = self.plane, self.plane.compute
        entry = {"aliases": ["default"], "email": self.email, "scopes": SCOPES}
        node = containers.node_instance(plane, self.pod)
        number = compute.projects[plane.project]["number"]
        zone = node.zone if node else plane.location
        return {
            "instance": {
                "attributes": {
                    "cluster-location": plane.location,
                    "cluster-name": plane.name,
                    "cluster-uid": plane.identity,
                },
                "hostname": f"{node.name if node else ''}.{zone}.c.{plane.project}.internal",
                "id": int(node.id) if node else 0,
                "service-accounts": {self.email: entry, "default": entry},
                "zone": f"projects/{number}/zones/{zone}",
            },
            "project": {"numeric-project-id": int(number), "project-id": plane.project},
            "universe": {"universe-domain": "googleapis.com"},
        }

    def credentials(self, request: web.Request, account: str, what: str) -> web.StreamResponse:
        if account not in ("default", self.email):
            return metadata.page(404, "Not Found")
        if what == "identity":
            return metadata.page(501, "Identity tokens are not part of the embedded cloud")
        if not self.is_own(request):
            return metadata.page(403, "This metadata server answers only the containers of its pod")
        if refused := self.refusal():
            return web.Response(status=refused.status, text=refused.text, headers=metadata.HEADERS)
        seconds = metadata.TOKEN_SECONDS
        who = self.annotated or self.principal
        token = self.plane.tokens.mint(who, seconds, SCOPES)
        body = {"access_token": token, "expires_in": seconds, "token_type": "Bearer"}
        return web.Response(
            text=json.dumps(body), headers=metadata.HEADERS, content_type="application/json"
        )

    def refusal(self) -> Answer | None:
        """Why the pod may not act as the account that is named for it; None if it may."""
        if not self.annotated:
            return None
        account = self.cloud.iam.account(self.annotated)
        if account is None:
            message = f"Not found; Gaia id not found for email {self.annotated}"
            return Answer(
                404, f"Unable to generate access token; IAM returned 404 Not Found: {message}\n"
            )
        if permissions.allowed(self.cloud, self.principal, ACT, account["name"]):
            return None
        message = (
            f"Permission '{ACT}' denied on resource (or it may not exist).\n"
            "This error could be caused by a missing IAM policy binding on the target IAM service "
            "account.\n"
        )
        return Answer(
            403, f"Unable to generate access token; IAM returned 403 Forbidden: {message}"
        )

    def is_own(self, request: web.Request) -> bool:
        """Whether a process of the pod's containers asks."""
        assert request.transport is not None
        uid = self.pod["metadata"]["uid"]
        houses = set()
        for key, running in list(self.plane.running.items()):
            first = processes.first_process(running.folder) if key[0] == uid else None
            if first:
                houses.add(peers.house_of(Path(f"/proc/{first}")))
        about = request.transport.get_extra_info
        return peers.is_in(about("peername"), about("sockname"), houses - {""})


async def open_for(cloud: Cloud, plane: Plane, pod: dict) -> None:
    """Serve a pod's metadata at its own address, where its node does so."""
    if has_own_server(plane, pod):
        address = pod["status"]["podIP"]
        plane.compute.own_servers[address] = Server(cloud, plane, pod).answer
        await plane.compute.open_address(address)


async def close_for(plane: Plane, pod: dict) -> None:
    address = pod["status"].get("podIP", "")
    if plane.compute.own_servers.pop(address, None):
        await plane.compute.close_address(address)
