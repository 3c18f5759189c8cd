"""What a machine installs, decided from the files of a repo."""

import re
from dataclasses import replace

import pytest
import repositories
from repositories import BUILT, EXCLUSIVE, SHAPES, STUB, files_of, lock, make_index, project, write

from berg import BergError
from berg.code import installation, uvlock
from berg.code.installation import Wanted
from berg.code.snapshot import Files
from berg.code.uvlock import meets

CPU = Wanted(command="python train.py", image="pytorch-2-9", python="3.12", torch="2.9")
GPU = replace(CPU, accelerator="gpu")
PIP = installation.PIP


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def locked(tmp_path, index):
    """Write a repo with the uv.lock of its first pyproject.toml; return its files."""

    def make(files, *options: str, then=None):
        lock(write(tmp_path, files), index, *options)
        return files_of(write(tmp_path, then or {}))

    return make


def decide(files, wanted=CPU, **more):
    if isinstance(files, dict):
        files = Files(frozenset(files), files.__getitem__)
    return installation.decide(files, replace(wanted, **more))


def refusal(files, wanted=CPU, **more) -> str:
    with pytest.raises(BergError) as raised:
        decide(files, wanted, **more)
    return raised.value.message


# --- uv.lock


def test_a_lock_of_uvs_is_followed_and_the_repo_is_not_built_by_pip(locked):
    made = decide(locked(SHAPES["flat-two-modules"]))
    assert made.words == "uv.lock: 1 package, python 3.12"
    assert (made.venv, made.folder, made.needs_uv, made.no_sync) == (".venv", "", True, False)
    assert made.steps == [["uv", "sync", "--frozen"]]


def test_a_lock_that_says_that_the_repo_is_no_package_is_followed(locked):
    made = decide(locked(SHAPES["package-false"]))
    assert made.steps == [["uv", "sync", "--frozen"]]


def test_without_its_lock_the_dependencies_alone_are_installed():
    made = decide(SHAPES["package-false"])
    assert made.words == "the dependencies of pyproject.toml"
    assert made.steps == [["uv", "pip", "install", "--python", "python", "-r", "pyproject.toml"]]
    assert (made.venv, made.needs_uv, made.may_fail) == ("", True, [])


def test_a_lock_that_is_out_of_date_is_refused_with_what_differs(locked):
    newer = {"pyproject.toml": project("flat-two-modules", '"iniconfig==2.1.0", "pluggy"')}
    stale = locked(SHAPES["flat-two-modules"], then=newer)
    assert refusal(stale) == "uv.lock is older than pyproject.toml: pluggy. Run: uv lock"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('"iniconfig==2.1.0"', '"iniconfig>=2"'), "iniconfig"),
        (('"iniconfig==2.1.0"', '"Iniconfig ==2.1.0"'), ""),
        (('"iniconfig==2.1.0"', '"iniconfig[more]==2.1.0"'), "iniconfig"),
        (('gone = ["pluggy"]', 'other = ["pluggy"]'), "extra gone, extra other"),
        (('dev = ["pluggy"]', "dev = []"), "pluggy"),
        (('dev = ["pluggy"]', 'dev = ["pluggy"]\nnew = ["iniconfig"]'), "group new"),
    ],
)
def test_a_lock_is_compared_with_versions_extras_and_groups(locked, change, named):
    more = '[project.optional-dependencies]\ngone = ["pluggy"]\n'
    more += '[dependency-groups]\ndev = ["pluggy"]\n'
    files = {"pyproject.toml": project("compared", more=more)}
    changed = {"pyproject.toml": files["pyproject.toml"].replace(*change)}
    assert changed != files
    found = locked(files, then=changed)
    if not named:
        decide(found)
        return
    assert refusal(found) == f"uv.lock is older than pyproject.toml: {named}. Run: uv lock"


def test_a_lock_that_was_made_with_its_authors_own_settings_is_taken(locked):
    files = locked(SHAPES["flat-two-modules"], "--exclude-newer", "2026-11-01T00:00:00Z")
    assert "exclude-newer" in files.read("uv.lock")
    made = decide(files)
    assert made.steps == [["uv", "sync", "--frozen"]]
    assert made.no_sync, "uv run would make the lock again"
    texts = {path: files.read(path) for path in files.paths}
    settings = '[tool.uv]\nexclude-newer = "2026-11-01T00:00:00Z"\n'
    own = {**texts, "pyproject.toml": texts["pyproject.toml"] + settings}
    assert not decide(own).no_sync
    assert not decide({**texts, "uv.toml": settings.partition("\n")[2]}).no_sync


