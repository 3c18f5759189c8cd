"""A small Terraform: make the machines that are wanted, delete those that are not."""

from google.cloud import compute_v1

IMAGE = "projects/debian-cloud/global/images/family/debian-12"


def apply(client: compute_v1.InstancesClient, project: str, zone: str, wanted: dict[str, str]):
    """Let there be exactly the machines of `wanted`, a name and a machine type each."""
    place = {"project": project, "zone": zone}
    ours = compute_v1.ListInstancesRequest(**place, filter="labels.made-by=provision")
    there = {each.name for each in client.list(ours)}
    changes = [client.delete(**place, instance=name) for name in sorted(there - wanted.keys())]
    for name in sorted(wanted.keys() - there):
        machine = compute_v1.Instance(
            name=name,
            labels={"made-by": "provision"},
            machine_type=f"zones/{zone}/machineTypes/{wanted[name]}",
            disks=[
                {"boot": True, "auto_delete": True, "initialize_params": {"source_image": IMAGE}}
            ],
            network_interfaces=[{"network": "global/networks/default"}],
        )
        changes.append(client.insert(**place, instance_resource=machine))
    for change in changes:
        change.result()
