"""The command line of a multirun, taken apart as Hydra does it."""

import pytest
from hydra.core.global_hydra import GlobalHydra

from vla_rl.config.grid import expand
from vla_rl.errors import UsageError


def test_every_combination_is_a_job_and_the_last_key_varies_fastest():
    grid = expand(["run.steps=3", "optim.lr=3e-7,1e-6", "loss.kl_beta=0,1"])
    assert grid.swept == ("optim.lr", "loss.kl_beta") and grid.launcher == ()
    assert [job[1:] for job in grid.jobs] == [
        ("optim.lr=3e-07", "loss.kl_beta=0"), ("optim.lr=3e-07", "loss.kl_beta=1"),
        ("optim.lr=1e-06", "loss.kl_beta=0"), ("optim.lr=1e-06", "loss.kl_beta=1"),
    ]  # fmt: skip
    assert all(job[0] == "run.steps=3" for job in grid.jobs)


def test_nothing_swept_is_one_job():
    assert expand([]).jobs == ((),)
    assert expand(["run.steps=3"]).jobs == (("run.steps=3",),)


def test_seeds_with_commas_stay_one_value_and_quoted_ones_are_several():
    assert expand(["eval.seeds=300,301"]).jobs == (("eval.seeds='300,301'",),)
    assert expand(["eval.seeds='300,301','302'"]).jobs == (("eval.seeds='300,301'",), ("eval.seeds='302'",))


@pytest.mark.parametrize(
    ("override", "jobs"),
    [
        ("run.seed=range(1,4)", ["run.seed=1", "run.seed=2", "run.seed=3"]),
        ("tripwires=choice(r0,r1)", ["tripwires=r0", "tripwires=r1"]),
        ("pool=glob(*)", ["pool=processes", "pool=ray", "pool=serial"]),
        ("eval.at_steps=[1,2],[3]", ["eval.at_steps=[1,2]", "eval.at_steps=[3]"]),
        ("run.seed=sort(3,1)", ["run.seed=1", "run.seed=3"]),
    ],
)
def test_the_grammar_is_hydras(override, jobs):
    assert [job for (job,) in expand([override]).jobs] == jobs


def test_values_are_told_as_they_are_meant():
    grid = expand(["policy.checkpoint=bundled:a,/x y/b", "eval.seeds='300,301'", "run.seed=range(0,1)"])
    assert grid.values[1] == {"policy.checkpoint": "/x y/b", "run.seed": "0"}
    assert grid.values[0]["policy.checkpoint"] == "bundled:a"
    assert expand(["eval.seeds='300,301','302'"]).values[0] == {"eval.seeds": "300,301"}


def test_the_last_of_two_values_for_a_key_counts():
    grid = expand(["run.seed=1,2", "run.seed=3"])
    assert grid.jobs == (("run.seed=3",),) and grid.swept == ()


def test_the_launcher_is_told_apart():
    grid = expand(["hydra/launcher=joblib", "run.seed=1,2", "hydra.launcher.n_jobs=2"])
    assert grid.launcher == ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert grid.jobs == (("run.seed=1",), ("run.seed=2",))


@pytest.mark.parametrize(
    "override",
    [
        "hydra.sweep.dir=x", "hydra.run.dir=x", "hydra/sweeper=basic", "hydra.verbose=true", "hydra.new=1", "hydra=1",
        "hydra/launcher=basic,joblib", "hydra.launcher.n_jobs=1,2", "run.dir=a,b", "+run.extra=1", "++run.seed=1,2",
        "~run.seed", "optim.lr=interval(0,1)", "eval.at_steps=[1", "run.seed",
    ],
)  # fmt: skip
def test_what_is_no_change_of_a_key_or_would_confuse_the_jobs_is_refused(override):
    with pytest.raises(UsageError):
        expand([override], unswept=["run.dir"])


def test_a_host_hydra_is_left_alone():
    GlobalHydra.instance().clear()
    expand(["run.seed=1,2"])
    assert not GlobalHydra.instance().is_initialized()
