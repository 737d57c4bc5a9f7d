"""`vla-rl checkpoint`: look at a policy checkpoint without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vla_rl.cli.options import command_parser, print_json
from vla_rl.errors import EXIT_INTEGRITY, EXIT_OK, UsageError
from vla_rl.paths import BUNDLED, bundled_base

EXAMPLES = (
    "vla-rl checkpoint validate exported/boat",
    "vla-rl checkpoint validate MolmoAct2-SO100_101 --fast-tokenizer MolmoAct2-FAST-Tokenizer --json",
)


def run(argv: Sequence[str]) -> int:
    """Check a directory; exit code 0 if every promise is kept, 5 if one is not."""
    parser = command_parser(
        "checkpoint",
        "Check a policy checkpoint: layout, weights, ids, tables, joint frame, codec, provenance.",
        EXAMPLES,
    )
    parser.add_argument("action", choices=("validate",), help="validate: report every broken promise, not the first")
    parser.add_argument("directory", help="any directory, or bundled:NAME")
    parser.add_argument("--norm-tag", help="look at the tables of this tag alone")
    parser.add_argument("--fast-tokenizer", help="directory of the action codec, for a release that keeps it apart")
    parser.add_argument("--joint-frame", choices=("rig", "v21"), help="the frame that the tables are said to be in")
    options = parser.parse_args(list(argv))
    bundled = options.directory.startswith(BUNDLED)
    directory = bundled_base(options.directory.removeprefix(BUNDLED)) if bundled else Path(options.directory)
    if not directory.is_dir():
        raise UsageError("there is no such directory", where=options.directory)
    from vla_rl.policy.sources import Sources
    from vla_rl.policy.validate import OK, REFUSED, validate

    sources = Sources(options.norm_tag, options.fast_tokenizer, None, options.joint_frame)
    report = validate(directory, sources)
    if options.json:
        print_json({"valid": report.valid, **asdict(report)})
    else:
        width = max(len(finding.check) for finding in report.findings)
        for finding in report.findings:
            detail = finding.detail.replace("\n", "\n" + " " * (width + 11))
            print(f"{finding.state:<8} {finding.check:<{width}}  {detail}")
        refused = sum(finding.state == REFUSED for finding in report.findings)
        kept = sum(finding.state == OK for finding in report.findings)
        print(f"{report.directory}: {'valid' if report.valid else f'{refused} refused'}, {kept} checks passed")
    return EXIT_OK if report.valid else EXIT_INTEGRITY
