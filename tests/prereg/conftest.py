"""Registrations are tried on a git repository of their own; what runs in them is the real trainer."""

import fcntl
import os
import shutil
from contextlib import contextmanager

import pytest
from bench import Bench, prereg

from vla_rl.prereg.folder import Folder
from vla_rl.prereg.pins import Place


@pytest.fixture
def use(monkeypatch):
    """Make a bench the place where everything happens."""

    def use(bench):
        monkeypatch.setenv("VLA_RL_EXPERIMENTS", str(bench.experiments))
        monkeypatch.setattr(Place, "here", classmethod(lambda cls: bench.place()))
        monkeypatch.chdir(bench.root)
        return bench

    return use


@pytest.fixture
def bench(tmp_path, use):
    return use(Bench.make(tmp_path / "repo"))


@pytest.fixture(scope="session", name="used")
def _used():
    """As `use`, for templates: a context."""
    return used


@contextmanager
def used(made):
    """As `use`, outside of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLA_RL_EXPERIMENTS", str(made.experiments))
        patch.setattr(Place, "here", classmethod(lambda cls: made.place()))
        patch.chdir(made.root)
        yield made


def shared(tmp_path_factory, name, build):
    """A bench that is built once, also where several processes run the tests: the others wait for the first."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    place.mkdir(exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            shutil.rmtree(place / "repo", ignore_errors=True)
            build(place / "repo")
            (place / "done").touch()
    return Bench(place / "repo")


@pytest.fixture(scope="session")
def _active_template(tmp_path_factory):
    def build(root):
        with used(Bench.make(root)) as made:
            made.frozen()

    return shared(tmp_path_factory, "active", build)


@pytest.fixture
def active(_active_template, tmp_path, use):
    """A registration that is frozen, committed and active; nothing was run."""
    return use(_active_template.copy(tmp_path / "repo"))


@pytest.fixture(scope="session")
def sound(_active_template):
    """The document of a registration that has nothing wrong with it."""
    return dict(Folder(_active_template.experiments, "E1").load().effective.plain)


@pytest.fixture(scope="session")
def _template(_active_template, tmp_path_factory):
    """A registration that was run to its end and committed, nothing read yet: built once."""

    def build(root):
        with used(_active_template.copy(root)):
            assert prereg("launch", "E1") == 0

    return shared(tmp_path_factory, "launched", build)


@pytest.fixture
def launched(_template, tmp_path, use):
    """A copy of it, to be tampered with."""
    return use(_template.copy(tmp_path / "repo"))


@pytest.fixture(scope="session")
def _judged_template(_template, tmp_path_factory):
    def build(root):
        with used(_template.copy(root)) as made:
            (made.root / "outputs" / "spend.json").write_text('{"values": {"hours": 0.5}}')
            for read in (["progress"], ["clip"], ["money", "--from", "outputs/spend.json"]):
                assert prereg("read", "E1", *read) == 0
            assert prereg("verdict", "E1") == 0
            assert prereg("close", "E1", "--banked", "the loop runs") == 0
            made.commit("Close E1")

    return shared(tmp_path_factory, "judged", build)


@pytest.fixture
def judged(_judged_template, tmp_path, use):
    """A closed registration with three reads."""
    return use(_judged_template.copy(tmp_path / "repo"))