def test_a_member_of_a_workspace_is_uvs_and_not_pips(locked):
    files = locked(SHAPES["workspace-name-on-pypi"])
    made = decide(files)
    assert made.steps == [["uv", "sync", "--frozen"]]
    assert "does not know [tool.uv.sources]" in refusal(files, install="pip")
    inside = decide(files, folder="packages/iniconfig")
    assert (inside.folder, inside.venv) == ("packages/iniconfig", ".venv")
    assert decide(files, folder="packages/iniconfig/src").folder == "packages/iniconfig"


def test_a_workspace_without_a_lock_is_uvs_too():
    made = decide(SHAPES["workspace-name-on-pypi"])
    assert made.words == "pyproject.toml by uv, not locked (uv lock), python 3.12"
    assert made.steps == [["uv", "sync"]] and made.venv == ".venv"


def test_a_lock_that_is_newer_than_machines_read_is_refused():
    files = {"pyproject.toml": project("new"), "uv.lock": "version = 2\n"}
    assert refusal(files).startswith("uv.lock has version 2, and the uv of machines")


@pytest.mark.parametrize("text", ["version = 1\n", "version = 1\n[[package]]\nname = 3\n", "]"])
def test_a_damaged_lock_is_named(text):
    files = {"pyproject.toml": project("new"), "uv.lock": text}
    assert "uv.lock" in refusal(files)


def test_a_uv_that_the_repo_asks_for_is_brought(locked):
    more = '[tool.uv]\nrequired-version = ">=0.13"\n'
    files = {"pyproject.toml": project("old", more=more)}
    found = locked(files, then={"pyproject.toml": files["pyproject.toml"].replace("0.13", "99.1")})
    made = decide(found)
    brought = ["uv", "tool", "run", "--no-config", "--from", "uv>=99.1"]
    assert made.steps == [[*brought, "uv", "sync", "--frozen"]]


def test_what_an_install_script_installed_stays(locked):
    made = decide(locked(SHAPES["flat-two-modules"]), script="setup.sh")
    assert made.steps == [["uv", "sync", "--frozen", "--inexact"]]
    assert made.words == "setup.sh, then uv.lock: 1 package, python 3.12"


CONFLICTING = """version = 1
[[package]]
name = "nano"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "pluggy", marker = "sys_platform == 'darwin'" },
    { name = "torch", version = "2.9.1", source = { registry = "https://pypi.org/simple" }, \
marker = "extra != 'extra-4-nano-cpu' and extra != 'extra-4-nano-gpu'" },
]
[package.optional-dependencies]
cpu = [{ name = "torch", version = "2.9.1+cpu", source = { registry = "https://cpu" }, \
marker = "sys_platform != 'darwin'" }]
gpu = [{ name = "torch", version = "2.9.1+cu128", source = { registry = "https://gpu" } }]
[package.metadata]
requires-dist = [
    { name = "pluggy" }, { name = "torch" },
    { name = "torch", marker = "extra == 'cpu'" }, { name = "torch", marker = "extra == 'gpu'" },
]
provides-extras = ["cpu", "gpu"]
[[package]]
name = "pluggy"
version = "1"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "torch"
version = "2.9.1"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "cuda-lib", marker = "platform_machine == 'x86_64'" }]
wheels = [
    { url = "https://x/torch-2.9.1-cp312-cp312-manylinux_2_28_aarch64.whl", size = 1 },
    { url = "https://x/torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64.whl", size = 900000000 },
]
[[package]]
name = "torch"
version = "2.9.1+cpu"
source = { registry = "https://cpu" }
wheels = [{ url = "https://x/torch-2.9.1%2Bcpu-cp312-cp312-manylinux_2_28_x86_64.whl" }]
[[package]]
name = "torch"
version = "2.9.1+cu128"
source = { registry = "https://gpu" }
dependencies = [{ name = "cuda-lib" }]
wheels = [{ url = "https://x/torch-2.9.1%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl" }]
[[package]]
name = "cuda-lib"
version = "12"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://x/cuda_lib-12-py3-none-win_amd64.whl", size = 5 },
    { url = "https://x/cuda_lib-12-py3-none-manylinux_2_5_x86_64.manylinux1_x86_64.whl", \
size = 2400000000 },
]
"""


