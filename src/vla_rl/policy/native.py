"""What every network read through transformers' own loader needs: quiet while it loads, memory of its own afterwards.

In: a block of code, or a loaded network. Out: no progress bars, no mapped file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bars, which would stand between ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@torch.no_grad()
def own_memory(model: Any) -> None:
    """Copy every parameter, one by one: some may still be views of mapped files.

    A file that is cut short under a mapping kills the process that reads it; and where a tensor starts in a file would
    decide its alignment, hence how a matrix product rounds.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
