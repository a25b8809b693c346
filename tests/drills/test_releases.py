"""Which release a rolling upgrade begins with, and where it comes from."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from chaos.drills.catalog.upgrades import rolling_upgrade_from
from chaos.drills.program import main
from chaos.drills.releases import ReleaseError, install, newest_tag, why_no_release


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init")
    git(root, "commit", "--allow-empty", "--message", "first")
    return root


def test_where_nothing_was_released_there_is_nothing_to_upgrade_from(repository: Path) -> None:
    assert newest_tag(repository) == ""
    assert "--from" in why_no_release("", repository)
    assert why_no_release("HEAD", repository) == ""


def test_the_last_release_is_the_one_with_the_highest_version(repository: Path) -> None:
    for tag in ("v0.9.0", "v0.10.0", "v0.2.0", "other"):
        git(repository, "tag", tag)
    assert newest_tag(repository) == "v0.10.0"
    assert why_no_release("", repository) == ""


@pytest.mark.parametrize("wanted", ["nowhere", "--output=x", "a b", "gone.whl"])
def test_what_is_no_release_is_said_in_a_line(repository: Path, wanted: str) -> None:
    reason = why_no_release(wanted, repository)
    assert wanted in reason
    assert "\n" not in reason


def test_a_place_without_a_repository_has_no_release(tmp_path: Path) -> None:
    assert "--from" in why_no_release("", tmp_path)


def test_a_wrong_from_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rolling-upgrade", "--from", "no-such-release"]) == 2
    assert "no-such-release" in capsys.readouterr().err


def test_the_drill_says_why_it_is_skipped() -> None:
    assert "no-such-release" in rolling_upgrade_from("no-such-release").why_skipped()


def wheel(directory: Path, version: str) -> Path:
    """A package that says its version when it is run."""
    path = directory / f"resourcelease-{version}-py3-none-any.whl"
    info = f"resourcelease-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("resourcelease/__init__.py", "")
        archive.writestr("resourcelease/__main__.py", f"print({version!r})")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: resourcelease\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_releases_are_installed_apart_once_and_the_last_few_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    old, new = (str(wheel(tmp_path, version)) for version in ("0.0.1", "0.0.2"))
    pythons = [install(old), install(new)]
    said = [subprocess.check_output([python, "-m", "resourcelease"], text=True).strip() for python in pythons]
    assert said == ["0.0.1", "0.0.2"]
    ready = pythons[0].parents[2] / "ready"
    ready.write_text("kept")
    assert install(old) == pythons[0]
    assert ready.read_text() == "kept", "it was installed a second time"
    ready.unlink()
    assert install(old) == pythons[0]
    assert ready.read_text() == f"{old}\n", "an installation that was cut short is made anew"
    with pytest.raises(ReleaseError):
        install("no-such-release")