@pytest.mark.parametrize(
    ("wanted", "words", "download"),
    [
        (GPU, "2 packages, extra gpu", "2.4 GB, torch 2.9.1+cu128 from the lock (whose size"),
        (CPU, "1 package, extra cpu", "torch 2.9.1+cpu from the lock (whose size"),
        (replace(CPU, accelerator="tpu"), "2 packages", "3.3 GB, torch 2.9.1 from the lock; the"),
    ],
)
def test_what_a_start_downloads_is_of_the_lock(wanted, words, download):
    more = """[project.optional-dependencies]
cpu = ["torch"]
gpu = ["torch"]
[tool.uv]
conflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]
"""
    files = {"pyproject.toml": project("nano", '"pluggy", "torch"', more), "uv.lock": CONFLICTING}
    made = decide(files, wanted)
    assert made.words == f"uv.lock: {words}, python 3.12"
    assert any(each.startswith(f"downloads {download}") for each in made.notes)
    proposal = "each start downloads that; a disk image with it: berg image create"
    assert (proposal in made.notes) == ("GB" in download)
    assert proposal not in decide(files, wanted, is_own_image=True).notes
    in_pods = "each start downloads that; a container image with it: berg image build --push"
    assert (in_pods in decide(files, wanted, where="pod").notes) == ("GB" in download)
    own = decide(files, wanted, where="pod", is_own_image=True).notes
    assert any(each.endswith(", unless the image has it") for each in own)
    built = decide(files, wanted, where="build", is_own_image=True).notes
    assert not [each for each in built if "each start" in each or "unless" in each]


# --- extras and groups


def test_the_extra_that_fits_the_machine_is_taken_and_said(locked):
    files = locked(SHAPES["extras-in-conflict"])
    made = decide(files, GPU)
    assert made.words == "uv.lock: 3 packages, extra gpu, python 3.12"
    assert made.notes[0] == "extra gpu, as the machine has GPUs; one of cpu, gpu: --extra"
    assert made.steps == [["uv", "sync", "--frozen", "--extra", "gpu"]] and made.no_sync
    assert decide(files).steps == [["uv", "sync", "--frozen", "--extra", "cpu"]]
    assert decide(files, GPU, extras=("cpu",)).steps[0][-1] == "cpu"


def test_extras_that_alone_bring_torch_are_refused_without_a_choice(locked):
    pair = EXCLUSIVE.format(first="small", second="large")
    found = locked({"pyproject.toml": project("pair", '"pluggy"', pair), **STUB})
    said = refusal(found, GPU)
    assert "choose one of small, large, which exclude each other and alone bring torch" in said
    assert 'extras = ["large"] below [tool.berg]' in said
    both = refusal(found, GPU, extras=("small", "large"))
    assert "extra large and extra small exclude each other (pyproject.toml)" in both
    assert "there is no extra 'medium' in pyproject.toml" in refusal(found, extras=("medium",))


def test_extras_that_bring_nothing_needed_alone_are_only_named(locked):
    more = EXCLUSIVE.format(first="small", second="large").replace('"torch", ', "")
    more = more[: more.index("[tool.uv.sources]")]
    made = decide(locked({"pyproject.toml": project("pair", '"pluggy"', more)}), GPU)
    assert made.notes == ["none of small, large is chosen (--extra)"]
    assert made.steps == [["uv", "sync", "--frozen"]]


def test_all_that_could_be_chosen_is_named_once(locked):
    pairs = "[project.optional-dependencies]\na = []\nb = []\nc = []\n[tool.uv]\nconflicts = ["
    for one, other in ("ab", "bc", "ac"):
        pairs += f'[{{ extra = "{one}" }}, {{ extra = "{other}" }}],'
    found = locked({"pyproject.toml": project("pairs", more=f"{pairs}]\n")})
    assert decide(found).notes == ["none of a, b, c is chosen (--extra)"]


def test_a_choice_of_tpus_is_taken_for_tpus(locked):
    pair = EXCLUSIVE.format(first="gpu", second="tpu")
    found = locked({"pyproject.toml": project("pair", '"pluggy"', pair), **STUB})
    assert decide(found, replace(CPU, accelerator="tpu")).steps[0][-1] == "tpu"
    assert "choose one of gpu, tpu" in refusal(found)


