"""Every byte of a registration's folder counts: whatever is changed, cut or removed, `verify` names the file."""

import hashlib
import json
import random

import pytest
from bench import prereg, rehash

from vla_rl.errors import VlaRlError
from vla_rl.prereg import yamlfile
from vla_rl.prereg.delta import diff, write_path
from vla_rl.prereg.folder import Folder
from vla_rl.prereg.history import History
from vla_rl.prereg.parts import FIELD, SECTION, parts
from vla_rl.prereg.parts import changed as changed_parts
from vla_rl.prereg.verifying import verify

SAMPLE = 16  # bytes of each file in the default suite


@pytest.fixture(scope="session")
def _amended_template(_template, tmp_path_factory, used):
    """Run, amended, read, judged, closed: every kind of file that a folder can hold."""
    with used(_template.copy(tmp_path_factory.mktemp("amended") / "repo")) as made:
        (made.root / "outputs" / "spend.json").write_text('{"values": {"hours": 0.5}}')
        amend = ["--kind", "operational", "--data-seen", "training", "--reason", "more room"]
        assert prereg("amend", "E1", "--set", "budget.wall_h=2.0", *amend) == 0
        for read in (["clip"], ["money", "--from", "outputs/spend.json"], ["progress"]):
            assert prereg("read", "E1", *read) == 0
        assert prereg("verdict", "E1") == 0 and prereg("close", "E1", "--banked", "the loop runs") == 0
        made.commit("Close E1")
    return made


@pytest.fixture
def whole(_amended_template, tmp_path, use):
    return use(_amended_template.copy(tmp_path / "repo"))


@pytest.fixture
def check(whole):
    """What `verify` finds, in process, with what git knows read once."""
    history, folder = History.of(whole.experiments), Folder(whole.experiments, "E1")
    assert verify(folder, history) == []
    return lambda: verify(folder, history)


def files(bench):
    return sorted(path for path in bench.folder().rglob("*") if path.is_file())


def flipped(data, at, rng):
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def test_the_folder_that_is_tried_holds_every_kind_of_file(whole):
    assert [path.relative_to(whole.folder()).as_posix() for path in files(whole)] == [
        "REPORT.md", "amendments/01.yaml", "draft.yaml", "evidence/after.json", "evidence/before.json",
        "evidence/spend.json", "evidence/training.json", "ledger.jsonl", "registration.yaml", "report/curves.svg",
        "report/funnel.svg", "report/intervals.svg",
    ]  # fmt: skip


def every_flip_is_caught(bench, check, places):
    rng = random.Random(3)
    for path in files(bench):
        data = path.read_bytes()
        for at in places(len(data)):
            path.write_bytes(flipped(data, at, rng))
            found = check()
            assert any(str(path) in problem.where for problem in found), (path.name, at, found)
        path.write_bytes(data)
    assert check() == []


def test_a_byte_that_is_flipped_is_caught_and_its_file_is_named(whole, check):
    rng = random.Random(11)
    every_flip_is_caught(whole, check, lambda n: {0, n - 1, *(rng.randrange(n) for _ in range(SAMPLE))})


@pytest.mark.slow
def test_every_single_byte_that_is_flipped_is_caught(whole, check):
    every_flip_is_caught(whole, check, range)


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path


def changed(value, path):
    """A copy in which one leaf is another value of the same kind."""
    value = json.loads(json.dumps(value))
    parent = value
    for step in path[:-1]:
        parent = parent[step]
    was = parent[path[-1]]
    new = not was if isinstance(was, bool) else was + 1 if isinstance(was, int | float) else f"{was or ''}x"
    parent[path[-1]] = new
    return value


def sections_of(a, b):
    """Where two documents differ, two levels deep: `config.optim`, `reads[progress]`."""
    return {write_path(op.path[:2]) for op in diff(a, b)}


@pytest.mark.slow
def test_a_value_of_the_registration_is_named_to_its_section(whole, check):
    path = whole.folder() / "registration.yaml"
    stored = yamlfile.load(path.read_bytes(), path.name)
    for leaf in random.Random(5).sample(list(leaves(stored)), 60):
        other = changed(stored, leaf)
        path.write_text(yamlfile.dump(other))
        told = " ".join(problem.where for problem in check())
        for section in sections_of(stored, other):
            assert section in told, (leaf, told)


def test_a_value_of_an_amendment_is_named(whole, check):
    path = whole.folder() / "amendments/01.yaml"
    stored = yamlfile.load(path.read_bytes(), path.name)
    for leaf in leaves(stored):
        path.write_text(yamlfile.dump(changed(stored, leaf)))
        assert any(str(path) in p.where and leaf[0] in p.where for p in check()), leaf


@pytest.mark.parametrize("name", ["after", "spend", "training"])
def test_a_value_of_the_evidence_is_named_to_its_row_or_name(whole, check, name):
    path = whole.folder() / f"evidence/{name}.json"
    stored = json.loads(path.read_text())
    for leaf in random.Random(5).sample(list(leaves(stored)), min(25, len(list(leaves(stored))))):
        path.write_text(json.dumps(changed(stored, leaf), indent=1))
        key = {"episodes": "seed", "rows": "step"}.get(leaf[0])
        field = f"{leaf[0]}[{stored[leaf[0]][leaf[1]][key]}]" if key else ".".join(map(str, leaf[:2]))
        assert any(f"{path}: " in p.where and field in p.where for p in check()), (leaf, check())


