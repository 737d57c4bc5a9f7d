"""Attempts to cheat: each is refused, and the message says where it was found."""

import dataclasses
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys

import pytest
from bench import DRAFT, TINY, prereg, refused, rehash

from vla_rl.prereg import imports
from vla_rl.prereg.document import read_registration
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.ledger import Ledger
from vla_rl.prereg.pins import Place, unpinned
from vla_rl.prereg.process import Process
from vla_rl.prereg.sections import FilePins

RUN = "outputs/prereg/E1/main-baseline/attempt_01"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def raise_rate(bench):
    """A tenfold learning rate, by hand."""
    path = bench.folder() / "registration.yaml"
    path.write_text(re.sub(r"(\n    lr: )([0-9.e-]+)", r"\g<1>0.5", path.read_text(), count=1))


def write(bench, event, data, id="E1"):
    """An event as a command would record it."""
    folder = Folder(bench.experiments, id)
    with folder.ledger.locked():
        folder.write(event, data, effective=folder.load().effective)


def launched_by(bench, process, number=1, **more):
    write(bench, "launched", {
        "attempt": number, "rung": "main", "arm": "baseline", "run": RUN, "resume": False, "exploratory": False,
        "set": {}, "process": process, "on_gpu": False, **more,
    })  # fmt: skip


# ------------------------------------------------------------------------------------------------------- frozen files
def test_an_edited_registration_is_named_to_the_section(active, capsys):
    raise_rate(active)
    for command in ("verify", "launch", "read", "status"):
        refused(
            capsys, 5, command, "E1", *(["clip"] if command == "read" else []), says="registration.yaml: config.optim"
        )


def test_an_edit_that_was_committed_is_still_an_edit(active, capsys):
    raise_rate(active)
    active.commit("nothing to see")
    refused(capsys, 5, "verify", "E1", says=("config.optim", "more than one commit", "M in"))


def test_a_frozen_file_has_one_commit_even_if_it_is_what_it_was(active, capsys):
    path = active.folder() / "registration.yaml"
    before = path.read_text()
    raise_rate(active)
    active.commit("try something")
    path.write_text(before)
    active.commit("and take it back")
    refused(capsys, 5, "verify", "E1", says=("registration.yaml", "more than one commit"))
    refused(capsys, 4, "launch", "E1", "--check", says="more than one commit")


def test_a_registration_that_was_merged_in_has_one_commit(active):
    active.commit("Activate E1")
    active.git("branch", "work")
    active.git("reset", "-q", "--hard", "HEAD~2")
    active.git("merge", "-q", "--no-ff", "-m", "Merge E1", "work")
    assert prereg("verify", "E1") == 0 and prereg("launch", "E1", "--check") == 0


@pytest.mark.parametrize("gone", ["registration.yaml", "ledger.jsonl", "all"])
def test_a_registration_that_was_removed_is_missed(active, capsys, gone):
    active.commit("Activate E1")
    shutil.rmtree(active.folder()) if gone == "all" else (active.folder() / gone).unlink()
    refused(capsys, 5, "verify", "--all", says="E1" if gone == "all" else gone)
    refused(capsys, 5, "verify", "E1", says="E1")
    active.commit("gone")
    refused(capsys, 5, "verify", "--all", says="E1")


def test_git_cannot_be_told_another_history(active, capsys):
    path = active.folder() / "registration.yaml"
    first, before = active.git("rev-parse", "HEAD"), path.read_text()
    path.write_text(before + "# a second version\n")
    active.commit("change")
    path.write_text(before)
    active.commit("change it back")
    active.git("replace", active.git("rev-parse", "HEAD"), first)
    refused(capsys, 5, "verify", "E1", says="more than one commit")
    active.git("replace", "-d", active.git("rev-parse", "HEAD"))
    (active.root / ".git/info/grafts").write_text(f"{active.git('rev-parse', 'HEAD')}\n")
    refused(capsys, 5, "verify", "E1", says="more than one commit")