def test_an_extra_for_gpus_that_is_free_is_named():
    more = BUILT + '[project.optional-dependencies]\ncuda12 = ["pluggy"]\ndocs = []\n'
    made = decide({"pyproject.toml": project("free", more=more)}, GPU)
    assert made.notes == ["extra cuda12 is not chosen (--extra cuda12)"]
    chosen = decide({"pyproject.toml": project("free", more=more)}, GPU, extras=("cuda12",))
    assert (chosen.words, chosen.notes) == ("-e .[cuda12]", [])


def test_a_package_whose_dependencies_are_all_in_extras_says_so():
    more = BUILT + '[project.optional-dependencies]\ntpu = ["pluggy"]\n'
    made = decide({"pyproject.toml": project("alone", "", more)})
    assert made.notes == ["pyproject.toml names packages in extras alone: tpu (--extra)"]


def test_groups_without_a_project_are_installed_when_they_are_chosen():
    files = SHAPES["groups-only"]
    made = decide(files)
    assert made.words == "nothing (groups dev, train of pyproject.toml: none is chosen (--group))"
    chosen = decide(files, groups=("train",))
    assert chosen.words == "group train"
    uv = ["uv", "pip", "install", "--python", "python"]
    assert chosen.steps == [[*uv, "--group", "train"]]
    assert "there is no group 'test' in pyproject.toml. There are: dev, train" in refusal(
        files, groups=("test",)
    )


# --- other locks


POETRY_LOCK = """
[[package]]
name = "iniconfig"
version = "2.1.0"
optional = false
python-versions = ">=3.8"
groups = ["main"]
files = [{file = "iniconfig-2.1.0-py3-none-any.whl", hash = ""}]
[[package]]
name = "pluggy"
version = "1.7.0"
optional = false
python-versions = ">=3.10"
groups = ["dev", "main"]
markers = {main = "extra == 'all'", dev = "sys_platform == 'linux'"}
files = [{file = "pluggy-1.7.0-cp311-cp311-manylinux2014_x86_64.whl", hash = ""}]
[package.source]
type = "git"
url = "https://git.example/pluggy"
resolved_reference = "abc"
[[package]]
name = "old"
version = "1"
optional = false
python-versions = "<3.9"
groups = ["main"]
files = []
[package.source]
type = "legacy"
url = "https://index.example/simple"
[metadata]
lock-version = "2.1"
python-versions = ">=3.10,<4 || ~3.8"
"""


def test_poetrys_lock_is_read_without_poetry_and_installed_by_uv():
    files = {**SHAPES["poetry-no-package"], "poetry.lock": POETRY_LOCK}
    made = decide(files)
    assert made.words == "poetry.lock: 1 package, python 3.12"
    install = ["uv", "pip", "install", "--no-deps"]
    assert made.steps == [[*install, "iniconfig==2.1.0"]] and made.python == "3.12"
    dev = decide(files, groups=("dev",))
    assert dev.steps == [
        [*install, "iniconfig==2.1.0", "pluggy @ git+https://git.example/pluggy@abc"]
    ]
    assert dev.words == "poetry.lock: 2 packages, group dev, python 3.11, which uv downloads"
    package = repositories.POETRY.replace("package-mode = false", "")
    package += '[tool.poetry.extras]\nall = ["pluggy"]\n'
    built = decide({**files, "pyproject.toml": package}, extras=("all",))
    assert built.steps[-1] == [*install, "-e", "."] and len(built.steps[0]) == 6
    oldest = decide(files, python="3.8").steps[0]
    assert oldest == [
        *install,
        "--index=https://index.example/simple",
        "iniconfig==2.1.0",
        "old==1",
    ]
    newer = repositories.POETRY.replace('iniconfig = "2.1.0"', 'iniconfig = "2.1.0"\nRich = "*"')
    said = refusal({**files, "pyproject.toml": newer})
    assert said == "poetry.lock is older than pyproject.toml: rich. Run: poetry lock"
    assert "cannot read poetry.lock" in refusal({**files, "poetry.lock": "["})
    assert "pyproject.toml" in refusal({**files, "poetry.lock": "package = 3"})


