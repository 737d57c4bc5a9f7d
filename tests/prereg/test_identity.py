"""What a manifest says about the code that ran."""

import subprocess

from vla_rl.prereg.identity import git_facts, identity, package_versions, tree_digest


def test_an_edit_changes_the_tree_digest_even_when_nothing_was_committed(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = tree_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert tree_digest(tmp_path) != before


def test_moving_bytes_between_files_changes_the_tree_digest(tmp_path):
    for name, text in (("a", "1"), ("b", "23")):
        (tmp_path / name).write_text(text)
    before = tree_digest(tmp_path)
    for name, text in (("a", "12"), ("b", "3")):
        (tmp_path / name).write_text(text)
    assert tree_digest(tmp_path) != before


def test_caches_and_dot_files_do_not_count(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = tree_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"1")
    (tmp_path / ".hidden").write_text("1")
    assert tree_digest(tmp_path) == before


def test_uncommitted_edits_are_reported(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "a")
    clean = git_facts(tmp_path)
    assert len(str(clean["commit"])) == 40 and clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert git_facts(tmp_path)["dirty"] is True


def test_settings_of_the_allocator_are_on_record_and_so_is_that_there_are_none(monkeypatch):
    for value in ("expandable_segments:True", None):
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
            recorded = identity()["variables"]
            assert isinstance(recorded, dict) and recorded[name] == value


def test_versions_name_the_packages_that_change_numbers():
    versions = package_versions()
    assert versions["torch"] and versions["mujoco"] and versions["python"]