def test_settings_of_git_do_not_change_what_is_seen(active, monkeypatch):
    for setting in ("log.follow", "log.showSignature", "color.ui", "diff.renames"):
        active.git("config", setting, "always" if setting == "color.ui" else "true")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert prereg("verify", "E1") == 0


def test_links_in_the_folder_are_refused(judged, capsys):
    evidence = judged.folder() / "evidence/after.json"
    evidence.rename(judged.root / "outputs/after.json")
    evidence.symlink_to(judged.root / "outputs/after.json")
    refused(capsys, 5, "verify", "E1", says="evidence/after.json")


def test_a_folder_that_is_a_link_is_refused(judged, capsys):
    judged.folder().rename(judged.root / "outputs/E1")
    judged.folder().symlink_to(judged.root / "outputs/E1")
    refused(capsys, 5, "verify", "E1", says="link")


def test_a_file_that_nobody_recorded_is_no_evidence(judged, capsys):
    (judged.folder() / "evidence/better.json").write_text("{}")
    refused(capsys, 5, "verify", "E1", says="evidence/better.json")


# ---------------------------------------------------------------------------------------------------------- overrides
@pytest.mark.parametrize(
    "override", ["+optim.extra=1", "++optim.lr=1", "~reads", "~optim.lr", "reads=[]", "claim.head=x"]
)
def test_no_key_is_added_or_deleted_when_freezing(bench, override):
    bench.draft()
    assert prereg("freeze", "E1", *TINY, override) == 2
    assert not (bench.folder() / "registration.yaml").exists() and not (bench.folder() / "ledger.jsonl").exists()


@pytest.mark.parametrize("mode", [[], ["--exploratory"]])
@pytest.mark.parametrize(
    "override", ["+optim.extra=1", "~reads=1", "reads=[]", "optim.lr.x=1", "budget={}", "claim.head=x"]
)
def test_no_key_is_added_or_deleted_when_launching(active, capsys, override, mode):
    refused(capsys, 4, "launch", "E1", "--set", override, *mode, says="--set")
    assert active.events()[-1] == "gate_refused" and "launched" not in active.events()


def test_an_override_outside_the_levers_is_refused(active, capsys):
    refused(capsys, 4, "launch", "E1", "--set", "optim.lr=1e-3", says="optim.lr may change what the run computes")
    refused(capsys, 2, "launch", "E1", "--arm", "lr=0.001", says="there is no arm")


def test_an_exploratory_launch_cannot_go_on_with_the_registered_run(active, capsys):
    launched_by(active, {**Process.own().body(), "started": 1})
    refused(capsys, 4, "launch", "E1", "--resume", "--exploratory", "--set", "optim.lr=1e-3", says="begins anew")


@pytest.mark.parametrize(
    "old, new",
    [
        ("set: {optim.lr: 1.0e-5}", 'set: {run.name: "${oc.env:HOME}"}'),
        ("budget:\n", 'ladder: [{id: main, set: {run.name: "${now:%H}"}}]\nbudget:\n'),
        ("look: plain", 'look: "${oc.env:LOOK}"'),
    ],
)
def test_nothing_in_a_draft_is_looked_up_later(bench, capsys, old, new, monkeypatch):
    monkeypatch.setenv("LOOK", "plain")
    bench.draft(DRAFT.replace(old, new, 1))
    refused(capsys, 2, "freeze", "E1", *TINY, says="${")
    assert not (bench.folder() / "registration.yaml").exists()


def test_nothing_in_the_configuration_is_looked_up_later(bench, capsys):
    bench.draft()
    assert prereg("freeze", "E1", *TINY, "run.name=${oc.env:HOME}") == 0, "it was resolved when it was frozen"
    assert "${" not in (bench.folder() / "registration.yaml").read_text().partition("\nclaim:")[2]
    bench.commit()
    assert prereg("activate", "E1") == 0
    refused(capsys, 4, "launch", "E1", "--exploratory", "--set", "run.name=${oc.env:HOME}", says="${oc.env:HOME}")
    refused(
        capsys, 2, "amend", "E1", "--set", "config.run.name=${oc.env:HOME}", "--reason", "x", "--kind", "scientific",
        "--data-seen", "none", says="${oc.env:HOME}",
    )  # fmt: skip


