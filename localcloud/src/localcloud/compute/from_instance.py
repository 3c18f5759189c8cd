"""The properties of a template that is made from an instance, as Google copies them.

Not covered: disks that several machines read, customer keys.
"""

from __future__ import annotations

import re
from typing import Any

from localcloud.compute.checks import invalid, last, missing
from localcloud.compute.images import find_disk, resolve
from localcloud.compute.state import Compute, Instance

SAME = (
    "description",
    "canIpForward",
    "labels",
    "scheduling",
    "serviceAccounts",
    "minCpuPlatform",
    "reservationAffinity",
    "shieldedInstanceConfig",
    "advancedMachineFeatures",
)
IMAGES = {"DEFAULT", "SOURCE_IMAGE", "SOURCE_IMAGE_FAMILY", "CUSTOM_IMAGE"}
CONFIGS = "resource.sourceInstanceParams.diskConfigs"


def properties(compute: Compute, project: str, body: dict) -> dict[str, Any]:
    """The properties of the instance that a template is to be made from."""
    if body.get("properties"):
        why = "It cannot be specified together with a source instance."
        raise invalid("resource.properties", "", why)
    instance = source_of(compute, project, body["sourceInstance"])
    resource = instance.resource
    made = {key: resource[key] for key in SAME if resource.get(key)}
    items = {"items": resource["metadata"].get("items", [])}
    return {
        **made,
        "machineType": last(resource["machineType"]),
        "metadata": items if items["items"] else {},
        "tags": {key: resource["tags"][key] for key in ("items",) if key in resource["tags"]},
        "guestAccelerators": [
            {**row, "acceleratorType": last(row["acceleratorType"])}
            for row in resource.get("guestAccelerators", [])
        ],
        "networkInterfaces": [interface(row) for row in resource["networkInterfaces"]],
        "disks": disks(compute, instance, body.get("sourceInstanceParams") or {}),
    }


def source_of(compute: Compute, project: str, link: str) -> Instance:
    found = re.search(r"zones/([^/]+)/instances/([^/]+)$", link)
    if not found:
        raise invalid("resource.sourceInstance", link, "The URL is malformed.")
    return compute.get(project, found[1], found[2])


def interface(row: dict) -> dict[str, Any]:
    """A network interface without the addresses, which are the machine's own."""
    configs = [
        {key: config[key] for key in ("kind", "type", "name", "networkTier")}
        for config in row.get("accessConfigs", [])
    ]
    kept = ("network", "subnetwork", "nicType", "stackType")
    made = {key: row[key] for key in kept if key in row}
    return {**made, **({"accessConfigs": configs} if configs else {})}


def disks(compute: Compute, instance: Instance, params: dict) -> list[dict]:
    attached = instance.resource["disks"]
    wanted = {row.get("deviceName", ""): row for row in params.get("diskConfigs") or []}
    for index, row in enumerate(params.get("diskConfigs") or []):
        name = row.get("deviceName", "")
        if name not in [disk["deviceName"] for disk in attached]:
            why = "The source instance has no disk with this device name."
            raise invalid(f"{CONFIGS}[{index}].deviceName", name, why)
    made = [one(compute, instance, disk, wanted.get(disk["deviceName"], {})) for disk in attached]
    return [disk for disk in made if disk]


def one(compute: Compute, instance: Instance, disk: dict, config: dict) -> dict[str, Any]:
    """A disk of the template; {} for none."""
    how, field = config.get("instantiateFrom", "DEFAULT"), f"{CONFIGS}.instantiateFrom"
    kept = ("type", "mode", "deviceName", "boot", "interface", "diskSizeGb")
    made = {key: disk[key] for key in kept}
    made["autoDelete"] = config.get("autoDelete", disk["autoDelete"])
    if (how == "CUSTOM_IMAGE") != bool(config.get("customImage")):
        why = "It goes with CUSTOM_IMAGE, which needs it."
        raise invalid(f"{CONFIGS}.customImage", config.get("customImage", ""), why)
    if disk["boot"] and how not in IMAGES:
        raise invalid(field, how, "A boot disk must have an image.")
    if how == "DO_NOT_INCLUDE":
        return {}
    if how == "ATTACH_READ_ONLY" or (how == "DEFAULT" and disk["mode"] == "READ_ONLY"):
        raise missing(f"{field}: ATTACH_READ_ONLY")
    if disk["type"] == "SCRATCH":
        del made["diskSizeGb"]
        return {**made, "initializeParams": {"diskType": "local-ssd"}}
    source = find_disk(compute, instance.project, instance.zone, last(disk["source"]))
    params = {"diskType": last(source["type"]), "diskSizeGb": disk["diskSizeGb"]}
    if image := image_of(compute, instance.project, source, how, config):
        least = resolve(compute, instance.project, image, CONFIGS)["diskSizeGb"]
        params |= {"sourceImage": image, "diskSizeGb": max(disk["diskSizeGb"], least, key=int)}
    return {**made, "initializeParams": params}


def image_of(compute: Compute, project: str, disk: dict, how: str, config: dict) -> str:
    """The link of the image that a disk is to be made of; "" for an empty disk."""
    if how == "CUSTOM_IMAGE":
        resolve(compute, project, config["customImage"], f"{CONFIGS}.customImage")
        return str(config["customImage"])
    source = str(disk.get("sourceImage", ""))
    if how == "BLANK" or (how == "DEFAULT" and not source):
        return ""
    if not source:
        raise invalid(f"{CONFIGS}.instantiateFrom", how, "The disk was made of no image.")
    if how != "SOURCE_IMAGE_FAMILY":
        return source
    family = resolve(compute, project, source, f"{CONFIGS}.instantiateFrom").get("family")
    if not family:
        raise invalid(f"{CONFIGS}.instantiateFrom", how, "The image of the disk has no family.")
    return f"{source.rpartition('/')[0]}/family/{family}"