def test_in_an_old_lock_of_poetrys_dependencies_are_followed():
    lock_of_old = re.sub(r"groups = .*\n|markers = .*\n", "", POETRY_LOCK)
    lock_of_old += """
[[package]]
name = "helper"
version = "3"
optional = true
python-versions = "*"
files = [{file = "helper-3-py3-none-any.whl", hash = ""}]
"""
    needs = """[package.dependencies]
Pluggy = {version = "*", extras = ["more"]}
helper = {version = "*", optional = true, markers = "extra == \\"unasked\\""}
windows = {version = "*", markers = "sys_platform == \\"win32\\""}
"""
    lock_of_old = lock_of_old.replace(
        '[[package]]\nname = "pluggy', needs + '[[package]]\nname = "pluggy'
    )
    more = '[package.dependencies]\nhelper = {version = "*", optional = true}\n'
    more += '[package.extras]\nmore = ["helper (>=3)"]\n'
    lock_of_old = lock_of_old.replace('[[package]]\nname = "old', more + '[[package]]\nname = "old')
    files = {**SHAPES["poetry-no-package"], "poetry.lock": lock_of_old}
    (step,) = decide(files).steps
    assert [word.partition(" ")[0] for word in step[4:]] == [
        "helper==3",
        "iniconfig==2.1.0",
        "pluggy",
    ]


@pytest.mark.parametrize(
    ("python", "spec", "is_taken"),
    [
        *[("3.12", "^3.8.0", True), ("3.12", "^2.7", False), ("3.12", "~3.12", True)],
        *[("3.12", "~3.11", False), ("3.12", ">=3.8,<3.12", False), ("3.12", "*", True)],
        *[("3.12", "<3.9 || >=3.12", True), ("3.10", "<3.9 || >=3.12", False)],
    ],
)
def test_poetrys_way_to_write_versions(python, spec, is_taken):
    assert uvlock.takes(python, spec) == is_taken


def test_poetry_without_a_package_and_without_a_lock_is_refused():
    said = refusal({"pyproject.toml": repositories.POETRY})
    assert said.endswith("there is no poetry.lock. Run: poetry lock")


def test_other_locks():
    pyproject = {"pyproject.toml": project("other")}
    assert decide({**pyproject, "pylock.toml": ""}).steps == [["uv", "pip", "sync", "pylock.toml"]]
    pipfile = """{"_meta": {"sources": [{"url": "https://pypi.org/simple"},
        {"url": "https://index.example/simple"}]},
        "default": {"iniconfig": {"version": "==2.1.0", "markers": "python_version >= '3.8'"},
                    "mine": {"git": "https://git.example/mine", "ref": "abc", "extras": ["all"]}}}"""
    (step,) = decide({"Pipfile.lock": pipfile}).steps
    assert step[4:] == [
        "--index=https://index.example/simple",
        "iniconfig==2.1.0 ; python_version >= '3.8'",
        "mine[all] @ git+https://git.example/mine@abc",
    ]
    assert "cannot be read" in refusal({"Pipfile.lock": "{}"})
    assert "pdm.lock is not read" in refusal({**pyproject, "pdm.lock": ""})
    assert decide({**pyproject, "pdm.lock": ""}, install="pip").notes == ["pdm.lock is not read"]


# --- the image's python


def test_requirements_and_a_package_go_into_the_images_python_as_ever():
    files = {"requirements.txt": "iniconfig\n", "pyproject.toml": project("both", more=BUILT)}
    made = decide(files)
    assert made.words == "requirements.txt and -e ."
    assert made.steps == [[*PIP, "-r", "requirements.txt"], [*PIP, "-e", "."]]
    assert (made.venv, made.needs_uv) == ("", False)
    by_uv = decide(files, install="uv")
    assert by_uv.words == "requirements.txt and -e ., by uv, python 3.12"
    assert by_uv.venv == ".venv" and by_uv.steps[1] == ["uv", "pip", "install", "-e", "."]


def test_a_repo_that_does_not_say_how_it_is_built_may_fail_to_be():
    made = decide(SHAPES["src-no-build-system"])
    assert made.words == "the dependencies of pyproject.toml"
    assert made.steps[1] == [*PIP, "--no-deps", "-e", "."] and made.may_fail == [1]


