"""The one page of a run: what it says, what it does not, and that nobody's text becomes a part of it."""

import csv
import io
import json
import pkgutil
import re
import subprocess
import sys

import pytest
import yaml
from PIL import Image
from runs import Seen, episode, evaluation, lines, manifest, step, write_run

import vla_rl.report
from vla_rl.cli.main import main
from vla_rl.prereg.sealing import Seal
from vla_rl.report.page.media import films
from vla_rl.report.page.model import Table
from vla_rl.report.page.render import DARK, MOST_ROWS, html
from vla_rl.report.page.run import run_page
from vla_rl.report.page.rundata import read_run
from vla_rl.report.page.text import as_csv, csv_files, markdown

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)></svg></title></style>`|[x](javascript:alert(3))"
# Everything that a page is made of. Whatever else were in it would have come out of somebody's text.
ELEMENTS = set(
    "html head meta title style body a header p h1 h2 h3 nav ul li main section div figure figcaption details summary "
    "span table caption thead tbody tr th td dl dt dd blockquote pre code footer img video "
    "svg desc text polyline polygon rect circle".split()
)


def page_of(directory, deltas=(), films=()):
    return run_page(read_run(directory, Seal()), deltas, films)


def html_of(directory):
    return html(page_of(directory))


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "boat" / "20261130T100000Z-1a2b")


# ------------------------------------------------------------------------------------------------------- what it says
def test_the_headline_is_the_paired_change_of_the_held_out_scenes_with_its_interval(run):
    page = page_of(run)
    assert page.headline.text.startswith(
        "Success on 4 held-out scenes: 1 before, 3 after (25 % to 75 %); change +50.00"
    )
    low, high = map(float, re.search(r"\[([+-][\d.]+), ([+-][\d.]+)\]", page.headline.text).groups())
    assert low <= 50.0 <= high and "strict test" in page.headline.text
    assert "2 scenes were won and 0 lost" in page.headline.more[0]


def test_every_part_that_was_asked_for_is_there_with_numbers_beside_each_picture(run):
    page = page_of(run)
    names = {chart.name for chart in page.charts()}
    assert names >= {"training-success", "reward", "held-out-success", "scenes", "funnel", "reach", "terms",
                     "held-out-terms", "spread", "mixed", "ratio", "kl", "nll", "time"}  # fmt: skip
    seen = Seen(html(page))
    assert (
        len(seen.of("svg")) == len(page.charts()) == len([d for d in seen.of("div") if "picture" in d.get("class", "")])
    )
    assert all(svg["role"] == "img" for svg in seen.of("svg"))
    for chart in page.charts():
        assert chart.table.rows and chart.title, chart.name
        assert all(len(row) == len(chart.table.headings) for row in chart.table.rows), chart.name


def test_the_terms_of_the_reward_add_up_to_it(run):
    (table,) = [table for table in page_of(run).tables() if table.name == "held-out-terms"]
    for _, *terms, whole in table.rows:
        assert sum(terms) == pytest.approx(whole)
    assert table.headings[-1] == "in all"


def test_the_reach_of_each_side_counts_its_own_scenes(run):
    (table,) = [table for table in page_of(run).tables() if table.name == "reach"]
    assert [row for row in table.rows if row[0] == "before"] == [["before", "6-8", 2, 2, 1], ["before", "8-9", 1, 1, 0],
                                                                  ["before", "9-10", 1, 1, 0]]  # fmt: skip


def test_time_is_told_by_what_it_was_spent_on(run):
    (table,) = [table for table in page_of(run).tables() if table.name == "time-in-all"]
    assert [row[:2] for row in table.rows] == [["episodes", 60.0], ["update", 18.0], ["held-out evaluation", 2.0],
                                               ["saving", 3.0], ["all", 83.0]]  # fmt: skip


def test_evaluations_of_two_scenes_are_not_compared(tmp_path):
    one, two = ([episode(300 + i, bool(i), at=at) for i in range(3)] for at in (0, 2))
    rows = [evaluation(0, one), evaluation(2, two, scene_hash="cd" * 32)]
    page = page_of(write_run(tmp_path / "run", eval=lines(rows), episodes=lines([*one, *two])))
    assert "cannot be compared" in page.headline.text and "scene hash" in page.headline.text
    assert not [chart for chart in page.charts() if chart.name == "scenes"]


def test_the_same_files_give_the_same_bytes(run):
    assert html_of(run) == html_of(run)


# ---------------------------------------------------------------------------------------------------- one file, no more
def test_a_page_fetches_nothing_and_runs_nothing(run):
    data = html_of(run)
    seen = Seen(data)
    for tag, attributes in seen.elements:
        for name in ("src", "href", "poster", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")]
    assert not seen.of("script") and not seen.of("link") and not seen.of("iframe")
    (policy,) = [m["content"] for m in seen.of("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src" not in policy
    assert b"url(" not in data and b"@import" not in data


def test_what_a_reader_uses_a_keyboard_or_a_screen_reader_for_is_there(run):
    seen = Seen(html_of(run))
    ids = [attributes["id"] for _, attributes in seen.elements if attributes.get("id")]
    assert len(ids) == len(set(ids)), "an anchor is there once"
    assert seen.of("html")[0]["lang"] == "en" and len(seen.of("h1")) == 1 and len(seen.of("main")) == 1
    for link in seen.of("a"):
        assert link["href"].removeprefix("#") in ids, "every link leads somewhere"
    for region in seen.of("div"):
        if "scroll" in region.get("class", ""):
            assert region["tabindex"] == "0" and region["aria-label"], "what scrolls can be reached and has a name"
    assert all(cell.get("scope") in ("col", "row") for cell in seen.of("th"))
    assert all(image.get("alt") for image in seen.of("img"))


@pytest.mark.parametrize("where", ["config", "manifest", "train", "eval", "episodes", "heartbeat"])
def test_no_text_of_a_run_becomes_a_part_of_its_page(tmp_path, where):
    config = {"run": {"name": HOSTILE, "steps": 2}, HOSTILE: {HOSTILE: HOSTILE}, "eval": {"seeds": HOSTILE}}
    wire = {"wire": HOSTILE, "value": 1.0, "threshold": 2.0, "streak": 1, "mode": HOSTILE}
    told = {
        "config": {"config": yaml.safe_dump(config)},
        "manifest": {"manifest": json.dumps(manifest(
            utc=HOSTILE, argv=[HOSTILE], packages={HOSTILE: HOSTILE}, git={"commit": HOSTILE},
            host={"system": HOSTILE, "machine": HOSTILE}, scene={"protocol": HOSTILE, "scene_hash": HOSTILE}))},
        "train": {"train": lines([step(1, tripwires=[wire]), step(2)]) + HOSTILE + "\n"},
        "eval": {"eval": lines([evaluation(0, [episode(300, True)], success_test=HOSTILE, protocol=HOSTILE,
                                           tripwires=[wire])])},
        "episodes": {"episodes": lines([episode(300, True, at=at, pinch_fail=HOSTILE, reach_bin=HOSTILE,
                                                **{f"reward_{HOSTILE}": 1.0}) for at in (0, 2)]
                                       + [episode(1, True, at=1, phase="train", **{f"reward_{HOSTILE}": 1.0})])},
        "heartbeat": {},
    }[where]  # fmt: skip
    directory = write_run(tmp_path / "run", steps=2, before=(1,), after=(1,), **told)
    if where == "heartbeat":
        (directory / "heartbeat.json").write_text(json.dumps({"phase": HOSTILE, "step": HOSTILE, "tripwires": [wire]}))
    page = page_of(directory, "The defaults: " + HOSTILE if where == "config" else ())
    seen = Seen(html(page))
    assert {tag for tag, _ in seen.elements} <= ELEMENTS
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert all(image["src"].startswith("data:image/") for image in seen.of("img"))
    if where not in ("episodes", "eval"):
        assert "<script>alert(1)</script>" in seen.text, "it is told, as text"
    text = markdown(page)
    assert "<" not in text and not re.search(r"(?<!\\)\]\(", text) and not re.search(r"(?<!\\)`", text)


