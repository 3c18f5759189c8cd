"""Apache Libcloud's driver for Compute Engine: machines, disks, snapshots, rules, addresses, groups.

Runs in an environment of its own, where libcloud is. It prints a line for each step that went well;
the exit code tells.

Usage: python libcloud_tour.py URL PROJECT ZONE TOKEN
"""

import sys
from urllib.parse import urlsplit

from libcloud.common import google
from libcloud.compute.drivers import gce
from libcloud.compute.drivers.gce import GCENodeDriver

URL, PROJECT, ZONE, TOKEN = sys.argv[1:]
SIZE, IMAGE = "n1-standard-1", "debian-12"


class Token(google.GoogleOAuth2Credential):
    """The token that the program was given, in place of one for a key."""

    def __init__(self, *words, **options):
        self.access_token = TOKEN

    access_token = TOKEN


class Here(gce.GCEConnection):
    """A connection to the embedded cloud."""

    poll_interval = 0.3

    def __init__(self, *words, **options):
        where = urlsplit(URL)
        super().__init__(*words, **{**options, "host": where.hostname, "port": where.port})


google.GoogleOAuth2Credential = Token
GCENodeDriver.connectionCls = Here
driver = GCENodeDriver("me@example.com", "no key", project=PROJECT, datacenter=ZONE, secure=False)


def lists() -> None:
    names = "list_nodes list_images list_sizes list_locations list_volumes ex_list_zones ex_list_regions "
    names += "ex_list_networks ex_list_subnetworks ex_list_firewalls ex_list_addresses ex_list_snapshots "
    names += (
        "ex_list_disktypes ex_list_instancetemplates ex_list_project_images ex_list_autoscalers"
    )
    for name in names.split():
        assert isinstance(getattr(driver, name)(), list), name


def node():
    about = {"ex_metadata": {"a": "b"}, "ex_tags": ["x"], "ex_labels": {"l": "m"}}
    made = driver.create_node("libcloud", SIZE, IMAGE, location=ZONE, **about)
    assert driver.ex_set_node_tags(made, ["y"])
    assert driver.ex_set_node_labels(made, {"c": "d"})
    assert driver.ex_set_node_metadata(made, {"k": "v"})
    found = driver.ex_get_node("libcloud").extra
    assert found["tags"] == ["y"] and found["labels"]["c"] == "d", found
    driver.ex_get_serial_output(made)
    assert made.reboot()
    return made


def resized(made) -> None:
    assert driver.ex_stop_node(made)
    assert driver.ex_set_machine_type(made, "n1-standard-2")
    assert driver.ex_start_node(made)
    assert driver.ex_get_node("libcloud").size == "n1-standard-2"


def disks(made) -> None:
    disk = driver.create_volume(10, "libcloud-disk")
    assert driver.attach_volume(made, disk)
    snapshot = driver.create_volume_snapshot(disk, "libcloud-snapshot")
    assert driver.detach_volume(disk, ex_node=made)
    assert [each.name for each in driver.list_volume_snapshots(disk)] == ["libcloud-snapshot"]
    assert snapshot.destroy()
    assert driver.ex_resize_volume(disk, 20) and disk.destroy()


def rules_and_addresses() -> None:
    driver.ex_create_firewall("libcloud-rule", [{"IPProtocol": "tcp", "ports": ["4567"]}])
    rule = driver.ex_get_firewall("libcloud-rule")
    rule.source_ranges = ["10.0.0.0/8"]
    assert driver.ex_update_firewall(rule)
    assert driver.ex_get_firewall("libcloud-rule").source_ranges == ["10.0.0.0/8"]
    assert driver.ex_destroy_firewall(rule)
    address = driver.ex_create_address("libcloud-address", region=ZONE.rpartition("-")[0])
    assert driver.ex_destroy_address(address)


def group() -> None:
    name = "libcloud-group"
    template = driver.ex_create_instancetemplate(
        "libcloud-template", SIZE, image=IMAGE, network="default"
    )
    made = driver.ex_create_instancegroupmanager(name, ZONE, template, 1, base_instance_name=name)
    assert name in [each.name for each in driver.ex_list_instancegroupmanagers()]
    (member,) = made.list_managed_instances()
    assert member["name"].startswith(name)
    assert made.resize(0) and made.destroy() and template.destroy()


def several() -> None:
    made = driver.ex_create_multiple_nodes("libcloud-many", SIZE, IMAGE, 2, location=ZONE)
    assert len(made) == 2 and all(driver.ex_destroy_multiple_nodes(made))


lists()
print("listed")
first = node()
print("node")
resized(first)
print("resized")
disks(first)
print("disks")
rules_and_addresses()
print("rules and addresses")
group()
print("group")
several()
print("several")
assert first.destroy()
print("destroyed")
