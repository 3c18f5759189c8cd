"""Local SSDs are one folder on the machine, and in the request as Google takes them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from inside import job_of, plan_of, stand_ins

from berg.features import ssd


@pytest.mark.slow
def test_the_disks_are_one_folder(cloud: Cloud, project: Path) -> None:
    show = 'df --output=target "$BERG_SCRATCH_DIR" | tail -1; touch "$BERG_SCRATCH_DIR/x"'
    words = ["-g", "0", "-n", "fast", "--local-ssd", "2", "--wait", show]
    done = cloud.run("run", *words, cwd=project)
    assert done.code == 0 and "750 GB of local SSD" in done.err, done.err
    assert "[berg] /mnt/scratch has " in cloud.log("fast")
    assert "\n/mnt/scratch\n" in cloud.log("fast")


def test_disks_that_come_with_a_machine_need_no_option(cloud: Cloud, project: Path) -> None:
    words = ["run", "--machine-type", "a2-ultragpu-1g", "--dry-run", "-z", "us-central1-a"]
    done = cloud.run(*words, "true", cwd=project)
    assert done.code == 0 and "375 GB of local SSD" in done.out, done.err
    cloud.fails(*words, "--local-ssd", "2", "true", says="comes with 1 local SSDs", cwd=project)


@pytest.mark.parametrize(
    ("about", "number", "added", "says"),
    [
        ({}, 2, 2, "750 GB of local SSD at /mnt/scratch"),
        ({"machine_type": "a2-ultragpu-2g"}, 0, 0, "750 GB"),
        ({"machine_type": "a2-ultragpu-2g"}, 2, 0, "750 GB"),
        ({"cmd": ""}, 1, 1, "375 GB"),
    ],
)
def test_the_request_has_the_disks_that_do_not_come_anyway(
    about: Any, number: int, added: int, says: str
) -> None:
    plan = plan_of(None, job_of("disks", **about))
    before = dict(plan.request["scheduling"])
    ssd.Ssd(local_ssd=number).change(plan)
    disk = {"initializeParams": {"diskType": "local-ssd"}, "type": "SCRATCH", "interface": "NVME"}
    assert plan.request["disks"][1:] == [{**disk, "autoDelete": True}] * added
    stop = {"onInstanceStopAction": {"discardLocalSsd": True}} if about.get("cmd") == "" else {}
    own = {"localSsdRecoveryTimeout": {"seconds": "0"}, **stop}
    assert plan.request["scheduling"] == {**before, **own} and says in plan.rows["Scratch"]


def test_what_a_disk_holds_is_seen_before_it_is_formatted(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.write_bytes(b"\0" * (4 << 20))
    assert ssd.content(file) == ""
    subprocess.run(["mkfs.ext4", "-q", "-F", str(file)], check=True)
    assert ssd.content(file) == "ext4"
    with pytest.raises(OSError, match="mkfs.ext4: "):
        ssd.execute("mkfs.ext4", str(tmp_path / "none"))


MAKE = (
    "mdadm --create ARRAY --name=berg-scratch --homehost=any --level=0 --run --raid-devices=2 0 1"
)
FORMAT, MOUNT = "mkfs.ext4 -q -m 0 -L berg-scratch", "mount -o discard,nofail"


@pytest.mark.parametrize(
    ("held", "of_array", "has_mdadm", "asked"),
    [
        (["", ""], "", True, [MAKE, f"{FORMAT} ARRAY", f"{MOUNT} ARRAY SCRATCH"]),
        (["", ""], "", False, [f"{FORMAT} 0", f"{MOUNT} 0 SCRATCH"]),
        ([""], "", True, [f"{FORMAT} 0", f"{MOUNT} 0 SCRATCH"]),
        (["ext4", ""], "", True, [f"{MOUNT} 0 SCRATCH"]),  # it was mounted alone
        (["linux_raid_member"] * 2, "ext4", True,
         ["mdadm --assemble ARRAY 0 1", f"{MOUNT} ARRAY SCRATCH"]),
        (["", "xfs"], "xfs", True, ["ARRAY holds xfs, which is left as it is"]),
        (["ntfs"], "", True, ["0 holds ntfs, which is left as it is"]),
    ],
)  # fmt: skip
def test_disks_are_formatted_if_they_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    held: list[str], of_array: str, has_mdadm: bool, asked: Any,
) -> None:  # fmt: skip
    done: list[str] = []
    for number in range(len(held)):
        (tmp_path / str(number)).touch()
    place, disks = "/dev/disk/by-id/google-local-nvme-ssd-", dict(enumerate(held))
    own = {
        "Path": lambda name: tmp_path / name.replace(place, ""), "SCRATCH": tmp_path / "SCRATCH",
        "ARRAY": str(tmp_path / "ARRAY"), "has_mdadm": lambda: has_mdadm,
        "subprocess.run": lambda *_, **__: subprocess.CompletedProcess("mdadm --detail", 1),
        "content": lambda at: of_array if at.name == "ARRAY" else disks[int(at.name)],
        "execute": lambda *words: done.append(" ".join(words).replace(f"{tmp_path}/", "")),
    }  # fmt: skip
    stand_ins(monkeypatch, {f"berg.features.ssd.{name}": value for name, value in own.items()})
    try:
        ssd.mount(len(held))
        assert (tmp_path / "SCRATCH").stat().st_mode & 0o7777 == 0o1777
    except OSError as error:
        done.append(str(error).replace(f"{tmp_path}/", ""))
    assert done == asked