def test_a_cell_of_a_table_cannot_become_a_formula_of_a_spreadsheet():
    table = Table("t", ["a"], [["=1+1"], ["@x"], ["-2"], [-2.5], ['a,\n"b"'], [None]])
    rows = list(csv.reader(io.StringIO(as_csv(table))))
    assert rows == [["a"], ["'=1+1"], ["'@x"], ["'-2"], ["-2.5"], ['a,\n"b"'], [""]]


# --------------------------------------------------------------------------------------------- what is missing is named
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"train": None, "eval": None, "episodes": None}, "There is no held-out evaluation yet"),
        ({"train": "", "eval": "", "episodes": ""}, "No step is on record yet"),
        ({"train": lines([step(1)]), "eval": None}, "There is no held-out evaluation yet"),
        ({"train": lines([step(1)]) + '{"step": 2, "epis'}, "1 of 6 steps are on record"),
        ({"train": lines([step(1)]) + "no json\n" + lines([step(3)])}, "train.jsonl, line 2: it cannot be read"),
        ({"train": lines([{"step": 1}])}, "The rows of train.jsonl do not tell this"),
        ({"train": lines([{"step": 1, "successes": 3}, {"loss": 1}, ["x"], {"step": "2"}])}, "1 of 6 steps"),
        ({"train": lines([dict.fromkeys(step(1)) | {"step": 1}])}, "The rows of train.jsonl do not tell this"),
        ({"episodes": None}, "One held-out evaluation, after 6 updates: 3/4 successes"),
        ({"eval": lines([{"step": 0}, {"step": 6}])}, "cannot be compared"),
        ({"eval": lines([evaluation(0, [episode(300, True)])])}, "One held-out evaluation, after 0 updates: 1/1"),
        ({"config": None}, "config.yaml: there is none (yet)"),
        ({"config": ": not yaml ["}, "config.yaml: it cannot be read"),
        ({"config": "[]", "manifest": "[]"}, "There is no manifest that could be read"),
        ({"manifest": None}, "There is no manifest that could be read"),
        ({"manifest": "{"}, "There is no manifest that could be read"),
        ({"manifest": '{"launches": [1, {"git": 3, "registered": 7}]}'}, "launches"),
    ],
)  # fmt: skip
def test_a_run_that_lacks_something_has_a_report_that_says_so(tmp_path, files, says):
    data = html_of(write_run(tmp_path / "run", **files))
    assert says in Seen(data).text
    assert "Traceback" not in data.decode()


