"""Firewall rules: the four that Google makes with the network `default`, and those that are added.

Machines here share the host's network, so rules count for what comes through Identity-Aware Proxy
alone. Not covered: firewall policies; machines have no IPv6 addresses that rules for
them could be about.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from localcloud.call import Call
from localcloud.compute import networks
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_description,
    check_name,
    invalid,
    last,
    not_found,
    number_of,
)
from localcloud.compute.fields import honoured
from localcloud.compute.state import Compute
from localcloud.errors import ApiError

# https://cloud.google.com/firewall/docs/firewalls#more_rules_default_vpc
EVERYWHERE, INTERNAL = ["0.0.0.0/0"], ["10.128.0.0/9"]
DEFAULTS = (
    ("default-allow-icmp", "Allow ICMP from anywhere", EVERYWHERE, [("icmp", "")]),
    (
        "default-allow-internal",
        "Allow internal traffic on the default network",
        INTERNAL,
        [("tcp", "0-65535"), ("udp", "0-65535"), ("icmp", "")],
    ),
    ("default-allow-rdp", "Allow RDP from anywhere", EVERYWHERE, [("tcp", "3389")]),
    ("default-allow-ssh", "Allow SSH from anywhere", EVERYWHERE, [("tcp", "22")]),
)
PROTOCOLS = ("tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all")
WITH_PORTS = ("tcp", "udp", "sctp", "6", "17", "132")
PORTS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?")
KEPT = (
    "name",
    "description",
    "priority",
    "allowed",
    "denied",
    "direction",
    "disabled",
    "logConfig",
    "sourceRanges",
    "sourceTags",
    "sourceServiceAccounts",
    "targetTags",
    "targetServiceAccounts",
    "destinationRanges",
)
# Of one rule, from the page of Google's quotas of networks.
MOST = {
    "sourceTags": 30,
    "targetTags": 70,
    "sourceServiceAccounts": 10,
    "targetServiceAccounts": 10,
    "sourceRanges": 5000,
    "destinationRanges": 5000,
}


def rules(compute: Compute, project: str) -> list[dict]:
    """All rules of a project; changes to the list are kept once the project is saved."""
    row = compute.project_row(project)
    if "firewalls" not in row:
        row["firewalls"] = []
        for name, description, ranges, kinds in DEFAULTS:
            allowed = [
                {"IPProtocol": kind, **({"ports": [ports]} if ports else {})}
                for kind, ports in kinds
            ]
            body = {"name": name, "description": description, "priority": 65534, "allowed": allowed}
            created = {"creationTimestamp": "2026-01-05T01:02:03.000-08:00"}
            row["firewalls"].append(
                {**rule(compute, project, {**body, "sourceRanges": ranges}), **created}
            )
    return row["firewalls"]


def of_network(compute: Compute, link: str) -> list[dict]:
    """The rules of a network."""
    project = link.removeprefix(LINK).split("/")[1]
    return [row for row in rules(compute, project) if row["network"] == link]


def admits(compute: Compute, network: str, tags: list[str], source: str, port: int) -> bool:
    """Whether the rules of a network let a range of addresses in to a port of a machine with these
    tags.
    """
    inside = ipaddress.IPv4Network(source)
    for row in sorted(
        of_network(compute, network), key=lambda row: (row["priority"], "allowed" in row)
    ):
        ranges = [
            ipaddress.IPv4Network(each) for each in row.get("sourceRanges", []) if ":" not in each
        ]
        concerns = (
            row["direction"] == "INGRESS"
            and not row["disabled"]
            and not row.get("targetServiceAccounts")
        )
        aimed = not row.get("targetTags") or set(row["targetTags"]) & set(tags)
        about = any(covers(item, port) for item in row.get("allowed") or row["denied"])
        if concerns and aimed and about and any(inside.subnet_of(each) for each in ranges):
            return "allowed" in row
    return False


def covers(item: dict, port: int) -> bool:
    """Whether a row of a rule is about a port of TCP."""
    spans = [ports.partition("-") for ports in item.get("ports") or []]
    inside = not spans or any(int(low) <= port <= int(high or low) for low, _, high in spans)
    return item["IPProtocol"].lower() in ("tcp", "6", "all") and inside


def rule(compute: Compute, project: str, body: dict) -> dict:
    """A Firewall with what Google fills in; raise its refusal of a wrong one."""
    path = f"projects/{project}/global/firewalls/{body['name']}"
    network = f"projects/{project}/global/networks/{last(body.get('network') or 'default')}"
    found = networks.network_at(compute, LINK + network)
    if found is None:
        raise not_found(network)
    if networks.zone_of(found):
        why = "The network profile does not allow VPC firewall rules."
        raise invalid("resource.network", LINK + network, why)
    networks.check_ready(compute, LINK + network)
    if bool(body.get("allowed")) == bool(body.get("denied")):
        why = "Exactly one of the fields must be specified: allowed, denied."
        raise ApiError(400, "invalid", f"Invalid value for field 'resource': ''. {why}")
    check_name("resource.name", body["name"])
    check_description(body)
    honoured("resource", body, (*KEPT, "network", "kind", "selfLink", "id", "creationTimestamp"))
    # what only Google says may be sent if it is true, as who read a rule before sends it
    if body.get("selfLink") and not f"/{body['selfLink']}".endswith(f"/{path}"):
        raise invalid("resource.selfLink", body["selfLink"], f"It is {LINK}{path}.")
    which = "allowed" if body.get("allowed") else "denied"
    for index, item in enumerate(body[which]):
        check_protocol(f"resource.{which}[{index}]", item)
    check_ends(body)
    log = body.get("logConfig") or {}
    if log.get("metadata") and not log.get("enable"):
        why = "Metadata may only be specified if logging is enabled."
        raise invalid("resource.logConfig.metadata", log["metadata"], why)
    priority = int(body.get("priority", 1000))
    if not 0 <= priority <= 65535:
        raise invalid("resource.priority", priority, "Priority must be between 0 and 65535.")
    kept: dict[str, Any] = {key: body[key] for key in KEPT if body.get(key) not in (None, [])}
    inbound = kept.setdefault("direction", "INGRESS") == "INGRESS"
    if inbound and not any(key.startswith("source") for key in kept):
        kept["sourceRanges"] = EVERYWHERE
    elif not inbound:
        kept.setdefault("destinationRanges", EVERYWHERE)
    kept = {"priority": priority, "disabled": False, "logConfig": {"enable": False}, **kept}
    same = {"kind": "compute#firewall", "id": number_of(path), "selfLink": LINK + path}
    return {**same, "network": LINK + network, **kept}


def check_protocol(field: str, item: dict) -> None:
    protocol = item.get("IPProtocol", "").lower()
    if not protocol:
        raise ApiError(400, "required", f"Required field '{field}.IPProtocol' not specified")
    if protocol not in PROTOCOLS and not (protocol.isdigit() and int(protocol) <= 255):
        raise invalid(
            f"{field}.IPProtocol",
            item["IPProtocol"],
            "The protocol is neither known by name nor a number.",
        )
    for index, ports in enumerate(item.get("ports") or []):
        if protocol not in WITH_PORTS:
            why = f"Ports may only be specified for the protocols {', '.join(WITH_PORTS)}."
            raise invalid(f"{field}.ports[{index}]", ports, why)
        if (
            not PORTS.fullmatch(ports)
            or not int(ports.split("-")[0]) <= int(ports.split("-")[-1]) <= 65535
        ):
            raise invalid(
                f"{field}.ports[{index}]", ports, "Ports must be numbers or ranges up to 65535."
            )


def check_ends(body: dict) -> None:
    """Where traffic comes from and goes to: ranges, tags and accounts, of which not all go
    together.
    """
    inbound = body.get("direction", "INGRESS") == "INGRESS"
    for key in () if inbound else ("sourceRanges", "sourceTags", "sourceServiceAccounts"):
        if body.get(key):
            raise invalid(
                f"resource.{key}", "", "Must not be specified for a rule of direction EGRESS."
            )
    for key in ("sourceRanges", "destinationRanges"):
        if len({":" in text for text in body.get(key) or []}) > 1:
            raise invalid(f"resource.{key}", "", "A rule has either IPv4 or IPv6 ranges.")
        for index, text in enumerate(body.get(key) or []):
            try:
                ipaddress.ip_network(text)
            except ValueError:
                why = "Must be a CIDR address range."
                raise invalid(f"resource.{key}[{index}]", text, why) from None
    for key, most in MOST.items():
        if len(body.get(key) or []) > most:
            raise invalid(f"resource.{key}", "", f"At most {most} of them are allowed.")
    for key in ("sourceTags", "targetTags"):
        for index, tag in enumerate(body.get(key) or []):
            check_name(f"resource.{key}[{index}]", tag)
    by_tag, by_account = (
        [key for key in keys if body.get(key)]
        for keys in (
            ("sourceTags", "targetTags"),
            ("sourceServiceAccounts", "targetServiceAccounts"),
        )
    )
    if by_tag and by_account:
        why = f"{by_account[0]} may not be used together with {by_tag[0]}."
        raise ApiError(
            400, "invalid", f"Invalid value for field 'resource.{by_account[0]}': ''. {why}"
        )


def firewalls(compute: Compute, project: str) -> list[tuple[str, dict]]:
    """The rows of get and list."""
    return [("global", row) for row in rules(compute, project)]


async def insert_firewall(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], call.body or {}
    row, known = rule(compute, project, body), rules(compute, project)
    if any(each["name"] == row["name"] for each in known):
        raise already_exists(f"projects/{project}/global/firewalls/{row['name']}")
    known.append({**row, "creationTimestamp": compute.timestamp()})
    return changed(compute, call, "insert", row["name"])


async def delete_firewall(compute: Compute, call: Call) -> dict:
    project, name = call.params["project"], call.params["firewall"]
    known = rules(compute, project)
    found = [row for row in known if row["name"] == name]
    if not found:
        raise not_found(f"projects/{project}/global/firewalls/{name}")
    known.remove(found[0])
    return changed(compute, call, "delete", name)


def changed(compute: Compute, call: Call, kind: str, name: str) -> dict:
    project, request_id = call.params["project"], call.params.get("requestId")
    compute.save_project(project)
    path = f"projects/{project}/global/firewalls/{name}"
    operation = compute.operation(
        project, kind, path, "global", call.principal, clientOperationId=request_id
    )
    return compute.finish(operation)
