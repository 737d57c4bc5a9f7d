"""Gradients of token tables for the rows that can receive one, and memory for no other.

In: a policy, and which of its parameters may move. Out: beside each token table (embedding, output head) a leaf with
the rows that a pass can reach; the optimiser holds the leaf. Left out: which weights may move (`vla_rl.rl.surfaces`).

A release has 155,648 rows in each table, and a policy feeds and predicts some 2,400 of them: its prompt, the state bins
and the action block. torch makes the gradient of a whole table in every pass. Here the table itself is frozen. Values
are read from it as ever; where gradients are on, a tap of its rows leads them to the leaf, so that a gradient of the
table is never made. Before a step the leaf takes the table's rows, afterwards the table takes the leaf's.

That is exact. A row without gradient has moments of zero and stays where it is, except for weight decay, which needs no
moments: the whole table gets AdamW's own factor before the step. Rows add up their gradients in the order in which the
whole table would. The norm over a leaf is that over the table up to the order of a sum with zeros in it: on a CPU the
same bits for rows of whole vectors (16 numbers), on a GPU up to rounding.

A table stays as it is where it is not known to be read in these two ways alone: under an adapter without `fed_ids`, and
in an embedding that does more than to look up.

Shapes: V rows of the table, N of the leaf, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vla_rl.policy.policy import VlaPolicy

_MARK = "row_gradient"  # of a table that has one


class RowGradient:
    """The rows of one table that can receive a gradient.

    Args:
        table: [V, D]; frozen from now on.
        rows: which, int64 [N], sorted.

    Attributes:
        leaf: [N, D], what an optimiser holds in the table's place; its values count during a step only.
    """

    def __init__(self, table: nn.Parameter, rows: Tensor) -> None:
        self.table, self.rows = table.requires_grad_(False), rows
        self.leaf = nn.Parameter(table.detach()[rows])
        self._places_V = torch.full((len(table),), len(rows), device=rows.device)  # N: nowhere
        self._places_V[rows] = torch.arange(len(rows), device=rows.device)
        self._hooks: list[Any] = []

    def __deepcopy__(self, _: Any) -> RowGradient:
        return self  # copies of a network share it, and it does nothing for them

    def follow(self, embedding: nn.Embedding) -> None:
        """Lead gradients of what an embedding looks up to the leaf."""
        nowhere = embedding.padding_idx  # torch gives that row no gradient
        if nowhere is not None:
            self._places_V[nowhere] = len(self.rows)
        self._hooks.append(embedding.register_forward_hook(self._looked_up))

    def read(self, columns: slice) -> Tensor:
        """Rows of the table, as values with a way back to the leaf."""
        return _Read.apply(self.leaf, self.table.detach()[columns], self._places_V[columns])

    def release(self) -> None:
        """The table takes gradients of its own again."""
        for hook in self._hooks:
            hook.remove()
        delattr(self.table, _MARK)
        self.table.requires_grad_(True)

    @torch.no_grad()
    def fetch(self, decay: float) -> None:
        """Before a step: the leaf is the table's rows.

        Args:
            decay: what the other rows lose, as a share; the leaf is left to the optimiser.
        """
        self.leaf.copy_(self.table[self.rows])
        if decay:
            self.table.mul_(1 - decay)

    @torch.no_grad()
    def store(self) -> None:
        """After a step: the table's rows are the leaf."""
        self.table.index_copy_(0, self.rows, self.leaf)

    def _looked_up(self, embedding: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if torch.is_grad_enabled() and embedding.weight is self.table:
            return _LookedUp.apply(self.leaf, output, self._places_V[inputs[0]])
        return None


class _LookedUp(torch.autograd.Function):
    """Values of an embedding, whose gradient goes to a leaf of some of its rows."""

    @staticmethod
    def forward(ctx: Any, leaf_ND: Tensor, values: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(leaf_ND)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (places,) = ctx.saved_tensors
        made = torch.ops.aten.embedding_dense_backward(gradients[0], places, ctx.count, ctx.count, False)
        return made, None, None


class _Read(torch.autograd.Function):
    """Rows of a table in a row, whose gradient goes to a leaf that holds all of them."""

    @staticmethod
    def forward(ctx: Any, leaf_ND: Tensor, values: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = leaf_ND.shape
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (places,) = ctx.saved_tensors
        return gradients[0].new_zeros(ctx.shape).index_copy_(0, places, gradients[0]), None, None


def attach(policy: VlaPolicy, names: Iterable[str], moving: slice | None = None) -> None:
    """Give the token tables among some parameters a leaf of their rows; see the module for those that get none.

    Args:
        names: of the parameters that may move.
        moving: rows that may; None: all.
    """
    fed_ids = getattr(policy.adapter, "fed_ids", None)
    embedding, head = policy.model.get_input_embeddings(), policy.model.get_output_embeddings()
    if fed_ids is None or not _looks_up(embedding):
        return
    fed, first = fed_ids(policy), policy.prompt.ids.action_block
    block = torch.arange(first, first + policy.vocabulary, device=fed.device)
    reached = {id(head.weight): block, id(embedding.weight): fed}  # a tied head's block is among what is fed
    for name in names:
        table = policy.model.get_parameter(name)
        if (rows := reached.get(id(table))) is not None:
            if moving is not None:
                rows = rows[(rows >= moving.start) & (rows < moving.stop)]
            made = RowGradient(table, rows)
            setattr(table, _MARK, made)
            if table is embedding.weight:
                made.follow(embedding)


def detach(model: nn.Module) -> None:
    """Tables are whole again."""
    for table in model.parameters():
        if (found := row_gradient(table)) is not None:
            found.release()


def row_gradient(table: Tensor) -> RowGradient | None:
    """What stands beside a table; None for other parameters, and for tables that get a gradient of their own."""
    return getattr(table, _MARK, None)


def leaf_of(parameter: nn.Parameter) -> nn.Parameter:
    """What an optimiser holds of a parameter, and what gets its gradient: mostly the parameter itself."""
    found = row_gradient(parameter)
    return parameter if found is None else found.leaf


def read_rows(table: Tensor, columns: slice) -> Tensor:
    """``table[columns]`` for a head, with its gradient where it belongs."""
    found = row_gradient(table)
    return table[columns] if found is None or not torch.is_grad_enabled() else found.read(columns)


def step_tables(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Have every step of an optimiser over the leaves move the tables."""
    tables = [found for parameter in parameters if (found := row_gradient(parameter)) is not None]

    def before(stepped: Any, *_: Any) -> None:
        for group in cast(torch.optim.Optimizer, stepped).param_groups:
            held = {id(parameter) for parameter in group["params"]}
            for table in tables:
                if id(table.leaf) in held and table.leaf.grad is not None:
                    table.fetch(group["lr"] * group["weight_decay"])

    def after(*_: Any) -> None:
        for table in tables:
            if table.leaf.grad is not None:
                table.store()

    if tables:
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)


def _looks_up(embedding: nn.Module) -> bool:
    """Whether a module is an embedding that gives its rows as they are, and their gradients in full."""
    if type(embedding) is not nn.Embedding:
        return False
    return embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse
