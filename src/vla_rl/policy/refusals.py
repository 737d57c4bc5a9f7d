"""Why a checkpoint is refused: one named error a reason.

In: what was found. Out: an error whose class (and `name`, which messages and `vla-rl checkpoint validate` print) says
which promise of the layout is broken. A checkpoint that contradicts itself is an integrity failure (exit code 5); a key
of the configuration that no checkpoint could satisfy is a configuration error (exit code 2).
"""

from __future__ import annotations

from vla_rl.errors import ConfigError, IntegrityError, VlaRlError


class _Named(VlaRlError):
    """Says its own name first."""

    name = "checkpoint"

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(f"checkpoint refused ({self.name}): {what}", where=where, remedy=remedy)


class CheckpointRefused(_Named, IntegrityError):
    """Base of all refusals of a directory's content."""


class DamagedFile(CheckpointRefused):
    """A file is cut short, unreadable, or holds numbers that are not finite."""

    name = "damaged-file"


class MissingWeights(CheckpointRefused):
    """A weight that the network needs is not stored; loading it anyway would leave random numbers in its place."""

    name = "missing-weights"


class UnexpectedWeights(CheckpointRefused):
    """A weight is stored that belongs neither to the network nor to the action expert."""

    name = "unexpected-weights"


class MismatchedWeights(CheckpointRefused):
    """A weight has another shape or number format than the configuration says."""

    name = "mismatched-weights"


class OneHead(CheckpointRefused):
    """One of the two action heads that the configuration declares is missing or was never trained."""

    name = "one-head"


class VocabularyLayout(CheckpointRefused):
    """Token families do not stand where the tables of the network expect them."""

    name = "vocabulary-layout"


class ActionIds(CheckpointRefused):
    """Action tokens are out of order, or configuration and tokenizer disagree about them."""

    name = "action-ids"


class JointFrame(CheckpointRefused):
    """The state table fits no joint frame, or another one than was declared."""

    name = "joint-frame"


class UnsupportedFeature(CheckpointRefused):
    """The checkpoint was trained with an input or a module that is not built here."""

    name = "unsupported-feature"


class CodecMismatch(CheckpointRefused):
    """The action codec does not belong to the network's action block or to the tables."""

    name = "codec"


class TableFormat(CheckpointRefused):
    """The normalisation tables cannot be read."""

    name = "tables"


class SchemaVersion(CheckpointRefused):
    """The metadata was written by a newer version of the package, or is damaged."""

    name = "schema-version"


class ReceiptMismatch(CheckpointRefused):
    """A file or a weight is not the one that the export's receipt describes."""

    name = "receipt"


class UnknownNormTag(_Named, ConfigError):
    """The normalisation tag asked for is not in the checkpoint."""

    name = "norm-tag"


class MissingCodec(_Named, ConfigError):
    """No FAST artifact was found for the checkpoint."""

    name = "missing-codec"
