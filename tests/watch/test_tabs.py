"""TensorBoard in a real browser, over what an example writes: each of its tabs shows something."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import chromium
import pytest
from conftest import wait_for

from berg.watch import board

EXAMPLE = Path(__file__).parent.parent.parent / "examples/tensorboard/train.py"
# Of each tab what is seen once it has loaded; the projector lies in a frame of its own.
TABS = {
    "timeseries": "accuracy",
    "scalars": "accuracy",
    "images": "read wrong",
    "graphs": "1×64",
    "text": "epochs",
    "projector": "hidden:00002",
    "profile": "Number of device cores",
}


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        ('tensor_path: "00002/hidden/tensors.tsv"', True),
        ('tensor_path: "/etc/passwd"', False),
        ('tensor_path: "a/../../../etc/passwd"', False),
        ('tensor_path: "\\057etc/passwd"', False),
        ("tensor_path: '/etc/passwd'", False),
        ('tensor_path: "a" "/../b"', False),
        ('model_checkpoint_path: "a"', False),
        ('bookmarks_path: "a"', False),
    ],
)
def test_a_configuration_names_files_of_its_own_folder_alone(line, is_plain):
    config = f'embeddings {{\n  tensor_name: "hidden:00002"\n  {line}\n}}\n'
    assert (board.checked(config.encode()) is not None) == is_plain


def test_a_configuration_that_names_others_is_left_out(berg, tmp_path):
    berg.bucket.write("berg_results/evil/projector_config.pbtxt", 'tensor_path: "/etc/passwd"')
    berg.bucket.write("berg_results/evil/1/tag/tensors.tsv", "1\t2\n")
    done = berg("tensorboard", "evil", "--once")
    assert done.returncode == 0 and "projector_config.pbtxt is left out" in done.stderr
    assert not list(Path(done.stdout.strip()).rglob(board.CONFIG))
    assert list(Path(done.stdout.strip()).rglob("tensors.tsv"))


def test_what_is_written_of_a_configuration_is_what_was_understood(berg):
    """Each character that some reader takes for the end of a line is one then, for all of them."""
    line = 'embeddings {\x0btensor_name: "a"\u2028metadata_path: "1/metadata.tsv"\x85}'
    path = "berg_results/odd/projector_config.pbtxt"
    berg.bucket.write(path, line)
    folder = Path(berg("tensorboard", "odd", "--once").stdout.strip())
    written = folder / "odd/projector_config.pbtxt"
    assert written.read_text().splitlines() == [
        "embeddings {",
        'tensor_name: "a"',
        'metadata_path: "1/metadata.tsv"',
        "}",
    ]
    berg.bucket.write(path, 'embeddings { metadata_path: "/etc/passwd" }')
    left = berg("tensorboard", "odd", "--once")
    assert "projector_config.pbtxt is left out" in left.stderr and not written.exists()


def profile(folder: Path) -> bytes:
    """A profile as JAX's server writes it."""
    pytest.importorskip("jax")
    script = f"import jax\nwith jax.profiler.trace({str(folder)!r}): jax.numpy.ones(9).sum()"
    subprocess.run([sys.executable, "-c", script], check=True)
    (file,) = folder.rglob("*.xplane.pb")
    return file.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not chromium.PROGRAM, reason=chromium.MISSING)
def test_each_tab_of_tensorboard_shows_what_the_example_writes(berg, tmp_path):
    for package in ("torch", "tensorboard", "xprof"):
        pytest.importorskip(package)
    variables = {**os.environ, "BERG_RESULTS_DIR": str(tmp_path / "results")}
    command = [sys.executable, str(EXAMPLE), "--epochs=2"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "results").rglob("*"):
        if path.is_file():
            name = path.relative_to(tmp_path / "results")
            berg.bucket.write(f"berg_results/tabs/{name}", path.read_bytes())
    place = "berg_results/tabs/plugins/profile/2026_11_23/host.xplane.pb"
    berg.bucket.write(place, profile(tmp_path / "profile"))
    process = berg.start("tensorboard", "tabs")
    (tmp_path / "chromium").mkdir()
    try:
        address = process.stdout.readline().strip()
        with chromium.Browser(tmp_path / "chromium") as browser:
            for tab, words in TABS.items():
                browser.call("Page.navigate", url="about:blank")
                browser.call("Page.navigate", url=f"{address}#{tab}")
                wait_for(lambda words=words: words in seen(browser), 30, f"{words} in {tab}")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()


def seen(browser) -> str:
    """All text of a page, that of its frames and shadow trees, too."""
    script = """(() => {
      const text = root => [...root.querySelectorAll('*')].map(each =>
        (each.shadowRoot ? text(each.shadowRoot) : '') +
        (each.contentDocument ? text(each.contentDocument) : '') +
        [...each.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join(' ')
      ).join(' ');
      return text(document);
    })()"""
    try:
        return browser.eval(script) or ""
    except AssertionError:  # between two pages
        return ""
