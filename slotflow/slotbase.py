"""What both kinds of slot attention share: their parameters, starts and output."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

Parameterisation = Literal["factorised", "collapsed"]


class SlotOutput(NamedTuple):
    """What slot attention returns, indexed by slot, whatever the order of processing.

    ``slots`` (B, S, D). ``attention`` (B, S, L), 0 on masked tokens: for evidence depletion
    each slot's distribution over tokens; for vanilla slot attention each token's distribution
    over slots (times the bias' weight, if there is one). ``evidence`` (B, S + 1, L), 0 on
    masked tokens: at the start and after each slot, in the order of processing; vanilla slot
    attention depletes none.
    """

    slots: Tensor
    attention: Tensor
    evidence: Tensor

    @property
    def weights(self) -> Tensor:
        """The attention normalised over tokens, (B, S, L); zeros where no token is valid."""
        return normalise(self.attention)


def normalise(attention: Tensor) -> Tensor:
    """Divide by the sum over tokens; rows of zeros stay zeros."""
    return attention / attention.sum(-1, keepdim=True).clamp(min=1e-8)


class SlotAttention(nn.Module):
    """The parameters both kinds share, under the names of the author's reference.

    Args:
        n_slots: S.
        width: D, of tokens and slots.
        iterations: refinements of each slot.
        learned_starts: each slot has a start of its own (``slot_start``), instead of an
            exchangeable draw from a learned Gaussian (``slot_mu``, ``slot_sigma``).
        parameterisation: collapsed: one matrix ``proj_qk`` for W_k^T W_q, and W_v in the GRU's
            input weights; it starts as the product of a factorised one's weights.
    """

    def __init__(
        self, n_slots: int, width: int, iterations: int, learned_starts: bool,
        parameterisation: Parameterisation = "factorised",
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_slots = n_slots
        self.width = width
        self.iterations = iterations
        self.learned_starts = learned_starts
        if learned_starts:
            self.slot_start = nn.Parameter(torch.randn(n_slots, width))
        else:
            self.slot_mu = nn.Parameter(torch.randn(1, 1, width) * 0.1)
            self.slot_sigma = nn.Parameter(torch.full((1, 1, width), 0.1))
        self.norm_in = nn.LayerNorm(width)
        self.norm_s = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.proj_q = nn.Linear(width, width)
        self.proj_k = nn.Linear(width, width)
        self.proj_v = nn.Linear(width, width)
        self.gru = nn.GRUCell(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.collapsed = parameterisation == "collapsed"
        if self.collapsed:
            self._collapse()

    def _collapse(self) -> None:
        """Put products in place of the factors."""
        query, key, value = self.proj_q, self.proj_k, self.proj_v
        self.proj_qk = nn.Linear(self.width, self.width)
        with torch.no_grad():
            self.proj_qk.weight.copy_(key.weight.T @ query.weight)
            self.proj_qk.bias.copy_(key.weight.T @ query.bias)
            self.gru.bias_ih.addmv_(self.gru.weight_ih, value.bias)
            self.gru.weight_ih.copy_(self.gru.weight_ih @ value.weight)
        del self.proj_q, self.proj_k, self.proj_v

    def query_key(self) -> list[tuple[nn.Parameter, int | None]]:
        """Return the parameters that say which tokens a slot looks at, all whole."""
        parts = (self.proj_qk,) if self.collapsed else (self.proj_q, self.proj_k)
        return [(parameter, None) for part in parts for parameter in part.parameters()]

    def starts(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Return the slots' first states, (B, S, D).

        In evaluation without a generator all samples have the same, drawn once and for all, so
        that a result depends on neither the batch nor what was drawn before.
        """
        if self.learned_starts:
            return self.slot_start.expand(batch, -1, -1)
        mu = self.slot_mu
        fixed = generator is None and not self.training
        if fixed:
            generator = torch.Generator().manual_seed(0)
        noise = torch.randn(
            (1 if fixed else batch, self.n_slots, self.width),
            generator=generator,
            device=mu.device if generator is None else generator.device,
            dtype=mu.dtype,
        )
        return (mu + self.slot_sigma * noise.to(mu.device)).expand(batch, -1, -1)

    def order(self, generator: torch.Generator | None = None) -> list[int]:
        """Return the order of processing: random in training, 0..S-1 in evaluation."""
        if not self.training:
            return list(range(self.n_slots))
        device = "cpu" if generator is None else generator.device
        drawn: list[int] = torch.randperm(self.n_slots, generator=generator, device=device).tolist()
        return drawn

    def update(self, slots: Tensor, reading: Tensor) -> Tensor:
        """Refine (N, D) slots by what they read, (N, D)."""
        slots = self.gru(reading, slots)
        refined: Tensor = slots + self.mlp(self.norm_mlp(slots))
        return refined

    def inputs(self, tokens: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        """Check shapes and return the normalised tokens, (B, L, D); masked tokens read as 0.

        Masked tokens are zeroed first, so that whatever they hold, NaN included, is not seen.
        """
        batch, length = mask.shape
        if tokens.shape != (batch, length, self.width):
            expected = (batch, length, self.width)
            raise ValueError(f"tokens: expected shape {expected}; got {tuple(tokens.shape)}")
        if bias is not None and bias.shape != mask.shape:
            raise ValueError(f"bias: expected shape {tuple(mask.shape)}; got {tuple(bias.shape)}")
        normalised: Tensor = self.norm_in(tokens.masked_fill(~mask.unsqueeze(-1), 0.0))
        return normalised
