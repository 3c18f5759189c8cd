"""`berg sync`: the working tree pushed over real ssh by real rsync.

Most tests push to folders behind an ssh server of their own, which needs no root. The last ones
push to machines of the embedded cloud, through the command line.
"""

import getpass
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import ssh_server
from conftest import commit, git, wait_for

from berg import BergError
from berg.code import leaks
from berg.laptop import sync
from berg.laptop.sync import multiplex
from localcloud.machines import sshd

pytestmark = pytest.mark.skipif(
    not (ssh_server.SSHD and shutil.which("rsync")), reason="openssh-server or rsync is missing"
)
needs_machines = pytest.mark.skipif(
    bool(sshd.obstacle()), reason=f"no ssh into machines here: {sshd.obstacle()}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = ssh_server.Server(tmp_path_factory.mktemp("ssh") / "server")
    yield running
    running.stop()


@pytest.fixture
def sockets():
    """A folder whose path is short enough for sockets."""
    folder = Path(
        subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip()
    )
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checkout(server, repo, tmp_path, sockets):
    """The checkout on a machine, as it is after the start."""
    return checkout_at(server, repo, tmp_path / "machine", sockets)


def checkout_at(server, repo: Path, folder: Path, sockets: Path) -> sync.Checkout:
    git(repo, "clone", "-q", "--recurse-submodules", str(repo), str(folder))
    mark = "update-ref refs/berg/start HEAD"  # as snapshot.restore does
    git(folder, *mark.split())
    git(folder, "submodule", "--quiet", "foreach", "--recursive", f"git {mark}")
    where = multiplex(server.options(), sockets), f"{getpass.getuser()}@{server.address}"
    return sync.Checkout(
        folder.name, str(folder), lambda: where, ssh=where[0], destination=where[1]
    )


def once(repo: Path, checkout: sync.Checkout) -> sync.Report:
    report = sync.push(repo, sync.scan(repo), checkout)
    assert not report.complaint
    return report


def tree(folder: Path) -> dict[str, str | bytes]:
    """What is in a folder apart from .git: content of files, targets of links, and the mode of
    both.
    """
    found: dict[str, str | bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and ".git" not in path.relative_to(folder).parts:
            found[name] = oct(path.stat().st_mode).encode() + b" " + path.read_bytes()
    return found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def compared(machine: str, lines: list[str]) -> bool:
    return any("compared" in line and machine in line for line in list(lines))


@contextmanager
def pushing(repo: Path, *checkouts: sync.Checkout):
    """A push of every change in a thread; yields the lines that it says, after its first pass."""
    lines: list[str] = []
    running = sync.Push(repo, list(checkouts), lines.append)
    failure: list[BaseException] = []

    def work() -> None:
        try:
            running.run()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        names = [checkout.name for checkout in checkouts]
        wait_for(
            lambda: failure or all(compared(name, lines) for name in names), what="the first pass"
        )
        yield lines
    finally:
        running.over.set()
        running.changed.set()
        thread.join(20)
        assert not thread.is_alive()
    if failure:
        raise failure[0]


def test_the_first_pass_after_a_start_sends_only_what_differs(repo, checkout):
    for number in range(50):
        write(repo / f"src/module{number}.py", f"number = {number}\n" * 50)
    commit(repo)
    git(Path(checkout.folder), "pull", "-q")
    write(repo / "src/module7.py", "number = 'seven'\n")
    report = once(repo, checkout)
    assert (report.sent, report.removed, report.compared) == (["src/module7.py"], [], 51)
    assert report.size < 2000
    assert tree(Path(checkout.folder)) == tree(repo)
    assert not once(repo, checkout).sent


def test_renames_deletes_modes_and_links(repo, checkout):
    for name in ("a.py", "pkg/b.py", "pkg/deep/er/c.py", "run.sh"):
        write(repo / name, name)
    (repo / "link").symlink_to("a.py")
    (repo / "broken").symlink_to("/nowhere/at all")
    (repo / "folder").symlink_to("pkg")
    commit(repo)
    once(repo, checkout)
    assert tree(Path(checkout.folder)) == tree(repo)
    (repo / "a.py").rename(repo / "pkg/renamed.py")
    shutil.rmtree(repo / "pkg/deep")
    (repo / "run.sh").chmod(0o755)
    (repo / "folder").unlink()
    (repo / "link").unlink()
    (repo / "link").symlink_to("run.sh")
    report = once(repo, checkout)
    assert set(report.sent) == {"pkg/renamed.py", "run.sh", "link"}
    assert set(report.removed) == {"a.py", "pkg/deep/er/c.py", "folder"}
    assert tree(Path(checkout.folder)) == tree(repo)
    assert not Path(
        checkout.folder, "pkg/deep"
    ).exists()  # an empty folder is a package that can be imported


@pytest.mark.parametrize("ends_between", [False, True], ids=["in one go", "started anew"])
def test_a_file_becomes_a_folder_and_back(repo, checkout, ends_between):
    def next_pass() -> None:
        if ends_between:
            checkout.has = None
        once(repo, checkout)
        assert tree(Path(checkout.folder)) == tree(repo)

    write(repo / "model", "a file")
    next_pass()
    (repo / "model").unlink()
    write(repo / "model/net.py", "in a folder")
    write(repo / "model/sub/loss.py", "in a folder")
    next_pass()
    shutil.rmtree(repo / "model")
    (repo / "model").symlink_to("/tmp")
    next_pass()
    (repo / "model").unlink()
    write(repo / "model", "a file again")
    next_pass()


def test_odd_names(repo, checkout):
    names = [
        "with blank.py",
        "new\nline",
        "tab\there",
        "ünïcode ✓.py",
        "-rf",
        "#hash",
        "; rm -rf .",
        "$(touch x)",
    ]
    names += [
        "a'b\"c",
        "*",
        "back\\slash",
        "host:file",
        " lead/trail ",
        b"latin\xe9".decode(errors="surrogateescape"),
    ]
    for name in names:
        write(repo / name, f"{name!r}")
    once(repo, checkout)
    assert tree(Path(checkout.folder)) == tree(repo)
    for name in names:
        (repo / name).unlink()
    assert len(once(repo, checkout).removed) == len(names)
    assert tree(Path(checkout.folder)) == tree(repo)


def test_what_the_machine_made_and_what_is_ignored_stays(repo, checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    write(tmp_path / "gitconfig", f"[core]\nexcludesFile = {tmp_path}/excludes\n")
    write(tmp_path / "excludes", "*.swp\n")
    write(repo / ".git/info/exclude", "/private\n")
    write(repo / ".gitignore", "*.ckpt\n__pycache__/\n")
    write(repo / "pkg/.gitignore", "data\n!keep.ckpt\n")
    for ignored in (
        "x.ckpt",
        "pkg/data",
        ".x.swp",
        "private",
        "pkg/__pycache__/a.pyc",
        ".venv/bin/python",
    ):
        write(repo / ignored, "of the laptop")
    write(repo / ".venv/pyvenv.cfg", "")  # not ignored, but nobody wants it there
    write(repo / "pkg/a.py", "1")
    write(repo / "pkg/keep.ckpt", "1")
    once(repo, checkout)
    machine = Path(checkout.folder)
    there = {".gitignore", "train.py", "pkg/.gitignore", "pkg/a.py", "pkg/keep.ckpt"}
    assert set(tree(machine)) - {"pkg"} == there
    made = {"best.ckpt", "pkg/data", "pkg/__pycache__/a.pyc", "notes.txt", "outputs/1/loss.png"}
    for name in made:
        write(machine / name, "of the machine")
    shutil.rmtree(repo / "pkg")
    assert set(once(repo, checkout).removed) == {"pkg/.gitignore", "pkg/a.py", "pkg/keep.ckpt"}
    checkout.has = None
    assert not once(repo, checkout).removed
    assert set(tree(machine)) == {".gitignore", "train.py", *made}
    assert all((machine / name).read_text() == "of the machine" for name in made)


def test_deletions_between_two_runs_are_mirrored(repo, checkout):
    write(repo / "tracked.py", "1")
    commit(repo)
    git(Path(checkout.folder), "pull", "-q")
    write(repo / "untracked.py", "2")
    once(repo, checkout)
    checkout.has = None
    (repo / "tracked.py").unlink()
    (repo / "untracked.py").unlink()
    assert once(repo, checkout).removed == ["tracked.py", "untracked.py"]
    assert tree(Path(checkout.folder)) == tree(repo)


def test_what_was_committed_or_added_on_the_machine_stays(repo, checkout):
    machine = Path(checkout.folder)
    write(repo / "pushed.py", "of the laptop")
    write(repo / "pushed_too.py", "of the laptop")
    once(repo, checkout)
    write(machine / "committed.py", "of the machine")
    git(machine, "add", "committed.py", "pushed.py")
    git(machine, "commit", "-q", "-m", "made there")
    write(machine / "added.py", "of the machine")
    git(machine, "add", "-A")
    for _ in range(2):
        checkout.has = None
        assert not once(repo, checkout).removed
    assert {"committed.py", "added.py"} <= set(tree(machine))
    (repo / "train.py").unlink()  # from the start
    (repo / "pushed.py").unlink()  # these from an earlier sync, whatever git there makes of them
    (repo / "pushed_too.py").unlink()
    checkout.has = None
    assert once(repo, checkout).removed == ["pushed.py", "pushed_too.py", "train.py"]
    assert set(tree(machine)) == {"committed.py", "added.py"}


def test_a_folder_that_became_a_link_on_the_machine_stays_one(repo, checkout, tmp_path):
    write(repo / "runs/notes.txt", "1")
    once(repo, checkout)
    results = tmp_path / "berg_results"
    shutil.move(Path(checkout.folder, "runs"), results)
    Path(checkout.folder, "runs").symlink_to(results)
    for text in ("edited", "edited again"):
        write(repo / "runs/notes.txt", text)
        report = sync.push(repo, sync.scan(repo), checkout)
        assert Path(checkout.folder, "runs").readlink() == results
        # What becomes of the edit depends on rsync's version; it is there, or said not to be.
        assert ((results / "notes.txt").read_text() == text) != (
            "stays a link; rsync 3.5 sends nothing" in report.complaint
        )
        checkout.has = None


@pytest.mark.parametrize("ends_between", [False, True], ids=["in one go", "started anew"])
def test_a_link_of_ours_becomes_a_folder(repo, checkout, tmp_path, ends_between):
    outside = tmp_path / "outside"
    outside.mkdir()
    (repo / "data").symlink_to(outside)
    once(repo, checkout)
    (repo / "data").unlink()
    write(repo / "data/file", "in a folder")
    if ends_between:
        checkout.has = None
    once(repo, checkout)
    assert tree(Path(checkout.folder)) == tree(repo) and not list(outside.iterdir())


def test_a_file_that_is_ignored_from_now_on_stays_on_both_sides(repo, checkout):
    write(repo / "local.ini", "mine")
    once(repo, checkout)
    write(repo / ".gitignore", "local.ini")
    assert not once(repo, checkout).removed
    checkout.has = None
    assert not once(repo, checkout).removed
    assert Path(checkout.folder, "local.ini").read_text() == "mine"


def test_nothing_outside_of_the_checkout_is_touched(repo, checkout, tmp_path):
    write(repo / "data/file", "tracked")
    commit(repo)
    git(Path(checkout.folder), "pull", "-q")
    outside = tmp_path / "disk"
    shutil.move(Path(checkout.folder, "data"), outside)
    Path(checkout.folder, "data").symlink_to(outside)  # somebody moved the data to a larger disk
    shutil.rmtree(repo / "data")
    once(repo, checkout)
    assert (outside / "file").read_text() == "tracked"


def test_a_folder_that_holds_ignored_files_does_not_make_way(repo, checkout):
    write(repo / ".gitignore", "*.ckpt\n")
    write(repo / "runs/a.py", "1")
    once(repo, checkout)
    write(Path(checkout.folder, "runs/best.ckpt"), "precious")
    shutil.rmtree(repo / "runs")
    write(repo / "runs", "a file")
    write(repo / "train.py", "other")
    report = sync.push(repo, sync.scan(repo), checkout)
    assert "runs" in report.complaint
    assert any("runs" in line for line in list(sync.summary([(checkout, report)]))[1:])
    assert Path(checkout.folder, "runs/best.ckpt").read_text() == "precious"
    assert Path(checkout.folder, "train.py").read_text() == "other"


def test_submodules_and_repos_in_the_repo(repo, server, tmp_path, sockets):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    write(library / "lib.py", "1")
    write(library / ".gitignore", "*.so\n")
    commit(library)
    git(repo, "submodule", "add", "-q", str(library), "lib")
    commit(repo)
    checkout = checkout_at(server, repo, tmp_path / "machine", sockets)
    write(repo / "lib/new.py", "2")
    write(repo / "lib/fast.so", "of the laptop")
    write(Path(checkout.folder) / "lib/fast.so", "of the machine")
    git(repo, "clone", "-q", str(library), "vendored")
    assert once(repo, checkout).sent == ["lib/new.py", "vendored/.gitignore", "vendored/lib.py"]
    (repo / "lib/lib.py").unlink()
    (repo / "vendored/lib.py").unlink()
    checkout.has = None
    assert once(repo, checkout).removed == ["lib/lib.py", "vendored/lib.py"]
    assert Path(checkout.folder, "lib/fast.so").read_text() == "of the machine"


def test_files_that_a_sparse_checkout_leaves_out_stay_on_the_machine(repo, checkout):
    write(repo / "big/data.txt", "1")
    commit(repo)
    git(Path(checkout.folder), "pull", "-q")
    git(repo, "sparse-checkout", "set", "--no-cone", "/*", "!/big/")
    assert not (repo / "big").exists()
    assert not once(repo, checkout).removed
    assert Path(checkout.folder, "big/data.txt").exists()


@pytest.mark.slow
def test_a_large_file(repo, checkout):
    with open(repo / "large.bin", "wb") as file:
        file.write(os.urandom(100_000_000))
    assert once(repo, checkout).sent == ["large.bin"]
    with open(repo / "large.bin", "r+b") as file:
        file.seek(50_000_000)
        file.write(b"changed")
    assert once(repo, checkout).size < 1_000_000
    assert (
        subprocess.run(["cmp", repo / "large.bin", f"{checkout.folder}/large.bin"]).returncode == 0
    )
    assert not list(Path(checkout.folder, ".git").glob("*large*"))


def test_a_file_that_vanishes_or_changes_after_the_scan(repo, checkout):
    write(repo / "gone.py", "1")
    write(repo / "grows.py", "1")
    files = sync.scan(repo)
    (repo / "gone.py").unlink()
    write(repo / "grows.py", "1 and 2")
    assert not sync.push(repo, files, checkout).complaint
    write(repo / "grows.py", "1, 2 and 3")
    once(repo, checkout)
    assert tree(Path(checkout.folder)) == tree(repo)


def test_every_change_arrives_on_all_machines(repo, server, tmp_path, sockets):
    checkouts = [checkout_at(server, repo, tmp_path / f"machine{n}", sockets) for n in range(2)]

    def arrived() -> bool:
        try:
            return all(tree(Path(checkout.folder)) == tree(repo) for checkout in checkouts)
        except FileNotFoundError:  # deleted between the list and the look
            return False

    with pushing(repo, *checkouts) as lines:
        del lines[:]
        write(repo / "train.py", "second")
        wait_for(arrived, what="the second version")
        wait_for(lambda: lines)
        assert lines[0].endswith(" s") and "  machine0, machine1: sent train.py; " in lines[0]
        for number in range(100):  # as a branch that is checked out
            write(repo / f"new/{number % 10}/file{number}", str(number))
        wait_for(arrived, what="a hundred files")
        sent = re.compile(r"sent (\d+) file")
        wait_for(
            lambda: sum(int(found[1]) for line in lines[1:] if (found := sent.search(line))) == 100
        )
        assert len(lines) < 5, "a burst is one transfer, or two where it takes long"
        before = len(lines)
        shutil.rmtree(repo / "new")
        wait_for(arrived, what="a hundred deletions")
        wait_for(lambda: len(lines) > before)


def test_what_is_ignored_causes_no_scan(repo):
    write(repo / ".gitignore", "*.log\nruns/\n")
    for name, expected in {
        "a.log": False,
        "runs/1/x": False,
        ".git/index": False,
        "a.py": True,
        "b": True,
    }.items():
        assert sync.matters(repo, {str(repo / name)}) == expected, name
    assert sync.matters(repo, {str(repo / "a.log"), str(repo / "a.py")})


def test_an_edit_is_sent_without_a_look_at_all_files(repo, checkout, monkeypatch):
    looked, scan = [], sync.scan

    def scan_here(root):
        looked.append(root)
        return scan(root)

    monkeypatch.setattr(sync, "scan", scan_here)
    there = Path(checkout.folder)

    def arrives(name: str, text: str | None) -> None:
        def is_there() -> bool:
            return (there / name).read_text() == text if (there / name).exists() else text is None

        wait_for(is_there, 20)

    with pushing(repo, checkout):
        write(repo / "new.py", "new")
        arrives("new.py", "new")
        looks = len(looked)
        for text in ("one", "two"):
            write(repo / "train.py", text)
            arrives("train.py", text)
        (repo / "next").write_text("three")  # as editors save
        (repo / "next").rename(repo / "train.py")
        arrives("train.py", "three")
        (repo / "train.py").chmod(0o755)
        wait_for(lambda: (there / "train.py").stat().st_mode & 0o100, 20)
        assert len(looked) == looks
        (repo / "new.py").unlink()
        arrives("new.py", None)
        assert len(looked) > looks, "what is gone or new may be more than it seems"


@pytest.mark.parametrize(
    ("change", "is_an_edit"),
    [
        (lambda root: write(root / "train.py", "other"), True),
        (lambda root: None, True),
        (lambda root: write(root / ".gitignore", "*.tmp\n"), False),
        (lambda root: write(root / "sub/.bergignore", "x\n"), False),
        (lambda root: (root / "train.py").unlink(), False),
        (lambda root: write(root / "other.py", "new"), False),
        (lambda root: (root / "folder").mkdir(), False),
        (lambda root: write(root / ".git/odd", "x"), True),
    ],
)
def test_which_changes_are_edits_of_files_that_are_known(repo, change, is_an_edit):
    for name in (".gitignore", "sub/.bergignore"):
        write(repo / name, "nothing\n")
    files = sync.scan(repo)
    touched = [*files, "other.py", "folder", "vanished~", ".git/odd"]
    change(repo)
    found = sync.with_edits(repo, files, {str(repo / name) for name in touched})
    rules = {str(repo / ".gitignore"), str(repo / "sub/.bergignore")}
    if is_an_edit:
        quiet = {str(repo / name) for name in touched} - rules
        assert sync.with_edits(repo, files, quiet) == sync.scan(repo)
    assert found is None, "files that say what is ignored are among those"
    if not is_an_edit:
        changed = {str(repo / name) for name in touched} - rules
        rule = {path for path in rules if Path(path).read_text() != "nothing\n"}
        assert sync.with_edits(repo, files, changed | rule) is None


def test_a_file_that_changes_while_it_is_sent(repo, checkout):
    path = repo / "changing.txt"
    with pushing(repo, checkout) as lines:
        del lines[:]
        number = 0
        with open(path, "w") as file:
            while len([line for line in lines if path.name in line]) < 2:
                file.seek(0)
                file.write(f"version {(number := number + 1):9}\n" * 1000)
                file.flush()
            file.write("the end")
        wait_for(
            lambda: Path(checkout.folder, "changing.txt").read_text() == path.read_text(),
            what="the end",
        )


def test_a_connection_that_is_lost_comes_back(repo, checkout, server):
    with pushing(repo, checkout) as lines:
        server.stop()
        try:
            write(repo / "train.py", "while it was away")
            wait_for(lambda: any("trying again" in line for line in lines), what="the message")
            write(Path(checkout.folder, "train.py"), "what the reboot made of it")
        finally:
            server.start()
        wait_for(lambda: Path(checkout.folder, "train.py").read_text() == "while it was away")
        write(repo / "train.py", "after that")
        wait_for(lambda: Path(checkout.folder, "train.py").read_text() == "after that")
    assert not [line for line in lines if "Error" in line]


def test_a_checkout_that_is_made_anew_is_compared_again(repo, checkout, monkeypatch):
    monkeypatch.setattr(sync, "RESCAN", 1)
    with pushing(repo, checkout):
        write(repo / "train.py", "edited")
        wait_for(lambda: Path(checkout.folder, "train.py").read_text() == "edited")
        # as a machine's worker does after a reboot
        git(Path(checkout.folder), "reset", "-q", "--hard")
        wait_for(lambda: Path(checkout.folder, "train.py").read_text() == "edited")


def test_it_waits_for_the_checkout(repo, server, tmp_path, sockets):
    checkout = checkout_at(server, repo, tmp_path / "machine", sockets)
    shutil.move(checkout.folder, tmp_path / "aside")
    lines: list[str] = []
    running = sync.Push(repo, [checkout], lines.append)
    thread = threading.Thread(target=running.run, args=[True])
    thread.start()
    wait_for(lambda: lines)
    shutil.move(tmp_path / "aside", checkout.folder)
    thread.join(20)
    assert f"waiting for its checkout of the code, {checkout.folder}" in lines[0]
    assert "compared 1 file;" in lines[-1]


def test_a_machine_that_is_gone_ends_it(repo, checkout):
    def locate():
        raise sync.Gone("machine is gone")

    checkout.locate, lines = locate, []
    with pytest.raises(BergError, match="machine is gone"):
        sync.Push(repo, [checkout], lines.append).run()
    assert lines == [], "the error says it"


def test_a_push_sends_all_but_what_may_be_secret(repo, checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))
    write(repo / "new.txt", "x")
    write(repo / ".env", "x")
    running = sync.Push(repo, [checkout], lambda line: None)
    running.suspect = lambda paths: leaks.in_files(repo, paths, "bucket")
    with pytest.raises(BergError, match=r"^\.env may be secret, .*--send-secrets$"):
        running.run(once=True)
    there = tree(tmp_path / "machine")
    assert "new.txt" in there and ".env" not in there


def test_an_rsync_that_is_too_old_ends_it(repo, checkout, monkeypatch):
    monkeypatch.setattr(sync, "RSYNC", ["rsync", "--an-option-of-later"])
    with pytest.raises(BergError, match="an-option-of-later: unknown option. Berg needs rsync 3.1"):
        sync.Push(repo, [checkout], lambda line: None).run()


def test_a_system_that_reports_no_changes_is_looked_at(repo, checkout, monkeypatch):
    import watchfiles

    def watch(*arguments, **options):
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", watch)
    with pushing(repo, checkout) as lines:
        write(repo / "train.py", "seen by looking")
        wait_for(lambda: Path(checkout.folder, "train.py").read_text() == "seen by looking")
    assert any("watch limit" in line for line in lines)


NOT_UTF_8 = b"caf\xe9.txt"


def test_a_name_that_is_not_utf_8_does_not_deafen_it(repo, checkout):
    write(repo / ".gitignore", "runs/\n")
    write(repo / "runs/1", "")
    with pushing(repo, checkout) as lines:
        for number, folder in enumerate(("runs", "", "runs")):
            with open(os.fsencode(repo / folder) + b"/" + NOT_UTF_8, "a") as file:
                file.write("odd")
            write(repo / "train.py", f"version {number}")
            wait_for(
                lambda n=number: Path(checkout.folder, "train.py").read_text() == f"version {n}"
            )
        warnings = [
            line
            for line in lines
            if "Changes may take 10 s to be noticed: Unable to decode path" in line
        ]
        assert len(warnings) == 1, lines
    assert Path(os.fsdecode(os.fsencode(checkout.folder) + b"/" + NOT_UTF_8)).read_text() == "odd"


def test_a_watch_that_fails_ends_it(repo, checkout, monkeypatch):
    monkeypatch.setattr(sync, "matters", lambda root, paths: 1 / 0)
    running = sync.Push(
        repo,
        [checkout],
        lambda line: compared(checkout.name, [line]) and write(repo / "new.py", ""),
    )
    with pytest.raises(BergError, match="changes are no longer noticed: ZeroDivisionError"):
        running.run()


@pytest.mark.slow
@needs_machines
def test_sync_to_the_machines_of_a_job(berg):
    berg.repo = berg.repo.rename(berg.repo.with_name("pröj 1"))
    started = berg("run", "-g", "0", "-m", "2", "-n", "pair", "sleep 1000")
    assert started.returncode == 0, started.stderr
    write(berg.repo / "new.py", "print('pushed')\n")
    done = berg("sync", "pair", "--once")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("sent new.py") == 2, done.stderr
    running = berg.start("sync", "pair")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(running.stderr.readline, "")))
    reader.start()
    wait_for(lambda: compared("pair-0", lines) and compared("pair-1", lines), what="the first pass")
    write(berg.repo / "new.py", "print('again')\n")
    wait_for(
        lambda: any("pair-0, pair-1: sent new.py" in line for line in lines), what="the second"
    )
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 0
    reader.join()
    assert lines[-1] == "Stopped. What was pushed stays on the machines\n"
    berg("ssh", "pair-1", "--", "mkdir -p new.d/keep && touch new.d/keep/it")
    write(berg.repo / "new.d", "a file where the machine has a folder")
    done = berg("sync", "pair", "--once")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "berg: not everything could be written on pair-1, see above" in done.stderr
    assert not [line for line in lines if "Traceback" in line]
    assert berg("ssh", "pair-1", "--", "python3", "new.py").stdout == "again\n"

    other = berg.repo.parent / "other"
    shutil.copytree(berg.repo, other)
    refused = berg("sync", "pair", cwd=other)
    assert refused.returncode == 1
    assert "pair was started in the repo 'pr-j-1', and this is 'other'" in refused.stderr


