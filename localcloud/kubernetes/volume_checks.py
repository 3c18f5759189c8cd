"""What Kubernetes checks of a pod's volumes, of their mounts and of what variables are read from,
beside their schema, in its words.

Not covered: most of volumes of makers' own (AWS, Ceph and the like), projections of trust bundles.
"""

from __future__ import annotations

import re

from localcloud.kubernetes.placing_checks import selector_errors
from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.words import (
    check_key,
    check_subdomain,
    invalid,
    one_of,
    required,
    supported,
)

MODE_RULE = "must be a number between 0 and 0777 (octal), both inclusive"
DATA_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
PREFIX_RULE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
HOST_PATHS = (
    *("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate"),
    "Socket",
)
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
OF_VOLUMES = (
    *("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace"),
    "metadata.uid",
)
# Kind of a volume -> what its source must say.
NEEDED = {
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "iscsi": ("targetPortal", "iqn"),
    "glusterfs": ("endpoints", "path"),
    "rbd": ("monitors", "image"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "flexVolume": ("driver",),
    "azureFile": ("secretName", "shareName"),
    "azureDisk": ("diskName", "diskURI"),
    "gitRepo": ("repository",),
}
OF_VARIABLES = (
    *("metadata.name", "metadata.namespace", "metadata.uid"),
    *("spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
KEYED = ("metadata.annotations", "metadata.labels")  # of which one key can be meant
ONE_KEY = re.compile(r"([^\[]+)\['(.*)'\]")
# What a pod says of itself somewhere.
OF_PODS = {*OF_VOLUMES, *OF_VARIABLES, "spec.restartPolicy", "spec.schedulerName", "status.phase"}
MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
SIZES = ("cpu", "ephemeral-storage", "memory")
BYTES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
DIVISORS = {
    "cpu": (("1m", "1"), "1m and 1"),
    "memory": (BYTES, ", ".join(BYTES)),
    "ephemeral-storage": (BYTES, ", ".join(BYTES)),
}
CALLED = {"ephemeral-storage": "local ephemeral storage"}
RESOURCES = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in SIZES)


def volume_errors(volume: dict, path: str, bad: list[str]) -> None:
    """Of what one volume is made from."""
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    if limit is not None and amount(limit) < 0:
        told = "SizeLimit field must be a valid resource quantity"
        bad.append(f"{path}.emptyDir.sizeLimit: Forbidden: {told}")
    if "hostPath" in volume:
        one_of(volume["hostPath"].get("type"), HOST_PATHS, f"{path}.hostPath.type", bad)
    for kind, key in (("persistentVolumeClaim", "claimName"), ("csi", "driver")):
        if kind in volume and not volume[kind].get(key):
            bad.append(required(f"{path}.{kind}.{key}"))
    if driver := (volume.get("csi") or {}).get("driver"):
        check_subdomain(driver.lower(), f"{path}.csi.driver", bad)
    other_errors(volume, path, bad)
    if "nfs" in volume:
        nfs_errors(volume["nfs"], f"{path}.nfs", bad)
    for kind in ("secret", "configMap"):
        for number, item in enumerate((volume.get(kind) or {}).get("items") or []):
            mode_errors(item, f"{path}.{kind}.items[{number}]", bad)
    for item in (volume.get("downwardAPI") or {}).get("items") or []:
        downward_errors(item, f"{path}.downwardAPI", bad)
    if "projected" in volume:
        projected_errors(volume["projected"], f"{path}.projected", bad)


def other_errors(volume: dict, path: str, bad: list[str]) -> None:
    """Of volumes that pods here cannot mount: what their sources must say."""
    for kind, keys in NEEDED.items():
        for key in keys if kind in volume else ():
            if not volume[kind].get(key):
                bad.append(required(f"{path}.{kind}.{key}"))
    for kind in ("gcePersistentDisk", "awsElasticBlockStore"):
        part = (volume.get(kind) or {}).get("partition")
        if part is not None and not 0 <= part <= 255:
            told = "must be between 0 and 255, inclusive"
            bad.append(invalid(f"{path}.{kind}.partition", part, told))
    if "fc" in volume and not volume["fc"].get("targetWWNs") and not volume["fc"].get("wwids"):
        told = "must specify either targetWWNs or wwids, but not both"
        bad.append(required(f"{path}.fc.targetWWNs", told))
    if "image" in volume:
        pulls = ("Always", "IfNotPresent", "Never")
        one_of(volume["image"].get("pullPolicy"), pulls, f"{path}.image.pullPolicy", bad)
        if path.startswith("spec.volumes") and not volume["image"].get("reference"):
            bad.append(required(f"{path}.image.reference"))
    if "ephemeral" in volume:
        claim_errors(volume["ephemeral"], f"{path}.ephemeral.volumeClaimTemplate", bad)


def claim_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of a disk that is made for a pod and goes with it."""
    if source.get("volumeClaimTemplate") is None:
        bad.append(required(path))
        return
    disk_errors(source["volumeClaimTemplate"].get("spec") or {}, f"{path}.spec", bad)


def disk_errors(spec: dict, path: str, bad: list[str]) -> None:
    """Of a claim of a disk."""
    modes = spec.get("accessModes") or []
    if not modes:
        bad.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    for mode in modes:
        one_of(mode, MODES, f"{path}.accessModes", bad)
    if MODES[-1] in modes and len(modes) > 1:
        told = "may not use ReadWriteOncePod with other access modes"
        bad.append(f"{path}.accessModes: Forbidden: {told}")
    selector_errors(spec.get("selector"), f"{path}.selector", bad)
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        bad.append(required(f"{path}.resources[storage]"))
    elif amount(size) <= 0:
        told = "must be greater than zero"
        bad.append(invalid(f"{path}.resources[storage]", canonical(size), told))
    if spec.get("storageClassName"):
        check_subdomain(spec["storageClassName"], f"{path}.storageClassName", bad)
    one_of(spec.get("volumeMode"), ("Block", "Filesystem"), f"{path}.volumeMode", bad)


def nfs_errors(source: dict, path: str, bad: list[str]) -> None:
    if not source.get("server"):
        bad.append(required(f"{path}.server"))
    if not source.get("path"):
        bad.append(required(f"{path}.path"))
    elif not source["path"].startswith("/"):
        bad.append(invalid(f"{path}.path", source["path"], "must be an absolute path"))


def mode_errors(item: dict, path: str, bad: list[str]) -> None:
    mode = item.get("mode")
    if mode is not None and not 0 <= mode <= 0o777:
        bad.append(invalid(f"{path}.mode", mode, MODE_RULE))


def downward_errors(item: dict, path: str, bad: list[str]) -> None:
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if field is not None:
        field_errors(field, OF_VOLUMES, f"{path}.fieldRef", bad)
        if resource is not None:
            told = "fieldRef and resourceFieldRef can not be specified simultaneously"
            bad.append(invalid(path, "resource", told))
    elif resource is not None:
        if not resource.get("containerName"):
            bad.append(required(f"{path}.resourceFieldRef.containerName"))
        resource_source_errors(resource, f"{path}.resourceFieldRef", bad)
    else:
        bad.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    mode_errors(item, path, bad)


def field_errors(source: dict, allowed: tuple[str, ...], path: str, bad: list[str]) -> None:
    """Of a reference to a field of the pod itself."""
    field, version = source.get("fieldPath", ""), source.get("apiVersion") or "v1"
    if not field:
        bad.append(required(f"{path}.fieldPath"))
        return
    one_key, told = ONE_KEY.fullmatch(field), ""
    known = {"spec.host": "spec.nodeName"}.get(field, field)  # what the first version called it
    if version != "v1":
        told = f"unsupported pod version: {version}"
    elif one_key and one_key[1] not in KEYED:
        told = f"field label does not support subscript: {field}"
    elif not one_key and known not in OF_PODS:
        told = f"field label not supported: {field}"
    if told:
        bad.append(invalid(f"{path}.fieldPath", field, f"error converting fieldPath: {told}"))
    elif one_key:
        check_key(one_key[2], path, bad)
    else:
        one_of(known, allowed, f"{path}.fieldPath", bad)


def projected_errors(volume: dict, path: str, bad: list[str]) -> None:
    """Of several sources in one folder, in which each file has a place of its own."""
    mode = volume.get("defaultMode")
    if mode is not None and not 0 <= mode <= 0o777:
        bad.append(invalid(f"{path}.defaultMode", mode, MODE_RULE))
    taken: set[str] = set()
    for number, source in enumerate(volume.get("sources") or []):
        at = f"{path}.sources[{number}]"
        projection_errors(source, at, bad)
        for kind in ("secret", "configMap", "downwardAPI"):
            part, name = source.get(kind) or {}, (source.get(kind) or {}).get("name", "")
            if kind in source and kind != "downwardAPI" and not name:
                bad.append(required(f"{at}.{kind}.name"))
            for item in part.get("items") or []:
                if kind == "downwardAPI":
                    downward_errors(item, f"{at}.downwardAPI", bad)
                if item.get("path") in taken:
                    bad.append(invalid(at, name, "conflicting duplicate paths"))
                taken.add(item.get("path", ""))


def projection_errors(source: dict, path: str, bad: list[str]) -> None:
    sources = [key for key, value in source.items() if value is not None]
    bad += [
        f"{path}.{each}: Forbidden: may not specify more than 1 volume type" for each in sources[1:]
    ]
    token = source.get("serviceAccountToken")
    if token is None:
        return
    seconds, at = token.get("expirationSeconds"), f"{path}.serviceAccountToken"
    if seconds is not None and seconds < 600:
        told = "may not specify a duration less than 10 minutes"
        bad.append(invalid(f"{at}.expirationSeconds", seconds, told))
    if seconds is not None and seconds > 1 << 32:
        told = "may not specify a duration larger than 2^32 seconds"
        bad.append(invalid(f"{at}.expirationSeconds", seconds, told))
    below_errors(token.get("path", ""), f"{at}.path", bad)


def below_errors(path: str, at: str, bad: list[str]) -> None:
    """Of the place of a file below its volume's folder."""
    if not path:
        bad.append(required(at))
    elif path.startswith("/"):
        bad.append(invalid(at, path, "must be a relative path"))
    elif ".." in path.split("/"):
        bad.append(invalid(at, path, "must not contain '..'"))
    elif path.startswith(".."):
        bad.append(invalid(at, path, "must not start with '..'"))


def mount_errors(container: dict, path: str, bad: list[str]) -> None:
    """Of a container's mounts, beside their volumes and targets."""
    privileged = (container.get("securityContext") or {}).get("privileged")
    for number, mount in enumerate(container.get("volumeMounts") or []):
        at, how = f"{path}.volumeMounts[{number}]", mount.get("mountPropagation")
        if mount.get("subPath") and mount.get("subPathExpr"):
            told = "subPathExpr and subPath are mutually exclusive"
            bad.append(invalid(f"{at}.subPathExpr", mount["subPathExpr"], told))
        expression = mount.get("subPathExpr") or ""
        if expression:
            below_errors(expression, f"{at}.subPathExpr", bad)
        one_of(how, PROPAGATIONS, f"{at}.mountPropagation", bad)
        read_only_errors(mount, at, bad)
        if how == "Bidirectional" and not privileged:
            told = "Bidirectional mount propagation is available only to privileged containers"
            bad.append(f"{at}.mountPropagation: Forbidden: {told}")


def read_only_errors(mount: dict, at: str, bad: list[str]) -> None:
    """Of mounts whose own mounts are to be read only as well."""
    how = mount.get("recursiveReadOnly")
    one_of(how, ("Disabled", "Enabled", "IfPossible"), f"{at}.recursiveReadOnly", bad)
    if how in ("Enabled", "IfPossible"):
        if not mount.get("readOnly"):
            told = "may only be specified when readOnly is true"
            bad.append(f"{at}.recursiveReadOnly: Forbidden: {told}")
        if mount.get("mountPropagation") not in (None, "None"):
            told = "may only be specified when mountPropagation is None or not specified"
            bad.append(f"{at}.recursiveReadOnly: Forbidden: {told}")


def device_errors(container: dict, path: str, volumes: set[str], bad: list[str]) -> None:
    for number, device in enumerate(container.get("volumeDevices") or []):
        if device.get("name") not in volumes:
            at = f"{path}.volumeDevices[{number}].name"
            bad.append(f'{at}: Not found: "{device.get("name", "")}"')


def resource_source_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of a reference to a limit or a request of a container."""
    wanted = source.get("resource", "")
    if not wanted:
        bad.append(required(f"{path}.resource"))
    elif wanted not in RESOURCES and not re.match(r"(limits|requests)\.hugepages-", wanted):
        told = f'Unsupported value: "{wanted}": supported values: {supported(RESOURCES)}'
        bad.append(f"{path}.resource: {told}")
    kind, divisor = wanted.partition(".")[2], str(source.get("divisor") or "0")
    known, shown = DIVISORS.get(kind, ((), ""))
    if amount(divisor) and known and divisor not in known:
        told = f"only divisor's values {shown} are supported with the {CALLED.get(kind, kind)} resource"
        bad.append(invalid(f"{path}.divisor", wanted, told))


def key_source_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of a reference to a key of a config map or a secret."""
    key = source.get("key")
    if key and not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        bad.append(invalid(f"{path}.key", key, DATA_KEY_RULE))


def env_from_errors(container: dict, path: str, bad: list[str]) -> None:
    for number, row in enumerate(container.get("envFrom") or []):
        at, prefix = f"{path}.envFrom[{number}]", row.get("prefix")
        if prefix and not re.fullmatch(r"[ -<>-~]+", prefix):
            bad.append(invalid(f"{at}.prefix", prefix, PREFIX_RULE))
        kinds = [key for key in ("configMapRef", "secretRef") if row.get(key) is not None]
        for kind in kinds:
            if not row[kind].get("name"):
                bad.append(required(f"{at}.{kind}.name"))
            else:
                check_subdomain(row[kind]["name"], f"{at}.{kind}.name", bad)
        if not kinds:
            told = "must specify one of: `configMapRef` or `secretRef`"
            bad.append(invalid(f"{path}.envFrom", "", told))
        elif len(kinds) > 1:
            told = "may not have more than one field specified at a time"
            bad.append(invalid(f"{path}.envFrom", "", told))