@pytest.mark.parametrize("target", ["os.system", "subprocess.Popen", "vla_rl_evil.Reward", "vla_rl"])
def test_a_target_outside_the_allowed_packages_is_refused(bench, capsys, target):
    bench.draft()
    refused(capsys, 2, "freeze", "E1", *TINY, f"reward._target_={target}", says="_target_")
    assert not (bench.folder() / "registration.yaml").exists()


@pytest.mark.parametrize("where", ["arms: [{label: a, set: {policy.checkpoint: other}}]",
                                   "ladder: [{id: main, set: {policy.checkpoint: other}}]"])  # fmt: skip
def test_another_policy_cannot_come_in_by_an_arm_or_a_rung(bench, capsys, where):
    bench.draft(DRAFT.replace("budget:\n", f"{where}\nbudget:\n", 1))
    refused(capsys, 2, "freeze", "E1", *TINY, says="policy.checkpoint")


@pytest.mark.parametrize("id", ["E1/../E2", "..", "E1\x00", "É1", "E\u0661", "-E1"[:1] + "E1", "E" * 65, "E1.yaml"])
def test_an_id_is_never_a_path(bench, id):
    for command in (["status", id], ["verify", id], ["new", id]):
        try:
            assert prereg(*command) == 2
        except SystemExit as error:  # an option, to the argument line
            assert error.code == 2
    assert list(bench.experiments.iterdir()) == []


# --------------------------------------------------------------------------------------------------------------- code
def dirty(bench):
    edit(bench.root / "src/pkg/code.py", "1", "2")


def assume_unchanged(bench):
    bench.git("update-index", "--assume-unchanged", "src/pkg/code.py")
    dirty(bench)
    assert bench.git("status", "--porcelain", "src") == ""


def skip_worktree(bench):
    bench.git("update-index", "--skip-worktree", "src/pkg/code.py")
    dirty(bench)
    assert bench.git("status", "--porcelain", "src") == ""


def ignored(bench):
    (bench.root / "src/pkg/ignored.py").write_text("VALUE = 3\n")
    assert bench.git("status", "--porcelain", "src") == ""


def excluded(bench):
    (bench.root / ".git/info/exclude").write_text("extra.py\n")
    (bench.root / "src/pkg/more/extra.py").write_text("VALUE = 3\n")
    assert bench.git("status", "--porcelain", "src") == ""


def filtered(bench):
    (bench.root / ".git/info/attributes").write_text("code.py filter=lie\n")
    bench.git("config", "filter.lie.clean", "sed s/2/1/")
    dirty(bench)
    assert bench.git("status", "--porcelain", "src") == ""


def executable(bench):
    (bench.root / "src/pkg/code.py").chmod(0o755)


def configuration(bench):
    edit(bench.root / "conf/optim/tiny.yaml", "lr:", "lr : ")


def importable_in_the_cache(bench):
    (bench.root / "src/pkg/__pycache__").mkdir()
    (bench.root / "src/pkg/__pycache__/evil.py").write_text("VALUE = 3\n")


def sourceless_in_the_cache(bench):
    (bench.root / "src/pkg/__pycache__").mkdir()
    (bench.root / "src/pkg/__pycache__/evil.pyc").write_bytes(b"anything")


@pytest.mark.parametrize(
    "tamper",
    [dirty, assume_unchanged, skip_worktree, ignored, excluded, filtered, executable, configuration,
     importable_in_the_cache, sourceless_in_the_cache],
)  # fmt: skip
def test_code_that_is_not_what_was_frozen_is_not_launched_and_not_frozen(active, capsys, tamper):
    tamper(active)
    refused(capsys, 4, "launch", "E1", "--check", says=("pins.code.", "tree"))
    if tamper in (assume_unchanged, ignored):
        active.draft(id="E2")
        refused(capsys, 2, "freeze", "E2", *TINY, says="pins.code")