def test_a_value_of_the_ledger_is_named_to_its_line_and_field(whole, check):
    path = whole.folder() / "ledger.jsonl"
    data, stored = path.read_bytes(), whole.ledger()
    rng = random.Random(5)
    for number, line in enumerate(stored):
        places = list(leaves(line["data"], ("data",)))
        for leaf in rng.sample(places, min(2, len(places))):
            other = changed(line, leaf)
            lines = data.split(b"\n")
            lines[number] = json.dumps(other, ensure_ascii=False, separators=(",", ":")).encode()
            path.write_bytes(b"\n".join(lines))
            (field,) = (write_path(op.path) for op in diff(line, other))
            assert any(p.where.startswith(f"{path}, line {number + 1}: {field}") for p in check()), (leaf, check())
    path.write_bytes(data)


@pytest.mark.slow
def test_whatever_is_cut_or_put_in_is_caught(whole, check):
    rng = random.Random(17)
    for path in files(whole):
        data = path.read_bytes()
        junk = bytes(rng.randrange(256) for _ in range(40))
        at = rng.randrange(1, len(data))
        tries = [b"", data[:at], data[:-1], data + b"\n", data + data, junk, data[:at] + junk + data[at:], b"\xff\xfe"]
        tries += [
            b"[" * 5000,
            b"{}",
            b"[]\n",
            b"null\n",
            b"1" * 5000 + b"\n",
            b'"\\ud800"\n',
            data.replace(b"\n", b"\r\n"),
        ]
        for content in tries:
            path.write_bytes(content)
            assert any(str(path) in p.where for p in check()), (path.name, content[:40])
        path.write_bytes(data)


def test_whatever_is_removed_or_replaced_is_missed(whole, check):
    for path in files(whole):
        data = path.read_bytes()
        path.unlink()
        if path.name != "draft.yaml":  # everything that it says is in the registration
            assert any(str(path) in p.where for p in check()), path.name
        path.mkdir()
        assert any(str(path) in p.where for p in check()), path.name
        path.rmdir()
        path.symlink_to("/etc/hostname")
        assert any(str(path) in p.where for p in check()), path.name
        path.unlink()
        path.write_bytes(data)
    assert check() == []


def test_no_ledger_whatsoever_is_more_than_a_problem(whole, check):
    """Written anew with a chain that holds: names of events, keys and types at random."""
    rng = random.Random(23)
    odd = [None, True, -1, 1.5, "", "x", [], {}, [[]], {"id": 1}, "\ud800", 10**30, [None], {"x": {}}]
    path = whole.folder() / "ledger.jsonl"
    data = path.read_bytes()
    for _ in range(80):
        path.write_bytes(data)
        number = rng.randrange(len(whole.events()))
        line = whole.ledger()[number]
        leaf = rng.choice(list(leaves(line)))

        def change(line, leaf=leaf):
            parent = line
            for step in leaf[:-1]:
                parent = parent[step]
            if rng.random() < 0.2 and isinstance(parent, dict):
                parent.pop(leaf[-1])
            else:
                parent[leaf[-1]] = rng.choice(odd)

        try:
            rehash(whole, number, change)
        except (UnicodeEncodeError, KeyError):
            continue
        assert check() != [] or path.read_bytes() == data, (number, leaf)
        try:
            Folder(whole.experiments, "E1").load_as_written()
        except VlaRlError:
            pass
    path.write_bytes(data)


def test_no_evidence_whatsoever_is_more_than_a_problem(whole, check):
    """With its digest written into the ledger, so that it is parsed and judged."""
    rng = random.Random(29)
    odd = [None, True, -1, 1e308, "x", [], {}, 10**400, [None], {"x": {}}, "\ud800", float("nan")]
    ledger, looks = whole.folder() / "ledger.jsonl", [i for i, e in enumerate(whole.events()) if e == "look"]
    kept = ledger.read_bytes()
    for _ in range(40):
        number = rng.choice(looks)
        path = whole.folder() / f"evidence/{whole.ledger()[number]['data']['evidence']}.json"
        data = path.read_bytes()
        stored = json.loads(data)
        leaf = rng.choice(list(leaves(stored)))
        parent = stored
        for step in leaf[:-1]:
            parent = parent[step]
        parent[leaf[-1]] = rng.choice(odd)
        content = json.dumps(stored).encode()
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        rehash(whole, number, lambda line, digest=digest: line["data"].update(sha256=digest))
        assert check() != [], leaf
        path.write_bytes(data)
        ledger.write_bytes(kept)
    assert check() == []


def test_parts_are_named_two_levels_deep_and_by_what_records_are_called():
    document = {
        "claim": {"unit": "episode", "look": {"a": 1}}, "reads": [{"id": "p"}, {"id": "q"}], "steps": [1, 2],
        "episodes": [{"seed": 300, "step": 1}], "rows": [{"step": 1}], "ops": [{"op": "set"}], "arms": [], "levers": {},
    }  # fmt: skip
    known = parts(document, SECTION)
    assert list(known) == [
        "claim.unit", "claim.look", "reads[p]", "reads[q]", "steps", "episodes[300]", "rows[1]", "ops", "arms",
        "levers",
    ]  # fmt: skip
    assert changed_parts(document, known, SECTION) == [] and len(changed_parts(document, known, FIELD)) == len(known)
    other = {**document, "reads": [{"id": "p", "x": 1}, {"id": "r"}], "claim": {"unit": "episode", "look": {"a": 1.0}}}
    assert changed_parts(other, known, SECTION) == ["claim.look", "reads[p]", "reads[q]", "reads[r]"]