def test_updates_that_were_taken_back_and_wires_that_fired_are_named(tmp_path):
    wire = {"wire": "setback", "value": 0.75, "threshold": 0.5, "streak": 2, "mode": "armed"}
    rows = [step(1), step(2, rolled_back=True, step_skipped=True), step(3, tripwires=[wire])]
    text = Seen(html_of(write_run(tmp_path / "run", steps=3, train=lines(rows)))).text
    assert "Updates that were taken back: 2" in text and "tripwire setback, 0.75 against 0.5 (it stops the run)" in text


# ------------------------------------------------------------------------------------------------------- other forms
def test_csv_holds_all_rows_and_a_page_no_more_than_a_phone_can_show(tmp_path):
    many = [step(number) for number in range(1, 401)]
    page = page_of(write_run(tmp_path / "run", steps=400, train=lines(many)))
    files = csv_files(page)
    told = list(csv.DictReader(io.StringIO(files["kl.csv"])))
    assert len(told) == 400 and float(told[99]["from step 0"]) == 1.0
    seen = Seen(html(page))
    assert f"The first {MOST_ROWS} of 400 rows" in seen.text
    assert len(html(page)) < 1_500_000


def test_markdown_tells_the_headline_and_the_numbers(run):
    text = markdown(page_of(run))
    assert "Success on 4 held-out scenes" in text and "| updates | success" in text and "## Ratio, KL, surprise" in text