@pytest.mark.parametrize(
    ("files", "is_built"),
    [
        ({"setup.py": ""}, True),
        ({"pyproject.toml": project("p"), "setup.cfg": "[flake8]\n"}, False),
        ({"pyproject.toml": project("p"), "setup.cfg": "[metadata]\nname = p\n"}, True),
        ({"pyproject.toml": project("p", more="[tool.setuptools]\npackages = []\n")}, True),
        (
            {"pyproject.toml": project("p", more=BUILT + "[tool.pdm]\ndistribution = false\n")},
            False,
        ),
        ({"pyproject.toml": project("p", more="[tool.uv]\npackage = true\n")}, True),
    ],
)
def test_a_repo_is_built_if_it_says_how(files, is_built):
    assert ([*PIP, "-e", "."] in decide(files).steps) == is_built


def test_the_nearest_folder_counts():
    files = {**SHAPES["requirements-below"], "requirements.txt": "pluggy\n", "other/x.py": ""}
    made = decide(files, folder="experiments")
    assert (made.words, made.folder) == ("experiments/requirements.txt", "experiments")
    assert decide(files, folder="other").words == "requirements.txt"
    settings = {**files, "experiments/pyproject.toml": "[tool.ruff]\n"}
    assert decide(settings, folder="experiments").folder == "experiments"


def test_a_folder_with_settings_alone_is_passed_over():
    files = {"requirements.txt": "pluggy\n", "sub/pyproject.toml": "[tool.ruff]\n"}
    assert decide(files, folder="sub").words == "requirements.txt"


def test_a_project_below_a_lock_is_its_own_unless_it_is_a_member(locked):
    files = {**SHAPES["flat-two-modules"], "sub/pyproject.toml": project("sub", more=BUILT)}
    assert decide(locked(files), folder="sub").words == "-e . in sub"


def test_a_torch_that_replaces_the_images_is_said():
    made = decide({"requirements.txt": "torch==2.10.0  # newer\n"})
    assert made.notes == ["torch ==2.10.0 is downloaded; the image has 2.9"]
    assert decide({"requirements.txt": "torch>=2.5\n"}).notes == []


def test_a_build_that_brings_its_own_torch_is_said():
    needs = BUILT.replace('"setuptools"]', '"setuptools", "torch>=2.5.1"]')
    (note,) = decide({"pyproject.toml": project("sam", more=needs)}).notes
    assert note.endswith('--install "pip install --no-build-isolation -e ."')


# --- python


def test_a_python_that_nothing_meets_is_refused_with_the_images():
    said = refusal(SHAPES["python-too-new"])
    assert ">=3.99" in said and "pytorch-2-9" in said and "python 3.12" in said


def test_a_python_that_the_image_lacks_is_uvs_to_bring(locked):
    pyproject = project("newer", more=BUILT).replace(">=3.10", ">=3.13")
    files = {"pyproject.toml": pyproject}
    assert "Let uv bring one: --install uv" in refusal(files)
    made = decide(files, install="uv")
    assert made.words == "-e ., by uv, python >=3.13, which uv downloads"
    assert decide(files, python="").words == "-e ."
    old = {"pyproject.toml": project("old"), ".python-version": "3.10\n"}
    assert decide(locked(old)).words == "uv.lock: 1 package, python 3.10, which uv downloads"


def test_a_python_version_that_contradicts_the_project_is_refused(locked):
    found = locked({"pyproject.toml": project("old")}, then={".python-version": "3.9\n"})
    assert ".python-version is 3.9, and requires-python >=3.10" in refusal(found)


def test_a_python_version_of_pips_is_only_named():
    made = decide({"requirements.txt": "pluggy\n", ".python-version": "3.11.4\n"})
    assert "uv brings the other one (--install uv)" in made.notes[0]


@pytest.mark.parametrize(
    ("version", "specifiers", "is_met"),
    [
        *[("3.12", ">=3.10", True), ("3.12", "<3.12", False), ("3.12", "<=3.12", True)],
        *[("3.12", "==3.12.*", True), ("3.12", "==3.11.*", False), ("3.12", "~=3.10", True)],
        *[("3.12", "~=3.10.1", False), ("3.12", ">=3.13.14", False), ("3.13", ">=3.13.14", True)],
        *[("3.12", "<3.12.4", True), ("3.12", "==3.*", True), ("3.12", ">=3.8,<3.11", False)],
        *[("3.12", "", True), ("3.12", "^3.10", True), ("2.9", "==2.9.1", True)],
        *[("3.12", "<4", True), ("3.12", ">3.11", True), ("3.12", ">=3.99", False)],
    ],
)
def test_versions_are_compared_by_two_numbers(version, specifiers, is_met):
    assert meets(version, specifiers) == is_met