def test_a_link_to_code_elsewhere_is_neither_frozen_nor_launched(active, capsys, tmp_path):
    (tmp_path / "elsewhere.py").write_text("VALUE = 3\n")
    (active.root / "src/pkg/linked.py").symlink_to(tmp_path / "elsewhere.py")
    active.commit("a link")
    active.draft(id="E2")
    refused(capsys, 2, "freeze", "E2", *TINY, says="is a link")
    refused(capsys, 4, "launch", "E1", "--check", says="is a link")


def test_another_installed_copy_of_the_package_is_refused(active, capsys, monkeypatch, tmp_path):
    shutil.copytree(active.root / "src/pkg", tmp_path / "site/pkg")
    here = active.place()
    monkeypatch.setattr(Place, "here", classmethod(lambda cls: Place(tmp_path / "site/pkg", here.conf, here.root)))
    assert prereg("launch", "E1", "--check") == 0, "the same bytes are the same package"
    (tmp_path / "site/pkg/code.py").write_text("VALUE = 2\n")
    refused(capsys, 4, "launch", "E1", "--check", says=f"pins.code.package_tree: {tmp_path}/site/pkg")


def compiled(bench, value, **how):
    """Bytecode of other code, in the place of that of `code.py`."""
    source = bench.root / "src/pkg/code.py"
    kept, facts = source.read_text(), source.stat()
    source.write_text(f"VALUE = {value}\n")
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    cached = py_compile.compile(str(source), doraise=True, **how)
    source.write_text(kept)
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return cached


@pytest.mark.parametrize("mode", ["UNCHECKED_HASH", "TIMESTAMP"])
def test_bytecode_of_other_code_is_not_run_in_place_of_the_source(active, capsys, mode):
    how = {"invalidation_mode": py_compile.PycInvalidationMode[mode]}
    compiled(active, 1, **how)
    assert prereg("launch", "E1", "--check") == 0, "bytecode of this very source is none"
    compiled(active, 2, **how)
    code = "import pkg.code; print(pkg.code.VALUE)"
    told = subprocess.run([sys.executable, "-c", code], cwd=active.root / "src", capture_output=True, text=True)
    assert told.stdout == "2\n", "this is what Python would run"
    refused(capsys, 4, "launch", "E1", "--check", says="is not compiled from its source")


def test_bytecode_that_python_would_not_use_is_no_obstacle(active):
    compiled(active, 2)
    facts = (active.root / "src/pkg/code.py").stat()
    os.utime(active.root / "src/pkg/code.py", ns=(facts.st_atime_ns, facts.st_mtime_ns + 10**10))
    assert prereg("launch", "E1", "--check") == 0


@pytest.mark.parametrize("name", ["torch", "numpy", "random", "mujoco"])
def test_a_module_in_front_of_a_library_is_refused(active, capsys, monkeypatch, tmp_path, name):
    (tmp_path / "shadow" / name).mkdir(parents=True)
    (tmp_path / "shadow" / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "shadow"))
    refused(capsys, 4, "launch", "E1", "--check", says=(f"pins.packages.{name}", str(tmp_path / "shadow")))


def test_a_whole_fake_distribution_in_front_of_a_library_is_refused(active, capsys, monkeypatch, tmp_path):
    from importlib import metadata

    version = metadata.version("numpy")
    (tmp_path / "shadow/numpy").mkdir(parents=True)
    (tmp_path / "shadow/numpy/__init__.py").write_text("")
    facts = tmp_path / f"shadow/numpy-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: numpy\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "shadow"))
    refused(capsys, 4, "launch", "E1", "--check", says="pins.packages.numpy")


def test_a_library_elsewhere_than_its_distribution_is_refused(active, capsys, monkeypatch, tmp_path):
    """Among the directories of installed libraries themselves, e.g. the user's own."""
    (tmp_path / "user/numpy").mkdir(parents=True)
    (tmp_path / "user/numpy/__init__.py").write_text("")
    known = imports.site_directories()
    monkeypatch.setattr(imports, "site_directories", lambda: [tmp_path / "user", *known])
    monkeypatch.syspath_prepend(str(tmp_path / "user"))
    refused(capsys, 4, "launch", "E1", "--check", says=("pins.packages.numpy", "its distribution lies in"))


