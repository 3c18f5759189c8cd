"""What Kubernetes checks of a pod's volumes, of their mounts and of what variables are read from,
beside their schema, in its words.

Not covered: most of volumes of makers' own (AWS, Ceph and the like), projections of trust bundles.
"""

from __future__ import annotations

import re

from localcloud.kubernetes.placing_checks import descending_errors, selector_errors
from localcloud.kubernetes.quantity import amount, canonical
from localcloud.kubernetes.words import (
    check_data_key,
    check_key,
    check_labels,
    check_subdomain,
    invalid,
    one_of,
    required,
    supported,
)

MODE_RULE = "must be a number between 0 and 0777 (octal), both inclusive"
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
SHOWN = {"gcePersistentDisk": "persistentDisk"}  # as refusals call it
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
SOURCES = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
SIZES = ("cpu", "ephemeral-storage", "memory")
BYTES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
OF_SOURCES = ("apiGroup", "kind", "name")
DIVISORS = {
    "cpu": (("1m", "1"), "1m and 1"),
    "memory": (BYTES, ", ".join(BYTES)),
    "ephemeral-storage": (BYTES, ", ".join(BYTES)),
    "hugepages": (BYTES, ", ".join(BYTES)),
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
        host_path_errors(volume["hostPath"], f"{path}.hostPath", bad)
    for kind, key in (("persistentVolumeClaim", "claimName"), ("csi", "driver")):
        if kind in volume and not volume[kind].get(key):
            bad.append(required(f"{path}.{kind}.{key}"))
    if driver := (volume.get("csi") or {}).get("driver"):
        check_subdomain(driver.lower(), f"{path}.csi.driver", bad)
    other_errors(volume, path, bad)
    if "nfs" in volume:
        nfs_errors(volume["nfs"], f"{path}.nfs", bad)
    for kind, name in (("secret", "secretName"), ("configMap", "name"), ("downwardAPI", "")):
        if kind in volume:
            file_errors(volume[kind], name, f"{path}.{kind}", bad)
    for item in (volume.get("downwardAPI") or {}).get("items") or []:
        downward_errors(item, f"{path}.downwardAPI", bad)
    if "projected" in volume:
        projected_errors(volume["projected"], f"{path}.projected", bad)


def host_path_errors(source: dict, path: str, bad: list[str]) -> None:
    where = source.get("path") or ""
    if not where:
        bad.append(required(f"{path}.path"))
        return
    if ".." in where.split("/"):
        bad.append(invalid(f"{path}.path", where, "must not contain '..'"))
    one_of(source.get("type"), HOST_PATHS, f"{path}.type", bad)


def file_errors(source: dict, name: str, path: str, bad: list[str]) -> None:
    """Of what is mounted as files: where it is from, the files' mode, and a place for each."""
    if name and not source.get(name):
        bad.append(required(f"{path}.{name}"))
    mode_errors(source, path, bad, "defaultMode")
    if name:
        item_errors(source.get("items") or [], f"{path}.items", bad)


def item_errors(items: list[dict], path: str, bad: list[str]) -> None:
    for number, item in enumerate(items):
        at = f"{path}[{number}]"
        if not item.get("key"):
            bad.append(required(f"{at}.key"))
        below_errors(item.get("path", ""), f"{at}.path", bad)
        mode_errors(item, at, bad)


def other_errors(volume: dict, path: str, bad: list[str]) -> None:
    """Of volumes that pods here cannot mount: what their sources must say."""
    for kind, keys in NEEDED.items():
        for key in keys if kind in volume else ():
            if not volume[kind].get(key):
                bad.append(required(f"{path}.{SHOWN.get(kind, kind)}.{key}"))
    for kind in ("gcePersistentDisk", "awsElasticBlockStore"):
        part = (volume.get(kind) or {}).get("partition")
        if part is not None and not 0 <= part <= 255:
            told = "must be between 0 and 255, inclusive"
            bad.append(invalid(f"{path}.{SHOWN.get(kind, kind)}.partition", part, told))
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
    template = source["volumeClaimTemplate"]
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    for key in meta.get("annotations") or {}:
        check_key(key.lower(), f"{path}.metadata.annotations", bad)
    check_labels(meta.get("labels"), f"{path}.metadata.labels", bad)
    others = meta.keys() - {"annotations", "labels"}
    bad += [f"{path}.metadata.{key}: Forbidden: cannot be set" for key in sorted(others)]
    disk_errors(spec, f"{path}.spec", bad)


def fill_source(spec: dict) -> None:
    """What Kubernetes makes of what a claim's disk is to hold from the start: it has two fields for
    it, of which the older takes claims and snapshots alone.
    """
    older, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    if newer is None and older is not None:
        known = (older.get("apiGroup") or "", older.get("kind")) in SOURCES
        if not known:
            del spec["dataSource"]
        else:
            spec["dataSourceRef"] = dict(older)
    elif newer and newer.get("namespace"):  # from elsewhere, which is off
        del spec["dataSourceRef"]
    elif newer is not None and older is None:
        spec["dataSource"] = {key: each for key, each in newer.items() if key != "namespace"}


def source_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of what a claim's disk is to hold from the start."""
    kind, group = source.get("kind", ""), source.get("apiGroup") or ""
    for key in ("name", "kind"):
        if not source.get(key):
            bad.append(required(f"{path}.{key}"))
    if not group and kind != "PersistentVolumeClaim":
        told = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        bad.append(invalid(path, kind, told))
    elif group:
        check_subdomain(group, f"{path}.apiGroup", bad)


def disk_errors(spec: dict, path: str, bad: list[str]) -> None:
    """Of a claim of a disk."""
    modes = spec.get("accessModes") or []
    if not modes:
        bad.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    selector_errors(spec.get("selector"), f"{path}.selector", bad)
    for mode in modes:
        one_of(mode, MODES, f"{path}.accessModes", bad)
    if MODES[-1] in modes and {*modes} & {*MODES[:-1]}:
        told = "may not use ReadWriteOncePod with other access modes"
        bad.append(f"{path}.accessModes: Forbidden: {told}")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        bad.append(required(f"{path}.resources[storage]"))
    elif amount(size) <= 0:
        told = "must be greater than zero"
        bad.append(invalid(f"{path}.resources[storage]", canonical(size), told))
    if spec.get("storageClassName"):
        check_subdomain(spec["storageClassName"], f"{path}.storageClassName", bad)
    one_of(spec.get("volumeMode"), ("Block", "Filesystem"), f"{path}.volumeMode", bad)
    older, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    for key, source in (("dataSource", older), ("dataSourceRef", newer)):
        if source is not None:
            source_errors(source, f"{path}.{key}", bad)
    if older and newer and any(older.get(key) != newer.get(key) for key in OF_SOURCES):
        bad.append(invalid(path, {}, "must match dataSourceRef"))
    if spec.get("volumeAttributesClassName"):
        at = f"{path}.volumeAttributesClassName"
        check_subdomain(spec["volumeAttributesClassName"], at, bad)


def nfs_errors(source: dict, path: str, bad: list[str]) -> None:
    if not source.get("server"):
        bad.append(required(f"{path}.server"))
    if not source.get("path"):
        bad.append(required(f"{path}.path"))
    if not source.get("path", "").startswith("/"):
        bad.append(invalid(f"{path}.path", source.get("path", ""), "must be an absolute path"))


def mode_errors(item: dict, path: str, bad: list[str], key: str = "mode") -> None:
    mode = item.get(key)
    if mode is not None and not 0 <= mode <= 0o777:
        bad.append(invalid(f"{path}.{key}", mode, MODE_RULE))


def downward_errors(item: dict, path: str, bad: list[str]) -> None:
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    below_errors(item.get("path", ""), f"{path}.path", bad)
    if field is not None:
        field_errors(field, OF_VOLUMES, f"{path}.fieldRef", bad)
        if resource is not None:
            told = "fieldRef and resourceFieldRef can not be specified simultaneously"
            bad.append(invalid(path, "resource", told))
    elif resource is not None:
        at = f"{path}.resourceFieldRef"
        if not resource.get("containerName"):
            bad.append(required(f"{at}.containerName"))
            divisor_errors(resource, at, bad)
        else:
            resource_source_errors(resource, at, bad)
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
        key = one_key[2] if one_key[1] == KEYED[1] else one_key[2].lower()
        check_key(key, path, bad)
    else:
        one_of(known, allowed, f"{path}.fieldPath", bad)


def projected_errors(volume: dict, path: str, bad: list[str]) -> None:
    """Of several sources in one folder, in which each file has a place of its own."""
    mode_errors(volume, path, bad, "defaultMode")
    taken: set[str] = set()
    for number, source in enumerate(volume.get("sources") or []):
        at = f"{path}.sources[{number}]"
        for kind in ("secret", "configMap"):
            if source.get(kind) is not None:
                file_errors(source[kind], "name", f"{at}.{kind}", bad)
                rows = source[kind].get("items") or []
                place_errors(rows, source[kind].get("name", ""), path, taken, bad)
        for item in (source.get("downwardAPI") or {}).get("items") or []:
            downward_errors(item, f"{at}.downwardAPI", bad)
            place_errors([item], item.get("path", ""), path, taken, bad)
        if source.get("serviceAccountToken") is not None:
            token_errors(source["serviceAccountToken"], path, at, bad)
        if len([each for each in source.values() if each is not None]) > 1:
            bad.append(f"{at}: Forbidden: may not specify more than 1 volume type per source")


def place_errors(items: list[dict], shown: str, path: str, taken: set[str], bad: list[str]) -> None:
    """Of files that have the place of another."""
    for item in items:
        if item.get("path") in taken:
            bad.append(invalid(path, shown, "conflicting duplicate paths"))
        taken |= {item.get("path", "")} - {""}


def token_errors(token: dict, path: str, source: str, bad: list[str]) -> None:
    """Of a token of the pod's account, which lasts for a time."""
    seconds, at = token.get("expirationSeconds"), f"{source}.serviceAccountToken"
    if seconds is not None and seconds < 600:
        told = "may not specify a duration less than 10 minutes"
        bad.append(invalid(f"{at}.expirationSeconds", seconds, told))
    if seconds is not None and seconds > 1 << 32:
        told = "may not specify a duration larger than 2^32 seconds"
        bad.append(invalid(f"{at}.expirationSeconds", seconds, told))
    below_errors(token.get("path", ""), f"{path}.path", bad)


def below_errors(path: str, at: str, bad: list[str]) -> None:
    """Of the place of a file below its volume's folder."""
    if not path:
        bad.append(required(at))
    descending_errors(path, at, bad)
    if path.startswith("..") and not path.startswith("../"):
        bad.append(invalid(at, path, "must not start with '..'"))


def mount_errors(container: dict, path: str, bad: list[str]) -> None:
    """Of a container's mounts, beside their volumes and targets; refusals of what is said of them
    do not say which it is.
    """
    privileged = (container.get("securityContext") or {}).get("privileged")
    at = f"{path}.volumeMounts"
    for number, mount in enumerate(container.get("volumeMounts") or []):
        how, expression = mount.get("mountPropagation"), mount.get("subPathExpr") or ""
        descending_errors(mount.get("subPath") or "", f"{at}.subPath", bad)
        if mount.get("subPath") and expression:
            told = "subPathExpr and subPath are mutually exclusive"
            bad.append(invalid(f"{at}[{number}].subPathExpr", expression, told))
        descending_errors(expression, f"{at}.subPathExpr", bad)
        one_of(how, PROPAGATIONS, f"{at}.mountPropagation", bad)
        if how == "Bidirectional" and not privileged:
            told = "Bidirectional mount propagation is available only to privileged containers"
            bad.append(f"{at}.mountPropagation: Forbidden: {told}")
        read_only_errors(mount, at, bad)


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
    divisor_errors(source, path, bad)


def divisor_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of what a limit or a request is divided by."""
    wanted, divisor = source.get("resource", ""), str(source.get("divisor") or "0")
    kind = re.sub("^hugepages-.*", "hugepages", wanted.partition(".")[2])
    known, shown = DIVISORS.get(kind, ((), ""))
    if amount(divisor) and known and whole(divisor) not in known:
        told = f"only divisor's values {shown} are supported with the {CALLED.get(kind, kind)} resource"
        bad.append(invalid(f"{path}.divisor", wanted, told))


def whole(quantity: str) -> str:
    """A quantity as Kubernetes writes it, where that is a whole number."""
    number = amount(quantity)
    small = quantity.endswith("m") and number == int(number)
    return str(int(number)) if small else canonical(quantity)


def key_source_errors(source: dict, path: str, bad: list[str]) -> None:
    """Of a reference to a key of a config map or a secret."""
    check_subdomain(source.get("name") or "", f"{path}.name", bad)
    if not source.get("key"):
        bad.append(required(f"{path}.key"))
    else:
        check_data_key(source["key"], f"{path}.key", bad)


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