# --- nothing, and what was asked for instead


def test_a_command_that_only_a_conda_environment_describes_is_refused_with_the_ways_out():
    shape = SHAPES["conda-environment"]
    with pytest.raises(BergError, match=r"^environment\.yml is not read: ") as refused:
        decide(shape, command="python train.py")
    ways = ("--docker", "--image", "--install-script", "--install none")
    assert all(way in str(refused.value) for way in ways)
    for chosen in ({"script": "conda.sh"}, {"install": "none"}, {"is_own_image": True}):
        assert decide(shape, command="python train.py", **chosen).steps == []
    assert decide(shape, command="", script="conda.sh").notes == []
    both = {**shape, "requirements.txt": "pluggy\n"}
    assert decide(both, command="python train.py").notes == ["environment.yml is not read"]


def test_a_devbox_says_that_a_conda_environment_is_not_read():
    made = decide(SHAPES["conda-environment"], command="")
    assert made.steps == [] and made.words.startswith("nothing (no requirements.txt")
    (note,) = made.notes
    assert note.startswith("environment.yml is not read")
    assert all(way in note for way in ("--docker", "--image", "--install-script"))


def test_requirements_below_are_named():
    (note,) = decide(SHAPES["requirements-below"]).notes
    assert note.startswith("experiments/requirements.txt is not installed from here")
    assert '--install "pip install -r experiments/requirements.txt"' in note
    assert "--cwd experiments" in note


def test_a_script_that_names_its_packages_is_to_be_run_by_uv():
    files = SHAPES["script-metadata"]
    note = "train.py names its packages itself: run it with `uv run train.py`"
    assert decide(files).notes == [note]
    for command in ("uv run train.py", "uv run --no-project train.py --lr 1"):
        made = decide(files, command=command)
        assert made.notes == [] and made.needs_uv
    assert decide(files, command="uv run python train.py").notes == [note]


def test_what_is_asked_for_comes_before_the_files(locked):
    files = locked(SHAPES["flat-two-modules"])
    assert decide(files, install="none") == installation.Installation(
        words="nothing (--install none)"
    )
    made = decide(files, install="pip install -r a.txt && true", folder="sub")
    assert made.steps == [["bash", "-o", "pipefail", "-c", "pip install -r a.txt && true"]]
    assert (made.folder, made.venv, made.needs_uv) == ("sub", "", False)
    assert decide(files, install="uvx ruff").needs_uv
    assert "takes no --extra" in refusal(files, install="none", extras=("gpu",))
    assert "python:3.12 has" in decide(files, container="python:3.12").words
    pip = decide(files, install="pip")
    assert pip.steps[0][-2:] == ["-r", "pyproject.toml"] and pip.notes == ["uv.lock is not read"]


def test_a_devbox_has_uv():
    assert decide({"train.py": ""}, command="").needs_uv
    assert not decide({"train.py": ""}).needs_uv
    assert decide({"setup.sh": "uv pip install x\n"}, script="setup.sh").needs_uv


def test_no_file_makes_a_traceback():
    """A file that says something else than it should is named, or taken for nothing."""
    texts = ["[project]\nname = 3\n", "[tool]\nuv = 3\n", "x" * 9, "[project", "a = [" * 5000]
    texts += ["project = 3\n", "tool = []\n", "[project]\ndependencies = 3\n"]
    texts += ["[project]\ndependencies = [3]\n[tool.uv]\nconflicts = 3\n"]
    texts += ["[dependency-groups]\nx = 3\n", "[project]\nrequires-python = 3\n"]
    for text in texts:
        try:
            decide({"pyproject.toml": text, "train.py": ""})
        except BergError as error:
            assert "pyproject.toml" in error.message
        files = Files(frozenset(["pyproject.toml"]), {"pyproject.toml": text}.__getitem__)
        without = replace(CPU, install="none")
        installation.named(files, without, installation.decide(files, without))
