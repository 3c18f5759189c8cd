import pytest

from berg import BergError
from berg.google.accelerators import Shape, choose


@pytest.mark.parametrize(
    ("wishes", "shape"),
    [
        ((None, None, None, None), Shape("n1-standard-32", 4, "p100", "nvidia-tesla-p100")),
        ((1, "v100", None, None), Shape("n1-standard-8", 1, "v100", "nvidia-tesla-v100")),
        ((2, "T4", 20, None), Shape("custom-20-76800", 2, "t4", "nvidia-tesla-t4")),
        ((1, "nvidia-tesla-t4", None, None), Shape("n1-standard-8", 1, "t4", "nvidia-tesla-t4")),
        ((1, "t4", None, "n1-highmem-4"), Shape("n1-highmem-4", 1, "t4", "nvidia-tesla-t4")),
        ((0, None, None, None), Shape("n1-standard-8", 0, "")),
        ((0, None, 1, None), Shape("n1-standard-1", 0, "")),
        ((None, None, None, "e2-standard-4"), Shape("e2-standard-4", 0, "")),
        ((8, "a100", None, None), Shape("a2-highgpu-8g", 8, "a100")),
        ((None, "a100", None, None), Shape("a2-highgpu-4g", 4, "a100")),
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
        ((4, "k80", None, None), "unknown GPU type 'k80'. Berg knows: p4, p100"),
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
    assert choose(4, "p100", None, None).disk_type == "pd-balanced"