def test_films_are_inlined_while_there_is_room_and_named_after(tmp_path):
    for name, colour in (("a.gif", "red"), ("b.gif", "blue")):
        frames = [Image.new("RGB", (32, 16), c) for c in ("white", colour)]
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    (tmp_path / "c.avi").write_bytes(b"x")
    size = (tmp_path / "a.gif").stat().st_size
    told = films([(tmp_path / n, f"film {n}") for n in ("a.gif", "b.gif", "c.avi", "d.gif")], room=size)
    assert [film.data is not None for film in told] == [True, False, False, False]
    assert str(tmp_path / "b.gif") in told[1].left_out and "no more room" in told[1].left_out
    with Image.open(io.BytesIO(told[0].still)) as still:
        assert still.convert("RGB").getpixel((5, 5)) == (254, 0, 0) or still.convert("RGB").getpixel((5, 5))[0] > 200
    seen = Seen(html(page_of(write_run(tmp_path / "run"), films=told)))
    assert [image["alt"] for image in seen.of("img")] == ["Last picture. film a.gif", "Film. film a.gif"]
    assert all(image["src"].startswith("data:image/") for image in seen.of("img"))


def test_colours_of_a_dark_page_stand_out_from_it():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    paper = luminance(DARK["#ffffff"])
    for light, dark in DARK.items():
        if light not in ("#ffffff", "#dddddd", "#eeeeee"):  # paper, grid, the empty part of a bar
            assert (luminance(dark) + 0.05) / (paper + 0.05) >= 4.5, (light, dark)


def test_no_module_of_reports_loads_torch_or_a_simulator_or_matplotlib():
    names = [module.name for module in pkgutil.walk_packages(vla_rl.report.__path__, "vla_rl.report.")]
    assert "vla_rl.report.page.paper" in names and len(names) > 25
    code = f"import sys, importlib; [importlib.import_module(n) for n in {names!r}]; " + (
        "print([m for m in ('torch', 'mujoco', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------------------- command
def test_the_command_writes_the_page_into_the_run_and_tells_its_size(run, capsys):
    assert main(["report", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(run / "report.html") and told["sealed"] == [] and told["kind"] == "training run"
    assert told["files"] == [{"path": str(run / "report.html"), "bytes": (run / "report.html").stat().st_size}]
    assert "optim" in Seen((run / "report.html").read_bytes()).text, "what differs from the defaults is told"


def test_the_other_forms_lie_beside_it(run, tmp_path, capsys):
    out = tmp_path / "new" / "boat.html"
    assert main(["report", str(run), "-o", str(out), "--md", "--csv"]) == 0
    assert out.is_file() and out.with_suffix(".md").is_file()
    assert {"kl.csv", "scenes.csv", "deltas.csv"} <= {path.name for path in (tmp_path / "new" / "boat-csv").iterdir()}
    assert str(out) in capsys.readouterr().out and not (run / "report.html").exists()


def test_what_is_neither_run_nor_registration_is_refused_with_what_there_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "eval.json").write_text("{}")
    for what, says in (("nothing", "E002-weak-start"), ("../x", "registrations"), ("empty", "train.jsonl"),
                       ("eval", "train.jsonl"), ("", "train.jsonl")):  # fmt: skip
        assert main(["report", what]) == 2
        told = capsys.readouterr().err
        assert says in told and "remedy" in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--figures", "jpg"], "no format of figures"), (["--videos", "300"], "no checkpoint"),
        (["-o", "."], "this is a directory"), (["-o", "/proc/none/report.html"], "cannot be written"),
    ],
)  # fmt: skip
def test_wishes_that_cannot_be_met_are_refused(run, capsys, more, says):
    assert main(["report", str(run), *more]) == 2
    told = capsys.readouterr().err
    assert says in told and "remedy" in told


def test_without_matplotlib_figures_are_refused_with_the_remedy_and_nothing_is_written(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert main(["report", str(run), "--figures", "pdf"]) == 2
    assert "pip install 'vla-rl[figures]'" in capsys.readouterr().err and not (run / "report.html").exists()


def test_figures_for_a_paper_hold_every_chart(run, capsys):
    pytest.importorskip("matplotlib")
    assert main(["report", str(run), "--figures", "pdf,png"]) == 0
    folder = run / "report-figures"
    names = {chart.name for chart in page_of(run).charts()}
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("pdf", "png")}
    for name in names:
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width > 700 and len(picture.convert("L").getcolors(256)) > 2, "something is drawn"
    again = (folder / "kl.pdf").read_bytes()
    assert main(["report", str(run), "--figures", "pdf"]) == 0 and (folder / "kl.pdf").read_bytes() == again


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "vla-rl report E002-weak-start" in told and "examples" in told