@pytest.mark.parametrize(
    "text", ["import evil\n", "\ufeffimport evil\n", "# usual\n  import\tevil\n", "/a\nimport os; evil()\n"]
)
def test_a_shim_in_the_interpreters_start_is_refused(active, capsys, monkeypatch, tmp_path, text):
    known = imports.site_directories()
    monkeypatch.setattr(imports, "site_directories", lambda: [*known, tmp_path])
    (tmp_path / "zz.pth").write_text(text)
    refused(capsys, 4, "launch", "E1", "--check", says="pins.environment.hooks.zz.pth")


def test_a_customised_start_is_found_even_if_it_hides(active, capsys, monkeypatch, tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start/sitecustomize.py").write_text("import sys; del sys.modules['sitecustomize']\n")
    monkeypatch.syspath_prepend(str(tmp_path / "start"))
    refused(capsys, 4, "launch", "E1", "--check", says="pins.environment.hooks.sitecustomize.py")


def test_variables_that_switch_off_checks_or_bring_code_are_refused(active, capsys, monkeypatch):
    monkeypatch.setenv("HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE", "*")
    monkeypatch.setenv("LD_PRELOAD", "/tmp/evil.so")
    refused(capsys, 4, "launch", "E1", "--check", says=("HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE", "LD_PRELOAD"))


def test_a_plugin_that_is_not_pinned_is_refused(active, capsys, monkeypatch, tmp_path):
    (tmp_path / "place/extra_rewards").mkdir(parents=True)
    (tmp_path / "place/extra_rewards/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "place"))
    amended = [
        "--set",
        "config.plugins=[extra_rewards]",
        "--reason",
        "x",
        "--kind",
        "scientific",
        "--data-seen",
        "none",
    ]
    assert prereg("amend", "E1", *amended) == 0
    active.commit("Amend E1")
    refused(capsys, 4, "launch", "E1", "--check", says="pins.code.plugins.extra_rewards")
    assert prereg("amend", "E1", "--repin", "--reason", "x", "--kind", "scientific", "--data-seen", "none") == 0
    active.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0
    (tmp_path / "place/extra_rewards/__init__.py").write_text("VALUE = 1\n")
    refused(capsys, 4, "launch", "E1", "--check", says="pins.code.plugins.extra_rewards")


def test_another_commit_of_the_same_policy_is_not_the_one_that_is_pinned(active, capsys):
    amend = ("--reason", "x", "--kind", "scientific", "--data-seen", "none")
    assert prereg("amend", "E1", "--set", f"config.policy.revision={'a' * 40}", *amend) == 0
    active.commit("Amend E1")
    refused(capsys, 4, "launch", "E1", "--check", says=("pins.checkpoint.revision", "no commit of it is pinned"))
    assert prereg("amend", "E1", "--repin", *amend) == 0
    active.commit("Amend E1")
    assert prereg("launch", "E1", "--check") == 0


def test_another_commit_of_the_same_codec_is_not_the_one_that_is_pinned(sound):
    registration = read_registration(sound, "r")
    pins = dataclasses.replace(registration.pins, codec=FilePins("someone/codec", "a" * 40, {}))
    policy = {**registration.config["policy"], "fast_tokenizer": "someone/codec", "fast_revision": "a" * 40}
    assert unpinned(pins, {**registration.config, "policy": policy}) == []
    (found,) = unpinned(pins, {**registration.config, "policy": {**policy, "fast_revision": "b" * 40}})
    assert found.where == "pins.codec.revision" and "b" * 40 in found.what and "a" * 40 in found.what


# ------------------------------------------------------------------------------------------------------------- ledger
def cut(bench, lines=1):
    path = bench.folder() / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def forget(bench):
    bench.git("update-ref", "-d", "refs/vla_rl/prereg/E1")


def test_a_ledger_that_was_cut_is_missed_before_it_was_committed(launched, capsys):
    cut(launched)
    for command in ("verify", "launch", "status"):
        refused(capsys, 5, command, "E1", says=("ledger.jsonl, line 4", "refs/vla_rl/prereg/E1"))


def test_a_ledger_that_was_cut_is_missed_after_it_was_committed(launched, capsys):
    launched.commit("Ran E1")
    cut(launched, 2)
    forget(launched)
    refused(capsys, 5, "verify", "E1", says="ledger.jsonl, line 3")
    refused(capsys, 4, "launch", "E1", says="ledger.jsonl, line 3")
    launched.commit("cut")
    refused(capsys, 5, "verify", "E1", says="ledger.jsonl, line 3")


def test_a_tail_that_was_in_neither_memory_is_missed_by_a_noted_head(launched, capsys):
    """The limit: lines since the last commit, cut together with the ref. A head that was noted elsewhere shows it."""
    head = launched.ledger()[-1]
    cut(launched, 2)
    forget(launched)
    assert prereg("verify", "E1") == 0
    noted = ("--head", f"4:{head['hash']}")
    refused(capsys, 5, "verify", "E1", *noted, says="line 4")
    (launched.folder() / "ledger.jsonl").unlink()
    refused(capsys, 5, "verify", "E1", *noted, says=("ledger.jsonl, line 4", "not the line that was noted"))
    for odd in ("4", "4:", ":x", "x:y", "²:y"):
        refused(capsys, 2, "verify", "E1", "--head", odd, says="is no head")


def test_a_line_that_was_written_anew_with_all_hashes_is_not_what_git_has(judged, capsys):
    number = judged.events().index("attempt_ended")
    rehash(judged, number, lambda line: line["data"].update(wall_h=0.0))
    refused(capsys, 5, "verify", "E1", says=(f"ledger.jsonl, line {number + 1}", "data.wall_h"))
    forget(judged)
    refused(capsys, 5, "verify", "E1", says=(f"ledger.jsonl, line {number + 1}", "data.wall_h"))


def test_an_outcome_that_was_written_anew_does_not_follow_from_the_evidence(judged, capsys):
    """Even with both memories rewritten: what is recorded is derived again."""
    number = judged.events().index("read")
    rehash(judged, number, lambda line: line["data"]["outcome"].update(status="PASS", estimate=9.5))
    forget(judged)
    judged.git("checkout", "-q", "--orphan", "other")
    judged.commit("the only commit")
    refused(capsys, 5, "verify", "E1", says=(f"line {number + 1}: data.outcome.estimate",))


@pytest.mark.parametrize("event, change, field", [
    ("verdict", lambda data: data.update(verdict="SUPPORTED"), "data.verdict"),
    ("read", lambda data: data.update(exploratory=True), "data.exploratory"),
    ("look", lambda data: data.update(measurement="spend"), "data.measurement"),
])  # fmt: skip
def test_other_records_do_not_follow_either(judged, capsys, event, change, field):
    number = judged.events().index(event)
    rehash(judged, number, lambda line: change(line["data"]))
    forget(judged)
    judged.git("checkout", "-q", "--orphan", "other")
    judged.commit("the only commit")
    refused(capsys, 5, "verify", "E1", says=f"line {number + 1}: {field}")


# ---------------------------------------------------------------------------------------------------- looks and reads
def test_a_read_is_not_made_again_by_removing_what_it_left(launched, capsys):
    assert prereg("read", "E1", "progress") == 0
    shutil.rmtree(launched.folder() / "evidence")
    refused(capsys, 5, "read", "E1", "progress", says="evidence/before.json")
    cut(launched, 3)
    refused(capsys, 5, "read", "E1", "progress", says="ledger.jsonl, line 5")
    launched.git("checkout", "-q", "--", "experiments")
    refused(capsys, 5, "read", "E1", "progress", says="ledger.jsonl")
    assert not (launched.folder() / "evidence").exists()


def test_evidence_cannot_be_exchanged_before_it_is_read_again(launched, capsys):
    assert prereg("read", "E1", "progress") == 0
    edit(launched.folder() / "evidence/after.json", '"seed": 10003', '"seed": 10009')
    refused(capsys, 5, "read", "E1", "progress", says="evidence/after.json: episodes[10003]")


@pytest.mark.parametrize(
    "file, read", [("episodes.jsonl", "progress"), ("train.jsonl", "clip"), ("manifest.json", "progress")]
)
def test_files_of_a_run_are_not_edited_after_it_ended(launched, capsys, file, read):
    path = launched.root / RUN / file
    path.write_text(path.read_text().replace("0", "1", 1))
    refused(capsys, 5, "read", "E1", read, says=f"{file}: attempt_ended.files.{file}")
    assert "look" not in launched.events()


def test_evidence_that_is_handed_in_is_of_the_measurement_it_is_handed_in_for(launched, capsys):
    file = launched.root / "outputs/spend.json"
    for key, value in (("measurement", "after"), ("arm", "other"), ("kind", "episodes")):
        file.write_text(json.dumps({"values": {"hours": 1.0}, key: value}))
        refused(capsys, 2, "read", "E1", "money", "--from", str(file), says=key)
    for wrong, field in (
        ({"values": {"hours": "x"}}, "values.hours"),
        ({"counts": {"x": [8, 7]}}, "counts.x"),
        ({"episodes": [{}]}, "episodes[0]"),
        ({"values": {"hours": 1.0}, "more": 1}, "more"),
    ):
        file.write_text(json.dumps(wrong))
        refused(capsys, 2, "read", "E1", "money", "--from", str(file), says=(field, "correct the file"))
    assert "look" not in launched.events()


def test_nothing_is_opened_before_the_run_has_come_to_its_end(active, capsys):
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    launched_by(active, Process.own().body())
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    (active.root / RUN).mkdir(parents=True)
    (active.root / RUN / "episodes.jsonl").write_text("{}\n")
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    end = {"attempt": 1, "how": "paused", "exit_code": 0, "why": "time", "wall_h": 0.0, "gpu_h": 0.0, "files": {},
           "step": 0, "policy_digest": None, "base_digest": None}  # fmt: skip
    write(active, "attempt_ended", end)
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    launched_by(active, {**Process.own().body(), "started": 1}, number=2)
    refused(capsys, 4, "read", "E1", "progress", says="sealed")
    assert active.events()[-1] == "attempt_ended" and active.ledger()[-1]["data"]["how"] == "killed"
    refused(capsys, 4, "close", "E1", says="no verdict")


def test_a_registration_that_is_not_there_is_no_crash(bench, capsys):
    for command in (["verdict"], ["close"], ["launch"], ["read", "x"], ["activate"], ["report"], ["verify"]):
        refused(capsys, 2, command[0], "E9", *command[1:], says="there is no registration E9")


def test_evidence_that_is_not_what_its_ledger_says_is_not_brought_in(launched, use, tmp_path, capsys):
    here = use(launched.copy(tmp_path / "here"))
    there = use(launched)
    assert prereg("read", "E1", "clip") == 0
    path = there.folder() / "evidence/training.json"
    (there.folder() / "evidence/better.json").write_text("{}")
    kept = path.read_text()
    path.write_text(kept.replace("0.", "1.", 1))
    use(here)
    refused(capsys, 5, "import", "E1", "--from", str(there.folder()), says="evidence/training.json: rows[1]")
    assert here.events()[-1] == "attempt_ended" and not (here.folder() / "evidence").exists()
    path.write_text(kept)
    assert prereg("import", "E1", "--from", str(there.folder())) == 0 and prereg("verify", "E1") == 0
    assert [path.name for path in (here.folder() / "evidence").iterdir()] == ["training.json"]


# ----------------------------------------------------------------------------------------------------------- attempts
def test_two_launches_of_one_arm_do_not_run_at_once(active, capsys):
    launched_by(active, Process.own().body())
    refused(capsys, 4, "launch", "E1", says=("this rung and arm is running", f"process {os.getpid()}"))
    assert prereg("close", "E1") == 4 and prereg("withdraw", "E1", "--reason", "x") == 4


def test_the_gates_are_asked_again_under_the_lock(active, capsys, monkeypatch):
    """Two launches that both found the gates open: the second writer is refused, and no attempt is recorded twice."""
    from vla_rl.cli.prereg import launching

    def meanwhile(target, request, options, view, run_attempt=launching.run_attempt):
        launched_by(active, Process.own().body())
        return run_attempt(target, request, options, view)

    monkeypatch.setattr(launching, "run_attempt", meanwhile)
    refused(capsys, 4, "launch", "E1", says="this rung and arm is running")
    assert active.events().count("launched") == 1


@pytest.mark.parametrize("process", [{"started": 1}, {"boot": "another"}, {"pid": 2**22 + 1}])
def test_a_stale_attempt_is_buried_with_its_cost_whoever_has_its_number_now(active, process):
    launched_by(active, {**Process.own().body(), **process})
    (active.root / RUN).mkdir(parents=True)
    (active.root / RUN / "heartbeat.json").write_text('{"utc": "2999-01-01T00:00:00+00:00"}')
    assert prereg("launch", "E1", "--check") == 4, "what is spent is spent: the heartbeat says many years"
    assert active.events()[-2:] == ["launched", "attempt_ended"]
    assert active.ledger()[-1]["data"]["how"] == "killed" and active.ledger()[-1]["data"]["wall_h"] > 1000


def test_an_attempt_on_another_machine_is_not_buried_from_here(active, capsys):
    launched_by(active, {**Process.own().body(), "node": "elsewhere"})
    refused(capsys, 4, "launch", "E1", says=("running", "of machine elsewhere"))
    assert "attempt_ended" not in active.events()


def test_an_attempt_on_a_machine_of_the_same_name_is_not_buried_from_here(active, capsys):
    """It was imported: it is of another boot, and nothing of its run is here."""
    launched_by(active, {**Process.own().body(), "boot": "another"})
    assert prereg("status", "E1") == 0 and "attempt_ended" not in active.events()
    refused(capsys, 4, "launch", "E1", "--check", says="attempt 1 of it can go on")
    assert "attempt_ended" not in active.events()
    assert prereg("lost", "E1", "1", "--hours", "0.25", "--reason", "the machine was taken away") == 0
    assert (active.ledger()[-1]["data"]["how"], active.ledger()[-1]["data"]["wall_h"]) == ("lost", 0.25)


def test_a_stopped_run_does_not_go_on_from_what_somebody_else_left_there(launched, capsys):
    end = launched.ledger()[-1]["data"]
    write(launched, "launched", {**launched.ledger()[-2]["data"], "attempt": 2, "exploratory": False})
    write(launched, "attempt_ended", {**end, "attempt": 2, "how": "killed"})
    folder = launched.root / RUN
    edit(folder / "episodes.jsonl", "10000", "10001")
    shutil.rmtree(next(iter(folder.glob("checkpoints/step_*"))))
    refused(capsys, 4, "launch", "E1", "--resume", says=(f"{RUN}/episodes.jsonl", f"{RUN}/checkpoints"))


def test_the_ledger_is_no_place_for_two_writers_at_once(active):
    """A second process waits for the lock instead of writing into the same line."""
    code = (
        "import sys; from pathlib import Path; from vla_rl.prereg.ledger import Ledger\n"
        "folder = Path(sys.argv[1])\n"
        "for i in range(20):\n"
        "    with Ledger(folder).locked(): Ledger(folder).append('objected', {}, registration='r', config='c')\n"
    )
    (active.root / "outputs").mkdir(exist_ok=True)
    folder = active.root / "outputs"
    both = [subprocess.Popen([sys.executable, "-c", code, str(folder)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [entry.seq for entry in Ledger(folder).read()] == list(range(40))
