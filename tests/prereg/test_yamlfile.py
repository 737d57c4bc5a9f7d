"""YAML of registrations: it means what it looks like, or it is refused with its line."""

import random

import pytest
from documents import mapping

from vla_rl.errors import ConfigError
from vla_rl.prereg import yamlfile
from vla_rl.prereg.canonical import same


def test_words_and_numbers_are_read_as_json_reads_them():
    text = b"a: [off, yes, 0123, 2026-01-01, .inf, .nan, 1e-6, 1.0, 1, true, null, ~, -0]\n"
    read = yamlfile.load(text, "r")["a"]
    assert same(
        read, ["off", "yes", "0123", "2026-01-01", ".inf", ".nan", 1e-6, 1.0, 1, True, None, None, 0]
    ), read  # fmt: skip


@pytest.mark.parametrize("text, says", [
    ("a: 1\na: 2", "given twice"), ("a: 1\nb: &x 1\nc: *x", "anchors and aliases"), ("a: 1\nb: !!set {x}", "the tag"),
    ("a: 1\n1: 2", "no text"), ("a: 1\nb: 1e999", "1e999 is no finite number"), ("a: 1\nb: -1e999", "no finite number"),
    ("a: 1\nb: [1,\n", "no YAML"),
])  # fmt: skip
def test_what_is_refused_is_named_with_its_line(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        yamlfile.load(text.encode(), "r.yaml")
    assert "r.yaml, line " in str(caught.value.where) and caught.value.where != "r.yaml, line 1"


def test_what_is_written_reads_back_as_the_same_value():
    rng = random.Random(3)
    for _ in range(500):
        document = mapping(rng)
        assert same(yamlfile.load(yamlfile.dump(document).encode(), "r"), document), document
