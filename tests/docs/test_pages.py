"""What the pages point at is there, and the commands that they tell their reader to type are commands.

A link leads to a file, and its anchor to a heading of it. A command line is parsed by the command's own parser, and its
overrides are composed; the ones that need nothing and cost little are run.
"""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from vla_rl import paths
from vla_rl.cli.main import COMMANDS, main
from vla_rl.cli.options import PRIMARY
from vla_rl.cli.prereg import ACTIONS
from vla_rl.config.compose import compose
from vla_rl.config.grid import expand
from vla_rl.config.schema import ROOTS
from vla_rl.errors import EXIT_OK, ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = {"commands.md"}  # by a program, from the examples of the commands: test_every_example_of_a_command
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^()\s]+)\)|!\[[^\]]*\]\(([^()\s]+)\)")
# What stands for something of the reader's.
PLACEHOLDER = re.compile(r"<[^<>]*>|…")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
INDENTED = re.compile(r"^(?: {4}|\t)(.*)$", re.M)


def prose(text):
    """A page without its blocks of code."""
    return INDENTED.sub("", FENCED.sub("", text))


def anchors(path):
    """The anchors that headings of a page get on GitHub, and those that it sets itself."""
    text = FENCED.sub("", path.read_text())
    seen, found = {}, set(re.findall(r'<a id="([^"]+)">', text))
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        times = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{times}" if times else slug)
    return found


def broken_links(page):
    """Targets of a page that lead nowhere."""
    wrong = []
    for target in ("".join(pair) for pair in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page.read_text())))):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_its_anchor_to_a_heading(page):
    assert broken_links(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "there.md").write_text('# A title: `code`, and more\n\n# Twice\n\n<a id="set"></a>\n# Twice\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-title-code-and-more) [c](there.md#twice-1) [d](#own) [s](there.md#set)\n\n"
        "## Own\n\n"
        "`[code](nowhere.md)` [web](https://example.org/x)\n\n    [block](nowhere.md)\n\n"
        "[e](absent.md) [f](there.md#twice-2) ![g](absent.png)\n"
    )
    assert broken_links(page) == ["absent.md", "there.md#twice-2", "absent.png"]


def command_lines(text):
    """The command lines of a page: in its blocks and in backquotes within its text."""
    blocks = [*INDENTED.findall(FENCED.sub("", text)), *re.findall(r"^```sh\n(.*?)^```$", text, flags=re.S | re.M)]
    lines = re.sub(r"\\\n\s*", " ", "\n".join(blocks)).splitlines()
    lines += [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose(text))]
    parts = [part.strip() for line in lines for part in re.split(r"&&|;", line)]
    return [part for part in parts if re.match(r"(?:[A-Z_]+=\S+ )*vla-rl\b", part)]


def words_of(line):
    """A command line as words behind `vla-rl`: what is in brackets is given, N and H are numbers."""
    plain = re.sub(r"\[(-.*?)\](?=\s|$)", r"\1", PLACEHOLDER.sub("X", line))
    words = shlex.split(plain.replace("[overrides]", ""), comments=True)
    return ["1" if word in ("N", "H") else word for word in words[words.index("vla-rl") + 1 :]]


class Parsed(Exception):
    """A command has understood its argument line; nothing was started."""


def parse_only(words, monkeypatch):
    """Have a command's own parser read its line, and stop there."""
    with monkeypatch.context() as patched:
        for name in ("parse_args", "parse_intermixed_args"):
            original = getattr(argparse.ArgumentParser, name)

            def stop(self, *given, _original=original, **more):
                options = _original(self, *given, **more)
                if self.prog in ("vla-rl", "vla-rl prereg"):  # they pick the command; it reads its line itself
                    return options
                raise Parsed(options)

            patched.setattr(argparse.ArgumentParser, name, stop)
        with pytest.raises(Parsed) as parsed:
            main(words)
    return parsed.value.args[0]


# Commands whose overrides are those of another, and the options that are overrides again.
CONFIGURES = {**{name: name for name in ROOTS}, **PRIMARY, "prereg freeze": "config", "parity": "eval"}
OVERRIDING = {"plan": ("against",), "parity": ("a", "b")}


def configured(line, monkeypatch):
    """Parse a command line. The configurations that it asks for: (primary, overrides)."""
    words = words_of(line)
    command = " ".join(words[:2]) if words[:1] == ["prereg"] else " ".join(words[:1])
    if words == command.split():  # a name, nothing to type
        named = {*COMMANDS, *(f"prereg {action}" for action in (*ACTIONS, "ACTION"))}
        assert command in named or not words
        return []
    options = parse_only(words, monkeypatch)
    if (primary := CONFIGURES.get(command)) is None:
        return []
    given = [word for word in options.overrides if "=" in word]
    asked = [given]
    if command == "parity":
        common = [word for word in given if not word.startswith("parity.")]
        asked, found = [common], [("parity", tuple(word for word in given if word not in common))]
    else:
        found = []
    if {"-m", "--multirun"} & set(words):
        asked = list(expand(given).jobs)
    for option in OVERRIDING.get(command, ()):
        own = [word for word in shlex.split(getattr(options, option) or "") if "=" in word]
        asked.append([*(asked[0] if command == "parity" else ()), *own])
    return found + [(primary, tuple(overrides)) for overrides in asked]


