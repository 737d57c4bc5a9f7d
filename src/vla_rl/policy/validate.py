"""Is this directory a checkpoint that can be loaded, trained and trusted: all findings, not the first.

In: any directory. Out: a `Report` with one `Finding` a promise: configuration, heads, weights, ids, inputs, tables,
joint frame, codec, numbers, provenance. The checks are those that loading makes (`vla_rl.policy.released`, `tables`,
`parts`), and two that would be too slow there: every stored number is looked at, the expert's included, and every
digest of the receipt is taken again. Nothing is loaded into a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vla_rl.errors import VlaRlError
from vla_rl.policy import released
from vla_rl.policy.heads import HEADS, NAMES, is_stale
from vla_rl.policy.hf_network import check_family, check_hf_weights
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.parts import Parts, check_block
from vla_rl.policy.receipt import check_receipt, read_receipt
from vla_rl.policy.refusals import DamagedFile
from vla_rl.policy.sources import (
    Sources,
    declared_frame,
    find_codec,
    read_codec,
    read_config,
    read_training_scene,
    stats_file,
)
from vla_rl.policy.tables import arm_tags, check_joint_frame, read_tables
from vla_rl.policy.weightfiles import PICKLES, WeightFiles, check_finite

OK, REFUSED, SKIPPED = "ok", "refused", "skipped"


@dataclass(frozen=True)
class Finding:
    """One promise and whether it is kept.

    Attributes:
        check: what was looked at.
        state: ``ok``, ``refused``, or ``skipped`` because something that it builds on was refused.
        detail: what was found; for a refusal what, where and remedy.
        refusal: name of the refusal, see `vla_rl.policy.refusals`.
    """

    check: str
    state: str
    detail: str
    refusal: str | None = None


@dataclass(frozen=True)
class Report:
    """All findings about a directory."""

    directory: str
    findings: tuple[Finding, ...]

    @property
    def valid(self) -> bool:
        return all(finding.state == OK for finding in self.findings)


def validate(directory: Path, sources: Sources) -> Report:
    """Check everything that a checkpoint promises.

    Args:
        directory: any directory.
        sources: what a configuration would say; with several normalisation tags and none named, all are looked at.
    """
    return _Validation(directory, sources).run()


class _Validation:
    """Runs the checks in order and keeps what later ones need; what was refused is None."""

    def __init__(self, directory: Path, sources: Sources) -> None:
        self.directory, self.sources = directory, sources
        self.findings: list[Finding] = []
        self.opened: Any = None

    def run(self) -> Report:
        at = self.directory
        self.metadata = self._check("metadata", lambda: read_metadata(at), _metadata)
        self.raw = self._check("configuration", lambda: _configuration(at), lambda r: str(r.get("model_type")))
        files: Any = self._check("files", lambda: WeightFiles.open(at), _shards)
        self.tokenizer = self._check(
            "tokenizer", lambda: released.read_tokenizer(at), lambda t: f"{t.get_vocab_size()} ids"
        )
        if self.metadata is None or self.metadata.adapter is None:
            self._molmo2(files)
        else:
            self._check("layout", lambda: check_family(at), lambda _: "a model that was given action tokens")
            self._check("weights", lambda: check_hf_weights(at), lambda _: "all stored, in shape", needs=(files,))
        self._check("numbers", lambda: check_finite(_all(files), where=str(at)), lambda _: "all finite", needs=(files,))
        self._actions()
        self._check("pickles", lambda: _no_pickles(at), lambda _: "none")
        self._check("provenance", lambda: _provenance(at), str, needs=(files,))
        return Report(str(at), tuple(self.findings))

    def _molmo2(self, files: Any) -> None:
        """Configuration, weights and tokenizer of a Molmo2-layout network against each other."""
        at, tokenizer = self.directory, self.tokenizer
        opened = self.opened = self._check(
            "layout",
            lambda: released.Opened.of(at),
            lambda o: "release" if o.released else "twin",
            needs=(self.raw, files),
        )
        for name, look, say in (
            ("heads", released.check_heads, _heads),
            ("inputs", released.check_inputs, lambda _: "as built here"),
            ("weights", released.check_weights, lambda _: "all stored, in shape"),
            ("rotary", released.check_rotary, lambda _: "as configured"),
        ):
            self._check(name, lambda look=look: look(opened), lambda _, say=say: say(opened), needs=(opened,))
        self._check(
            "ids",
            lambda: released.check_ids(opened.raw, tokenizer, where=str(at)),
            lambda _: f"{opened.raw['num_action_tokens']} action tokens from {opened.raw['action_token_start_id']}",
            needs=(opened, tokenizer),
        )

    def _actions(self) -> None:
        """The codec, and the tables of the tag in question or of every tag for this arm."""
        at, name = self.directory, stats_file(self.raw or {})
        wanted = self.sources.norm_tag or (self.metadata.norm_tag if self.metadata else None)
        tags = (wanted,) if wanted else self._check("tags", lambda: arm_tags(at, name), ", ".join) or ()
        codec_at = self._check("codec files", lambda: find_codec(at, self.sources), str)
        for tag in tags:
            self._tag(name, tag, codec_at)

    def _tag(self, name: str, tag: str, codec_at: Any) -> None:
        at, metadata, opened = self.directory, self.metadata, self.opened
        network = opened or (metadata and metadata.adapter)  # one of another family has its adapter's parameters
        tables: Any = self._check(
            f"tables of {tag}", lambda: read_tables(at, tag=tag, file_name=name), lambda t: f"{t.stats.horizon} ticks"
        )
        frame: Any = self._check(
            f"joint frame of {tag}",
            lambda: check_joint_frame(
                tables.stats.state, declared_frame(self.sources, metadata, self.raw), where=str(at / name)
            ),
            str,
            needs=(tables, metadata, self.raw),
        )

        def codec() -> Any:
            found = read_codec(codec_at, tables)
            check_block(Parts(at, metadata, opened, self.tokenizer, name, tables, found, codec_at))
            return found

        self._check(
            f"codec for {tag}",
            codec,
            lambda c: f"{c.vocabulary} bins, {int((c.lengths_V > 0).sum())} of them learned, {c.symbols} symbols",
            needs=(metadata, self.raw, self.tokenizer, tables, frame, codec_at, network),
        )

    def _check(
        self, name: str, look: Callable[[], Any], say: Callable[[Any], str], *, needs: tuple[Any, ...] = ()
    ) -> Any:
        """Run one check; its result, or None if it was refused or could not be made."""
        if any(part is None for part in needs):
            self.findings.append(Finding(name, SKIPPED, "something that it builds on was refused"))
            return None
        try:
            result = look()
        except VlaRlError as error:
            self.findings.append(Finding(name, REFUSED, error.render(), getattr(error, "name", "configuration")))
            return None
        except Exception as error:  # a kind of damage that no check foresaw must not hide what the others find
            self.findings.append(Finding(name, REFUSED, f"it cannot be checked: {error!r}", DamagedFile.name))
            return None
        self.findings.append(Finding(name, OK, say(result)))
        return result


def _configuration(directory: Path) -> dict[str, Any]:
    raw = read_config(directory)
    stats_file(raw)
    return raw


def _shards(files: WeightFiles) -> str:
    return f"{len(files.entries)} tensors in {len(files.shards)} files"


def _metadata(metadata: Any) -> str:
    stale = [f"{NAMES[head]} stale" for head in HEADS if is_stale(metadata.heads, head)]
    return ", ".join([f"schema version {metadata.version}", *stale])


def _heads(opened: Any) -> str:
    return f"token head, and {len(opened.expert)} tensors of a flow-matching expert" if opened.expert else "token head"


def _all(files: WeightFiles) -> Iterable[tuple[str, Tensor]]:
    return files.tensors(files.entries)


def _no_pickles(directory: Path) -> None:
    found = sorted(p.name for p in directory.rglob("*") if p.suffix in PICKLES)
    if found:
        raise DamagedFile(
            f"{found[0]} is a pickle, which can run code when it is opened",
            where=str(directory),
            remedy="delete it; only safetensors files are read",
        )


def _provenance(directory: Path) -> str:
    read_training_scene(directory)
    receipt = read_receipt(directory)
    if receipt is None:
        return "no receipt: not an export"
    check_receipt(directory, receipt)
    source = receipt.source
    return f"as exported {receipt.written} from {source.get('kind', '?')} {source.get('name', '')}".rstrip()