@pytest.mark.slow
@needs_machines
def test_a_devbox_that_reboots_keeps_what_was_pushed_and_gets_the_rest(berg, cloud):
    started = berg("devbox", "-g", "0", "-n", "box")
    assert started.returncode == 0, started.stderr
    running = berg.start("sync", "box")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(running.stderr.readline, "")))
    reader.start()
    wait_for(lambda: compared("box", lines), 60, what="the first pass")
    write(berg.repo / "new.py", "print('before')\n")
    wait_for(lambda: any("box: sent new.py" in line for line in lines), what="the edit")
    zone = berg.machines()["box"]["zone"].rpartition("/")[2]
    cloud.call("POST", f"/compute/v1/projects/berg-local/zones/{zone}/instances/box/reset")
    write(berg.repo / "train.py", "print('meanwhile')\n")
    wait_for(
        lambda: any("sent train.py" in line for line in lines),
        60,
        what="the edit during the reboot",
    )
    wait_for(lambda: berg.log("box").count("Ready") == 2, 60, what="the worker's second run")
    shown = berg("ssh", "box", "--", "python3 new.py && python3 train.py")
    assert shown.stdout == "before\nmeanwhile\n", shown.stderr + "".join(lines)
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 0
    reader.join()


def test_unknown_names_and_folders_without_a_repo(berg, tmp_path):
    done = berg("sync", "nonsense")
    assert (done.returncode, "there is no job or machine 'nonsense'" in done.stderr) == (1, True)
    (tmp_path / "empty").mkdir()
    done = berg("sync", "nonsense", cwd=tmp_path / "empty")
    assert (done.returncode, "is not in a git repo" in done.stderr) == (1, True)
