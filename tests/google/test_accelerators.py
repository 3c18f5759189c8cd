import pytest

from berg import BergError
from berg.config import Config
from berg.google.shapes import (
    CAPABILITY,
    OLD_IMAGE,
    TYPES,
    Shape,
    check,
    choose,
    driver_metadata,
    driver_version,
    quota_needs,
)


@pytest.mark.parametrize(
    ("wishes", "shape"),
    [
        ((None, None, None, None), Shape("g2-standard-12", 1, "l4")),
        ((4, None, None, None), Shape("g2-standard-48", 4, "l4")),
        ((4, "p100", None, None), Shape("n1-standard-32", 4, "p100", "nvidia-tesla-p100")),
        ((None, "p100", None, None), Shape("n1-standard-8", 1, "p100", "nvidia-tesla-p100")),
        ((2, None, None, "n1-standard-16"), Shape("n1-standard-16", 2, "t4", "nvidia-tesla-t4")),
        ((1, "rtx-pro-6000", 6, None), Shape("g4-standard-6", 1, "rtx-pro-6000")),
        ((1, "v100", None, None), Shape("n1-standard-8", 1, "v100", "nvidia-tesla-v100")),
        ((2, "T4", 20, None), Shape("custom-20-76800", 2, "t4", "nvidia-tesla-t4")),
        ((1, "nvidia-tesla-t4", None, None), Shape("n1-standard-8", 1, "t4", "nvidia-tesla-t4")),
        ((1, "t4", None, "n1-highmem-4"), Shape("n1-highmem-4", 1, "t4", "nvidia-tesla-t4")),
        ((0, None, None, None), Shape("n1-standard-8", 0, "")),
        ((0, None, 1, None), Shape("n1-standard-1", 0, "")),
        ((None, None, None, "e2-standard-4"), Shape("e2-standard-4", 0, "")),
        ((8, "a100", None, None), Shape("a2-highgpu-8g", 8, "a100")),
        ((None, "a100", None, None), Shape("a2-highgpu-1g", 1, "a100")),
        ((None, "h200", None, None), Shape("a3-ultragpu-8g", 8, "h200")),
        ((1, "l4", None, None), Shape("g2-standard-12", 1, "l4")),
        ((1, "l4", 32, None), Shape("g2-standard-32", 1, "l4")),
        ((8, "h100", None, None), Shape("a3-highgpu-8g", 8, "h100")),
        ((None, None, None, "a2-ultragpu-2g"), Shape("a2-ultragpu-2g", 2, "a100-80gb")),
    ],
)
def test_wishes_become_machines(wishes, shape):
    assert choose(*wishes) == shape


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ((4, "k80", None, None), "Google retired the K80 in 2024; take a t4"),
        ((4, "k800", None, None), "unknown GPU type 'k800'. Berg knows: p4, p100"),
        ((3, "p100", None, None), "choose -g 1, 2, 4"),
        ((1, "p100", 32, None), "1 to 16 vCPUs"),
        ((1, "t4", 7, None), "choose -c 8"),
        ((-1, None, None, None), "--num-gpus -1"),
        ((3, "a100", None, None), "Google offers 1, 2, 4, 8, 16"),
        ((1, "a100", 8, None), "comes with 12 vCPUs"),
        ((1, "a100", None, "n1-standard-8"), "cannot be attached to n1-standard-8"),
        ((1, "t4", None, "e2-standard-4"), "only be attached to N1"),
        ((2, None, None, "a2-highgpu-1g"), "a2-highgpu-1g has 1 x a100"),
        ((None, "t4", None, "g2-standard-4"), "g2-standard-4 has 1 x l4"),
        ((None, None, 8, "n1-standard-8"), "leave out --num-cpus"),
        ((0, None, 97, None), "1 to 96 vCPUs"),
        ((1, "p100", None, "n1-standard-96"), "1 to 16 vCPUs"),
    ],
)
def test_machines_that_do_not_exist_are_refused(wishes, words):
    with pytest.raises(BergError) as error:
        choose(*wishes)
    assert words in error.value.message


