"""The image that machines boot: several clouds make it at once, and a cloud without one says so."""

from local_machines import GOLDEN, Client, body

from localcloud import control
from localcloud.machines import image
from localcloud.machines import sandbox as machines


def test_clouds_that_share_an_image_do_not_trip_over_each_other(tmp_path):
    (tmp_path / "root").mkdir()
    for _ in range(2):
        made = image.make_image(tmp_path, machines.Sandbox(machines.PLAIN))
        assert made == tmp_path / "root"
    assert (tmp_path / "prepared/berg/venv").is_symlink()


def test_a_machine_whose_image_could_not_be_made_fails_with_the_reason(tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image/prepared").write_text("a file where a folder should be")
    folder = tmp_path / "own"
    control.start(folder, options=("--image", str(tmp_path / "image")))
    try:
        client = Client(folder)
        path = "/zones/us-central1-c/instances"
        done = client.wait(client.call("POST", path, body("box", image=GOLDEN)))
        (error,) = done["error"]["errors"]
        assert "Machine did not boot: " in error["message"] and "prepared" in error["message"]
        assert client.status("box") == "TERMINATED"
    finally:
        control.reset(folder)
