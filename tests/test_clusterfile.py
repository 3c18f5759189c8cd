"""Clusters as files."""

import pytest

from berg import BergError
from berg.gke import clusters
from berg.gke.clusters import Wanted

TEXT = """
name = "train"
zone = "us-central1-a"

[[pools]]
gpu-type = "t4"
num-gpus = 2
max-nodes = 4

[[pools]]
num-gpus = 0
machine-type = "n1-standard-8"
spot = true
"""


def written(folder, text: str) -> str:
    (folder / "cluster.toml").write_text(text)
    return str(folder / "cluster.toml")


def test_a_file_says_the_pools(tmp_path):
    name, pools = clusters.read(written(tmp_path, TEXT))
    assert name == "train"
    zone = "us-central1-a"
    assert pools == [
        Wanted(gpu_type="t4", num_gpus=2, max_nodes=4, zone=zone),
        Wanted(num_gpus=0, machine_type="n1-standard-8", spot=True, zone=zone),
    ]


def test_a_duration_of_a_file_is_one_of_an_option_or_hours(tmp_path):
    for text, hours in (('"14d"', 336), ('"90m"', 1.5), ("48", 48), ("1.5", 1.5)):
        file = written(tmp_path, TEXT.replace("spot = true", f"max-hours = {text}"))
        assert clusters.read(file)[1][1].max_hours == hours


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("name =", "nam =", "no key 'nam' here. There are: name, zone, pools"),
        ('name = "train"', "name = 3", "has no name of the cluster"),
        ("max-nodes", "most-nodes", "no key 'most-nodes' here"),
        ("max-nodes = 4", "max-nodes = 0", "--max-nodes 0 is not possible"),
        ("num-gpus = 2", 'num-gpus = "2"', "num-gpus cannot be '2'"),
        ("num-gpus = 2", "num-gpus = true", "num-gpus cannot be True"),
        ("spot = true", "spot = 1", "spot cannot be 1"),
        ("spot = true", 'max-hours = "soon"', "max-hours: 'soon' is not a duration: give one such"),
        ("spot = true", "max-hours = true", "max-hours cannot be True"),
        ('"us-central1-a"', "[1]", "zone must be text"),
        ("[[pools]]", "[pools]", "cannot read"),
        (TEXT, 'name = "train"', "has no [[pools]]"),
        (TEXT, 'name = "train"\npools = [3]', "pools are tables"),
    ],
)
def test_what_is_no_cluster_is_refused(tmp_path, old, new, why):
    assert old in TEXT
    with pytest.raises(BergError) as error:
        clusters.read(written(tmp_path, TEXT.replace(old, new)))
    assert why in error.value.message


def test_a_missing_file_and_options_beside_one(berg, tmp_path):
    with pytest.raises(BergError, match="cannot read"):
        clusters.read(str(tmp_path / "none"))
    file = written(tmp_path, TEXT)
    for words, why in (
        ([], "give a name, or --file"),
        (["train", "-f", file], "give a name, or --file"),
        (["-f", file, "--spot"], "leave out spot"),
    ):
        refused = berg("cluster", "create", *words)
        assert refused.returncode == 2 and why in refused.stderr


def test_dear_nodes_are_asked_about(berg):
    cheap = {"BERG_ASK_ABOVE": "1000", "stdin": ""}
    dear = berg("cluster", "create", "dear", "-t", "a100", "-g", "8", "--num-nodes", "4", **cheap)
    assert "4 nodes for jobs cost $" in dear.stderr and "in 30 days. Create the" in dear.stderr
    assert dear.returncode == 1 and "to skip it: -y" in dear.stderr
    unknown = berg("cluster", "create", "dear", "-t", "v100", "--spot", **cheap)
    assert unknown.returncode == 1 and "cost is unknown" in unknown.stderr
    assert "dear" not in berg("cluster", "list").stdout
    small = ["-g", "0", "--machine-type", "n1-standard-2", "--num-nodes", "1"]
    made = berg("cluster", "create", "small", *small, **cheap)
    assert made.returncode == 0, made.stderr
    assert berg("cluster", "delete", "small", "-y").returncode == 0


def test_what_is_printed_can_be_made_again(berg, cloud, tmp_path):
    file = written(tmp_path, TEXT.replace('"train"', '"again"'))
    printed = []
    for each in (file, str(tmp_path / "printed.toml")):
        made = berg("cluster", "create", "-f", each)
        assert made.returncode == 0 and made.stdout == "us-central1-a/again\n", made.stderr
        shown = berg("cluster", "status", "again", "--toml")
        assert shown.returncode == 0, shown.stderr
        printed.append(shown.stdout)
        (tmp_path / "printed.toml").write_text(shown.stdout)
        assert berg("cluster", "create", "-f", each).returncode == 0, "it may be there already"
        assert berg("cluster", "delete", "again", "-y").returncode == 0
    assert printed[0] == printed[1]
    name, pools = clusters.read(str(tmp_path / "printed.toml"))
    assert (name, len(pools)) == ("again", 2)
    assert (pools[0].gpu_type, pools[0].num_gpus, pools[0].max_nodes) == ("t4", 2, 4)
    assert (pools[1].machine_type, pools[1].spot) == ("n1-standard-8", True)