def test_newer_families_get_the_disk_that_they_take():
    assert choose(8, "h200", None, None).disk_type == "hyperdisk-balanced"
    for kind in (
        "c4-standard-8",
        "c4a-standard-8",
        "n4-highmem-16",
        "n4d-standard-2",
        "h4d-standard-192",
        "m4-megamem-28",
    ):
        shape = choose(0, None, None, kind)
        assert (shape.disk_type, shape.nic_type) == ("hyperdisk-balanced", "")
        assert (200, ["HDB_TOTAL_GB"]) in quota_needs(shape, 1, 200, False)
    for kind in (
        "c3-standard-8",
        "n2-standard-8",
        "m3-megamem-64",
        "h3-standard-88",
        "z3-highmem-88",
    ):
        assert choose(0, None, None, kind).disk_type == "pd-balanced"
    assert (
        choose(4, "p100", None, None).disk_type
        == choose(8, "h100", None, None).disk_type
        == "pd-balanced"
    )
    assert (
        choose(8, "h100", None, None).nic_type
        == choose(1, "rtx-pro-6000", None, None).nic_type
        == "GVNIC"
    )
    assert choose(1, "l4", None, None).nic_type == ""


@pytest.mark.parametrize(
    ("machine_type", "cpus", "text"),
    [
        ("n1-standard-32", 32, "n1-standard-32"),
        ("custom-20-76800", 20, "custom-20-76800"),
        ("a3-highgpu-8g", 208, "a3-highgpu-8g with 8 x h100"),
        ("g4-standard-12", 12, "g4-standard-12 with 1/4 rtx-pro-6000"),
    ],
)
def test_a_machine_by_its_type(machine_type, cpus, text):
    shape = choose(None, None, None, machine_type)
    assert (shape.num_cpus, str(shape)) == (cpus, text)


@pytest.mark.parametrize("gpu_type", TYPES)
def test_every_gpu_has_its_compute_capability(gpu_type):
    assert gpu_type in CAPABILITY


IMAGE = Config().image[0]


@pytest.mark.parametrize(
    ("wishes", "image", "spot", "words"),
    [
        ((1, "p4", None, None), IMAGE, False, "p4 has 6.1"),
        (
            (1, "v100", None, None),
            IMAGE,
            False,
            "v100 has 7.0. Give --image common-cu124-v20250325-debian-11",
        ),
        ((1, "p100", None, None), "common-cu128-ubuntu-2204-nvidia-570", False, "7.5 and up"),
        ((1, "p100", None, None), "pytorch-2-9-cu128-debian-12", False, "7.0 to 12.0"),
        ((1, "b200", None, "a4-highgpu-8g"), "pytorch-2-7-cu126-ubuntu-2204", True, "5.0 to 9.0"),
        ((2, "h100", None, None), IMAGE, False, "a3-highgpu-2g cannot be had on demand"),
        ((8, "h200", None, None), IMAGE, False, "Add --spot"),
        ((4, "gb200", None, None), IMAGE, True, "reservations only"),
        (
            (1, "rtx-pro-6000", 12, None),
            IMAGE,
            True,
            "has 1/4 of a GPU, which only NVIDIA's driver",
        ),
    ],
)
def test_what_cannot_be_had_like_this_is_refused(wishes, image, spot, words):
    with pytest.raises(BergError) as error:
        check(
            choose(None, wishes[1], None, wishes[3]) if wishes[3] else choose(*wishes), image, spot
        )
    assert words in error.value.message


def test_what_can_be_had():
    for gpu_type in ("t4", "l4", "a100"):
        check(choose(None, gpu_type, None, None), IMAGE, False)
    check(choose(8, "h100", None, None), IMAGE, False)
    check(choose(1, "h100", None, None), IMAGE, True)
    check(choose(8, "b200", None, None), IMAGE, True)
    for gpu_type in ("v100", "p100", "p4"):
        check(choose(None, gpu_type, None, None), OLD_IMAGE, False)
        check(choose(None, gpu_type, None, None), "an-image-with-nvidia-535-of-mine", False)
    check(choose(0, None, None, None), IMAGE, False)


def test_what_old_gpus_need_beside_their_image():
    assert (
        driver_metadata("v100") == {"install-nvidia-driver": "True"}
        and driver_metadata("t4") == driver_metadata("") == {}
    )
    assert [driver_version(gpu_type) for gpu_type in ("p4", "t4")] == ["DEFAULT", "LATEST"]


def test_what_machines_count_against():
    assert quota_needs(choose(None, None, None, None), 2, 200, False) == [
        (24, ["CPUS"]),
        (2, ["NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS"]),
        (400, ["SSD_TOTAL_GB"]),
        (2, ["IN_USE_ADDRESSES"]),
        (2, ["INSTANCES"]),
        (24, ["CPUS_ALL_REGIONS"]),
        (2, ["GPUS_ALL_REGIONS"]),
    ]
    needs = quota_needs(choose(8, "b200", None, None), 1, 200, True)
    spot = {metrics[0]: amount for amount, metrics in needs}
    assert spot["HDB_TOTAL_GB"] == 200 and spot["GPUS_ALL_REGIONS"] == 8 and "CPUS" not in spot
