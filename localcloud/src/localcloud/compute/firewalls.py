"""Firewall rules: the four that Google makes with the network `default`, and those that are added.

Machines here share the host's network, so rules count for what comes through Identity-Aware Proxy
alone. Not covered: rules that deny, rules for what goes out, tags, accounts, firewall policies, IPv6.
"""

import ipaddress

from localcloud.call import Call
from localcloud.compute import networks
from localcloud.compute.checks import (
    LINK,
    already_exists,
    check_name,
    invalid,
    last,
    named,
    not_found,
    number_of,
)
from localcloud.compute.fields import honoured
from localcloud.compute.operations import begin_operation
from localcloud.compute.state import Compute

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


KEPT: tuple[str, ...] = ("name", "description", "priority", "allowed", "sourceRanges", "network")
# What Google fills in, as who read a rule before sends it.
KEPT += ("kind", "id", "selfLink", "creationTimestamp", "direction", "logConfig", "disabled")


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


def admits(compute: Compute, network: str, source: str, port: int) -> bool:
    """Whether the rules of a network let a range of addresses in to a port."""
    inside = ipaddress.IPv4Network(source)
    return any(
        inside.subnet_of(ipaddress.IPv4Network(each))
        for row in rules(compute, network.removeprefix(LINK).split("/")[1])
        if row["network"] == network and any(covers(item, port) for item in row["allowed"])
        for each in row["sourceRanges"]
    )


def covers(item: dict, port: int) -> bool:
    """Whether a row of a rule is about a port of TCP."""
    spans = [ports.partition("-") for ports in item.get("ports") or []]
    inside = not spans or any(int(low) <= port <= int(high or low) for low, _, high in spans)
    return item["IPProtocol"].lower() in ("tcp", "6", "all") and inside


def rule(compute: Compute, project: str, body: dict) -> dict:
    """A Firewall with what Google fills in; raise its refusal of a wrong one."""
    path = f"projects/{project}/global/firewalls/{body['name']}"
    network = f"projects/{project}/global/networks/{last(body.get('network') or 'default')}"
    found = networks.row_at(compute, LINK + network)
    if found is None:
        raise not_found(network)
    if networks.zone_of(found):
        why = "The network profile does not allow VPC firewall rules."
        raise invalid("resource.network", LINK + network, why)
    networks.check_ready(compute, LINK + network)
    check_name("resource.name", body["name"])
    honoured("resource", body, KEPT)
    for index, text in enumerate(body.get("sourceRanges") or []):
        try:
            ipaddress.ip_network(text)
        except ValueError:
            why = "Must be a CIDR address range."
            raise invalid(f"resource.sourceRanges[{index}]", text, why) from None
    return {
        "kind": "compute#firewall",
        "id": number_of(path),
        "selfLink": LINK + path,
        "network": LINK + network,
        "direction": "INGRESS",
        "disabled": False,
        "logConfig": {"enable": False},
        **{key: body[key] for key in KEPT if body.get(key) and key != "network"},
        "priority": int(body.get("priority", 1000)),
        "sourceRanges": body.get("sourceRanges") or EVERYWHERE,
    }


def firewalls(compute: Compute, project: str) -> list[tuple[str, dict]]:
    """The rows of get and list."""
    return [("global", row) for row in rules(compute, project)]


async def insert_firewall(compute: Compute, call: Call) -> dict:
    project, body = call.params["project"], call.body or {}
    row, known = rule(compute, project, body), rules(compute, project)
    path = row["selfLink"].removeprefix(LINK)
    if any(each["name"] == row["name"] for each in known):
        raise already_exists(path)
    known.append({**row, "creationTimestamp": compute.timestamp()})
    compute.save_project(project)
    return compute.finish(begin_operation(compute, call, "insert", path))


async def delete_firewall(compute: Compute, call: Call) -> dict:
    project = call.params["project"]
    path = f"projects/{project}/global/firewalls/{call.params['firewall']}"
    rules(compute, project).remove(named(rules(compute, project), path))
    compute.save_project(project)
    return compute.finish(begin_operation(compute, call, "delete", path))
