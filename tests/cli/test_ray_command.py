"""`pool=ray` as a user meets it who has no Ray, or names a cluster that is not there."""

from __future__ import annotations

import socket
import sys

import pytest

from vla_rl.cli.main import main


def test_without_ray_a_command_that_wants_it_ends_with_the_remedy_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed, whether it is or not
    assert main(["eval", "pool=ray", "eval.seeds=300", f"run.dir={tmp_path / 'run'}"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told and not (tmp_path / "run").exists()
    assert "needs the package ray" in told and "pip install 'vla-rl[ray]'" in told


def test_a_command_with_an_address_where_nobody_is_ends_with_what_where_and_remedy(tmp_path, capsys):
    pytest.importorskip("ray", reason="the cluster is Ray's; pip install 'vla-rl[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ["eval", "pool=ray", f"pool.address={address}", "eval.seeds=300", f"run.dir={tmp_path / 'run'}"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told and not (tmp_path / "run").exists()
    assert f"the Ray cluster at {address} cannot be joined: " in told and "refused" in told
    assert f"where:  pool.address={address}" in told and "ray start" in told
