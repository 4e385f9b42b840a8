"""`dibs sandbox cp` with a sandbox that wants out."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Dibs

from dibs.home import Home


def test_a_second_copy_does_not_write_through_a_link_that_the_first_one_left(
    home: Home, dibs: Dibs, tmp_path: Path
) -> None:
    """The link leads inside when it is looked at, and outside when it is written to."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    assert dibs("sandbox", "create", "--name", "lab").returncode == 0
    # Behind `b` the way back ends somewhere below /tmp/d; once `b` is another link it ends beside the target.
    deep = "c/1/2/3/4/5/6/7/8/9"
    steps = "../" * 3
    first = f"mkdir -p /tmp/d/{deep} && cd /tmp/d && ln -s {deep} b && ln -s b/{steps}victim z"
    assert dibs("sandbox", "exec", "lab", "--", "sh", "-c", first).returncode == 0
    dibs("sandbox", "cp", "lab:/tmp/d", str(out))
    second = "cd /tmp/d && rm b z && ln -s c b && echo pwned > z"
    assert dibs("sandbox", "exec", "lab", "--", "sh", "-c", second).returncode == 0
    done = dibs("sandbox", "cp", "lab:/tmp/d", str(out))
    assert victim.read_text() == "mine"
    assert done.returncode == 0, done.stderr
    assert not (out / "d/z").is_symlink()
    assert (out / "d/z").read_text() == "pwned\n"


def inside(dibs: Dibs, text: str) -> str:
    done = dibs("sandbox", "exec", "lab", "--", "sh", "-c", text)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_copy_into_a_sandbox_gets_the_name_of_a_target_that_is_no_folder(
    home: Home, dibs: Dibs, tmp_path: Path
) -> None:
    """As `cp -r` has it: below a folder that exists, else under the new name, replacing a file of that name."""
    source = tmp_path / "data.txt"
    source.write_text("first")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep/one").write_text("1")
    (tree / "deep/two").hardlink_to(tree / "deep/one")
    assert dibs("sandbox", "create", "--name", "lab").returncode == 0
    inside(dibs, "mkdir /tmp/folder; ln -s folder /tmp/link")
    for target in ("/tmp/new", "/tmp/folder", "/tmp/folder/", "/tmp/link"):
        done = dibs("cp", str(source), f"lab:{target}")
        assert done.returncode == 0, done.stderr
    assert inside(dibs, "cat /tmp/new; find /tmp/folder -type f") == "first/tmp/folder/data.txt\n"
    source.write_text("second")
    assert dibs("cp", str(source), "lab:/tmp/new").returncode == 0
    assert inside(dibs, "cat /tmp/new") == "second"
    assert dibs("cp", str(tree), "lab:/tmp/renamed").returncode == 0
    assert inside(dibs, "cat /tmp/renamed/deep/one /tmp/renamed/deep/two") == "11"
    assert dibs("cp", str(tree), "lab:/tmp/folder").returncode == 0
    assert inside(dibs, "cat /tmp/folder/tree/deep/one") == "1"


def test_a_copy_into_a_folder_that_does_not_exist_is_refused(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    source.write_text("first")
    tree = tmp_path / "tree"
    tree.mkdir()
    assert dibs("sandbox", "create", "--name", "lab").returncode == 0
    inside(dibs, "mkdir /tmp/clean /tmp/clean/data.txt; echo mine > /tmp/clean/file")
    assert dibs("cp", str(source), "lab:/tmp/clean/none/").returncode == 89
    assert dibs("cp", str(source), "lab:/tmp/clean/none/data.txt").returncode == 89
    assert dibs("cp", str(source), "lab:/tmp/clean/file/").returncode == 80
    assert dibs("cp", str(source), "lab:/tmp/clean").returncode == 80  # a folder of its name is in the way
    assert dibs("cp", str(tree), "lab:/tmp/clean/file").returncode == 80
    assert inside(dibs, "cat /tmp/clean/file; find /tmp/clean | sort") == (
        "mine\n/tmp/clean\n/tmp/clean/data.txt\n/tmp/clean/file\n"
    )


def test_a_copy_out_of_a_sandbox_gets_the_name_of_a_target_that_is_no_folder(
    home: Home, dibs: Dibs, tmp_path: Path
) -> None:
    assert dibs("sandbox", "create", "--name", "lab").returncode == 0
    inside(dibs, "echo said > /tmp/a")
    (tmp_path / "folder").mkdir()
    assert dibs("cp", "lab:/tmp/a", str(tmp_path / "b")).returncode == 0
    assert dibs("cp", "lab:/tmp/a", f"{tmp_path}/folder/").returncode == 0
    missing = dibs("cp", "lab:/tmp/a", f"{tmp_path}/none/")
    assert missing.returncode == 80
    assert "there is no such folder" in missing.stderr
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.name in "ab") == [
        "b",
        "folder/a",
    ]
