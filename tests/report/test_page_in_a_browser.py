"""Pages in a real browser, where there is one: nothing is wider than a phone, and every form shows something."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import write_run

from vla_rl.cli.main import main

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here: apt-get install chromium"),
]
EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
PHONE = """<body style="margin:0"><iframe style="border:0;width:{width}px;height:9000px" src="page.html"></iframe>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  for (const each of page.querySelectorAll("details")) each.open = true;
  const wide = [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, nav, .hidden, .skip")
    && e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + "." + e.className);
  document.title = JSON.stringify({{scroll: root.scrollWidth, wide: wide.slice(0, 9)}});
}}</script>"""


def browser(tmp_path, *flags):
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", *flags],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(params=["run", "registration"])
def page(request, tmp_path):
    what = "E005-hot" if request.param == "registration" else str(write_run(tmp_path / "run", steps=60))
    assert main(["report", what, "-o", str(tmp_path / "page.html")]) == 0
    return tmp_path / "page.html"


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_but_what_scrolls_by_itself_is_wider_than_a_phone(page, tmp_path, width):
    (tmp_path / "phone.html").write_text(PHONE.format(width=width))
    told = browser(tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=8000", "--dump-dom",
                   (tmp_path / "phone.html").as_uri())  # fmt: skip
    assert re.search(r"<title>(.*?)</title>", told)[1] == f'{{"scroll":{width},"wide":[]}}'


def test_light_and_dark_pages_are_what_their_names_say(page, tmp_path):
    brightness = {}
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{name}.png"
        browser(tmp_path, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,3000",
                f"--screenshot={picture}", page.as_uri())  # fmt: skip
        pixels = np.asarray(Image.open(picture).convert("L"))
        assert pixels.std() > 8, "something is drawn"
        brightness[name] = float(np.median(pixels))
    assert brightness["light"] > 230 and brightness["dark"] < 50


def test_a_page_is_printed(page, tmp_path):
    browser(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", page.as_uri())
    data = (tmp_path / "page.pdf").read_bytes()
    assert data.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 30
