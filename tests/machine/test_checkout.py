"""What a command writes to the checkout instead of its results."""

from conftest import commit, wait_for

WRITES = """
import os, pathlib, helper
for name in ("outputs/a/config.yaml", ".cache/big", "lib/node_modules/module.js", "model.pt"):
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
os.symlink("model.pt", "last.pt")
os.symlink("/etc/hosts", "hosts")
with open("train.py", "a") as file:
    file.write("# changed")
with open("sparse.bin", "wb") as file:
    file.seek(64 << 20)
    file.write(b"end")
os.rename("data.csv", "renamed.csv")
"""


def test_new_files_of_the_checkout_are_saved(berg):
    (berg.repo / "train.py").write_text(WRITES)
    (berg.repo / "helper.py").write_text("")
    (berg.repo / "data.csv").write_text("as committed")
    (berg.repo / "untouched.csv").write_text("as committed")
    (berg.repo / ".gitignore").write_text("outputs/\n.cache/\n*.pt\n")
    commit(berg.repo)
    ran = berg("run", "-g", "0", "-n", "writes", "--wait", "python train.py")
    assert ran.returncode == 0, ran.stderr
    state, prefix = berg.state("writes"), "berg_results/writes/_checkout/"
    found = {name.removeprefix(prefix): blob for name, blob in berg.objects(prefix).items()}
    names = {"lib/node_modules/module.js", "model.pt", "outputs/a/config.yaml", "renamed.csv"}
    assert found.keys() - {"last.pt"} == names | {"train.py", "sparse.bin"}
    assert found["outputs/a/config.yaml"] == b"outputs/a/config.yaml"
    assert found["train.py"].endswith(b"# changed")
    assert found["sparse.bin"] == bytes(64 << 20) + b"end"
    assert state["state"] == "SUCCEEDED" and state["reason"] == ""
    assert "7 new files (67.1 MB) saved in _checkout" in state["checkout"]
    assert "not saved: hosts (a link out of the checkout)" in state["checkout"]
    shown = berg("show", "writes")
    assert state["checkout"] in " ".join((shown.stdout + shown.stderr).split())
    ran = berg("run", "-g", "0", "-n", "none", "--wait", "--keep", "none", "python train.py")
    assert ran.returncode == 0, ran.stderr
    assert not berg.objects("berg_results/none/_checkout/") and not berg.state("none")["checkout"]


KEEPS = """
import os, pathlib, shutil, time
folder = pathlib.Path("checkpoints")
print("finds", sorted(each.name for each in folder.iterdir()), flush=True)
if os.environ["BERG_ATTEMPT"] == "1":
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "1.pt").write_text("one")
    time.sleep(600)
(folder / "2.pt").write_text("two")
"""


def test_a_kept_folder_is_mirrored_and_restored(berg, cloud):
    """Also where the program deletes it first, and where the commit has files in it."""
    (berg.repo / "train.py").write_text(KEEPS)
    (berg.repo / "checkpoints").mkdir()
    (berg.repo / "checkpoints/0.pt").write_text("zero")
    commit(berg.repo)
    words = ("run", "-g", "0", "-n", "keeps", "--spot", "--keep", "checkpoints/", "python train.py")
    ran = berg(*words)
    assert ran.returncode == 0, ran.stderr
    first = "berg_results/keeps/_checkout/checkpoints/1.pt"
    wait_for(lambda: first in berg.objects("berg_results/keeps/"), 60, "the file, while it runs")
    cloud.call("POST", "/_berg/instances/keeps/preempt", {"grace": 10})
    wait_for(lambda: berg.state("keeps")["finished_at"], 90, "the end")
    state = berg.state("keeps")
    assert (state["state"], state["attempt"], state["checkout"]) == ("SUCCEEDED", 2, "")
    assert "finds ['0.pt']\n" in berg.log("keeps") and "'1.pt'" in berg.log("keeps")
    assert first.replace("1.pt", "2.pt") in berg.objects("berg_results/keeps/")