def compose_all(asked):
    """Compose configurations. Those that choose the same options and set different keys are composed as one, which
    takes a third of the time and is refused if one of them would be: a key's own option and bounds judge it."""
    batches = []
    for primary, overrides in dict.fromkeys(asked):
        chosen = tuple(word for word in overrides if "." not in word.partition("=")[0])
        keys = {word.partition("=")[0]: word for word in overrides if word not in chosen}
        for kind, together in batches:
            if kind == (primary, chosen) and not keys.keys() & together.keys():
                together.update(keys)
                break
        else:
            batches.append(((primary, chosen), keys))
    for (primary, chosen), keys in batches:
        compose(primary, [*chosen, *keys.values()], allow_missing=True)


def check(lines, monkeypatch):
    """Every command line is understood by its command, and its configuration composes.

    Raises:
        AssertionError: naming the line.
    """
    asked, wrong = {}, []
    for line in lines:
        try:
            asked[line] = configured(line, monkeypatch)
        except (SystemExit, Exception) as error:
            wrong.append(f"{line}: {error!r}")
    assert not wrong, "\n".join(wrong)
    try:
        compose_all([each for several in asked.values() for each in several])
    except ConfigError as error:
        raise AssertionError(f"one of these: {error}\n" + "\n".join(line for line in asked if asked[line])) from error


@pytest.fixture
def readers_own(tmp_path, monkeypatch):
    """What the pages take for granted: a package with an option of its own."""
    conf = tmp_path / "my_rewards" / "conf" / "reward"
    conf.mkdir(parents=True)
    (conf.parent.parent / "__init__.py").write_text("class Sparse:\n    def __init__(self, bonus): ...\n")
    (conf / "sparse.yaml").write_text("_target_: my_rewards.Sparse\nbonus: 10.0\n")
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test that imported its own
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_command_line_of_the_pages_is_one_that_the_command_understands(readers_own, monkeypatch):
    lines = [line for page in PAGES if page.name not in WRITTEN for line in command_lines(page.read_text())]
    assert len(lines) > 200
    check(lines, monkeypatch)


def test_every_example_of_a_command_is_one_that_it_understands(readers_own, monkeypatch):
    text = (ROOT / "docs" / "commands.md").read_text()
    lines = re.findall(r"^  ((?:[A-Z_]+=\S+ )?vla-rl .*)$", text, flags=re.M)
    assert len(lines) > 50
    check([part for line in lines for part in line.split(" && ")], monkeypatch)


MISTAKES = (
    "vla-rl trian", "vla-rl trian x", "vla-rl eval --vidoe 300", "vla-rl train optim.lrr=1", "vla-rl prereg freze E001",
    "vla-rl export RUN", "vla-rl train -m optim.lrr=1,2", "vla-rl plan --against experiment=none",
    "vla-rl parity --a polcy.dtype=float32", "vla-rl prereg freeze E001 optim.lr=-1", "vla-rl eval optim.lr=1",
)  # fmt: skip


@pytest.mark.parametrize("line", MISTAKES)
def test_a_line_that_no_command_understands_is_found_among_others(line, monkeypatch):
    with pytest.raises(AssertionError, match=re.escape(line)):
        check(["vla-rl train optim.lr=1", line, "vla-rl status"], monkeypatch)


def test_options_of_one_line_do_not_make_another_line_right(monkeypatch):
    check(["vla-rl train reward=v2 reward.shove_penalty=1"], monkeypatch)
    with pytest.raises(AssertionError, match="shove_penalty"):
        check(["vla-rl train reward=v2", "vla-rl train reward.shove_penalty=1"], monkeypatch)


def test_the_lines_of_a_page_are_found_wherever_they_stand():
    page = "Type `vla-rl status` or\n`vla-rl sft\nsft.base=DIR`:\n\n"
    page += "    vla-rl demos a=1 \\\n      b=2 && vla-rl eval  # so\n"
    page += "\n```sh\ncd x\nMUJOCO_GL=egl vla-rl doctor\n```\n"
    assert [words_of(line) for line in command_lines(page)] == [
        ["demos", "a=1", "b=2"], ["eval"], ["doctor"], ["status"], ["sft", "sft.base=DIR"],
    ]  # fmt: skip
    assert words_of("vla-rl export RUN [--step N] <dir>") == ["export", "RUN", "--step", "1", "X"]


CHEAP = ("vla-rl status", "vla-rl prereg status", "vla-rl prereg new E001", "vla-rl train --help-keys",
         "vla-rl sft --help-keys", "vla-rl sweep E002 --table")  # fmt: skip


@pytest.mark.parametrize("line", CHEAP)
def test_a_line_that_costs_little_is_one_of_a_page_and_ends_well(line, tmp_path, monkeypatch, capsys):
    assert any(line in command_lines(page.read_text()) for page in PAGES)
    monkeypatch.chdir(tmp_path)
    if "E002" in line:
        line = line.replace("E002", "E002-weak-start")
    else:
        monkeypatch.setenv("VLA_RL_EXPERIMENTS", str(tmp_path / "experiments"))
    try:
        code = main(words_of(line))
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert code == EXIT_OK and told.out + told.err
    assert os.environ.get("VLA_RL_EXPERIMENTS") or paths.experiments_dir() == ROOT / "experiments"
