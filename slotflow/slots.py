"""Slot attention over tokens: evidence depletion, and the vanilla baseline.

Evidence depletion (arXiv:2605.02323, algorithm 1) lets the slots read the tokens one after
another. Every token carries evidence e in [epsilon, 1], at first 1. A slot s refines itself
a few times by

    alpha = softmax over tokens of  q . W_k(e h) / (tau sqrt d) + gamma log e          (eq. 5)
    s <- GRU(sum alpha W_v(e h), s),   s <- s + MLP(LN s)

and then lowers the evidence of what it read, e <- max(e (1 - f(alpha)), epsilon)      (eq. 6),
so that the next slot looks elsewhere. Gradients flow through e, unless ``evidence_gradient`` is
off.

The projections are linear, so no token needs to be projected at all: q . W_k(e h) =
e (W_k^T q) . h, up to a constant of the slot that the softmax does not see, and
sum alpha W_v(e h) = W_v (sum alpha e h) + b_v, whose W_v goes into the GRU's own input weights.
The same numbers (to rounding) as with keys and values made anew for each slot.
"""

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn

from slotflow.attend import Match, Read
from slotflow.slotbase import Parameterisation, SlotAttention, SlotOutput, normalise

Depletion = Literal["linear", "quadratic", "cubic", "binary"]

#: Evidence below this counts as this in the logarithm (as in the author's reference).
LOG_FLOOR = 1e-6
#: Logit of a masked token: exp of it is 0 beside any valid one, and it stays finite.
HOPELESS = -1e30


def deplete(evidence: Tensor, alpha: Tensor, form: Depletion, epsilon: float) -> Tensor:
    """Return max(e (1 - f(alpha)), epsilon) (eq. 6); ``evidence`` and ``alpha`` alike in shape.

    f is alpha, its square, its cube, or 1 where alpha >= 0.5.
    """
    if form == "linear":
        left = 1 - alpha
    elif form == "quadratic":
        left = 1 - alpha**2
    elif form == "cubic":
        left = 1 - alpha**3
    elif form == "binary":
        left = (alpha < 0.5).to(alpha.dtype)
    else:
        raise ValueError(f"depletion: expected linear, quadratic, cubic or binary; got {form!r}")
    return (evidence * left).clamp(min=epsilon)


class _Absorbed(NamedTuple):
    """Weights of a slot's query, (D, D) and (D,), and of its GRU's input, (3 D, D) and (3 D,)."""

    query: Tensor
    query_bias: Tensor
    gates: Tensor
    gates_bias: Tensor


class SequentialSlotAttention(SlotAttention):
    """Slots that read one after another and leave no trace: evidence depletion without evidence.

    It isolates what the sequence alone does (the ``sequential`` baseline of arXiv:2605.02323).

    Args:
        n_slots, width, iterations, learned_starts, parameterisation: see the base class.
        tau: temperature of the attention.
        gamma, depletion, epsilon, evidence_gradient: only evidence depletion has them; accepted
            without effect, so that all kinds are built from the same settings.
    """

    def __init__(
        self,
        n_slots: int = 5,
        width: int = 96,
        iterations: int = 3,
        gamma: float = 3.0,
        tau: float = 0.3,
        depletion: Depletion = "quadratic",
        epsilon: float = 1e-4,
        learned_starts: bool = False,
        parameterisation: Parameterisation = "factorised",
        evidence_gradient: bool = True,
    ) -> None:
        super().__init__(n_slots, width, iterations, learned_starts, parameterisation)
        self.tau = tau

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        bias: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> SlotOutput:
        """Read (B, L, D) tokens, of which ``mask`` (B, L) tells the valid ones.

        Args:
            tokens: (B, L, D).
            mask: (B, L) bool, True where a token is valid. A sample without any gives zero
                attention and finite slots.
            bias: (B, L), added to every slot's attention logits; finite where valid.
            generator: draws the starts (unless learned) and, in training, the order.
        """
        h = self.inputs(tokens, mask, bias)
        starts = self.starts(len(h), generator)
        absorbed = self._absorb()
        fixed = self._fixed_logits(mask, bias)
        evidence = torch.ones_like(h[..., 0])
        trail = [evidence]
        slots: list[Tensor] = [starts.new_empty(0)] * self.n_slots
        attention = list(slots)
        for s in self.order(generator):
            logits = self.offset(fixed, evidence)
            slots[s], alpha = self._refine(starts[:, s], h, evidence * mask, logits, absorbed)
            attention[s] = alpha * mask
            evidence = self.deplete(evidence, attention[s])
            trail.append(evidence)
        return SlotOutput(
            torch.stack(slots, 1),
            torch.stack(attention, 1),
            torch.stack(trail, 1).masked_fill(~mask.unsqueeze(1), 0.0),
        )

    def offset(self, fixed: Tensor, evidence: Tensor) -> Tensor:
        """Return what is added to a slot's logits, (B, L), before it reads."""
        return fixed

    def deplete(self, evidence: Tensor, alpha: Tensor) -> Tensor:
        """Return the evidence, (B, L), that a slot of attention ``alpha`` leaves."""
        return evidence

    def _fixed_logits(self, mask: Tensor, bias: Tensor | None) -> Tensor:
        """The part of the logits that all slots share, (B, L); hopeless where masked.

        The bias of the keys adds the same to all logits of a slot, so the softmax does not
        see it; it enters with weight 0 so that every parameter has a gradient.
        """
        fixed = self.norm_in.weight.new_zeros(())
        if not self.collapsed:
            fixed = (0.0 * self.proj_k.bias).sum()
        fixed = fixed + bias if bias is not None else fixed.expand(mask.shape)
        return fixed.masked_fill(~mask, HOPELESS)

    def _absorb(self) -> _Absorbed:
        """Fold the projections of keys and values into what each slot computes anyway."""
        scale = 1.0 / (self.tau * self.width**0.5)
        if self.collapsed:
            query = self.proj_qk
            return _Absorbed(
                scale * query.weight, scale * query.bias, self.gru.weight_ih, self.gru.bias_ih
            )
        keys, gates = self.proj_k.weight, self.gru.weight_ih
        return _Absorbed(
            scale * (keys.T @ self.proj_q.weight),
            scale * (keys.T @ self.proj_q.bias),
            gates @ self.proj_v.weight,
            torch.addmv(self.gru.bias_ih, gates, self.proj_v.bias),
        )

    def _refine(
        self, slot: Tensor, h: Tensor, evidence: Tensor, offset: Tensor, w: _Absorbed
    ) -> tuple[Tensor, Tensor]:
        """Refine one slot, (B, D), against the evidence left; return it and its attention."""
        alpha = evidence
        for _ in range(self.iterations):
            query = nn.functional.linear(self.norm_s(slot), w.query, w.query_bias)
            alpha = torch.softmax(torch.addcmul(offset, evidence, Match.apply(query, h)), -1)
            reading = Read.apply(alpha * evidence, h)
            slot = torch.gru_cell(
                reading, slot, w.gates, self.gru.weight_hh, w.gates_bias, self.gru.bias_hh
            )
            slot = slot + self.mlp(self.norm_mlp(slot))
        return slot, alpha


class EvidenceDepletion(SequentialSlotAttention):
    """Sequential slot attention with evidence depletion.

    Args:
        n_slots, width, iterations, learned_starts, parameterisation: see the base class.
        gamma: strength of the bias gamma log e.
        tau: temperature of the attention.
        depletion: the form f.
        epsilon: floor of the evidence.
        evidence_gradient: gradients flow through e, as in the paper. Each slot multiplies what
            comes back through gamma log e by up to gamma, so that with many slots it grows
            exponentially; False stops it there (our choice), and no output changes.
    """

    def __init__(
        self,
        n_slots: int = 5,
        width: int = 96,
        iterations: int = 3,
        gamma: float = 3.0,
        tau: float = 0.3,
        depletion: Depletion = "quadratic",
        epsilon: float = 1e-4,
        learned_starts: bool = False,
        parameterisation: Parameterisation = "factorised",
        evidence_gradient: bool = True,
    ) -> None:
        super().__init__(
            n_slots, width, iterations, tau=tau, learned_starts=learned_starts,
            parameterisation=parameterisation,
        )  # fmt: skip
        self.gamma = gamma
        self.depletion: Depletion = depletion
        self.epsilon = epsilon
        self.evidence_gradient = evidence_gradient

    def offset(self, fixed: Tensor, evidence: Tensor) -> Tensor:
        """Add gamma log e to the logits."""
        return fixed + self.gamma * torch.log(evidence.clamp(min=LOG_FLOOR))

    def deplete(self, evidence: Tensor, alpha: Tensor) -> Tensor:
        """Lower the evidence by what was read (eq. 6)."""
        left = deplete(evidence, alpha, self.depletion, self.epsilon)
        return left if self.evidence_gradient else left.detach()


class VanillaSlotAttention(SlotAttention):
    """Parallel slot attention: each token is shared out over the slots by a softmax.

    The arguments that only evidence depletion has are accepted and have no effect, so that
    both are built from the same settings.
    """

    def __init__(
        self,
        n_slots: int = 5,
        width: int = 96,
        iterations: int = 3,
        gamma: float = 3.0,
        tau: float = 0.3,
        depletion: Depletion = "quadratic",
        epsilon: float = 1e-4,
        learned_starts: bool = False,
        parameterisation: Parameterisation = "factorised",
        evidence_gradient: bool = True,
    ) -> None:
        super().__init__(n_slots, width, iterations, learned_starts, parameterisation)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        bias: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> SlotOutput:
        """As ``EvidenceDepletion.forward``.

        A bias per token cancels in a softmax over slots, so exp(bias), relative to the
        largest of the valid tokens, weighs the tokens in each slot's mean instead.
        """
        h = self.inputs(tokens, mask, bias)
        slots = self.starts(len(h), generator)
        keys, values = (h, h) if self.collapsed else (self.proj_k(h), self.proj_v(h))
        share = mask.to(h.dtype)
        if bias is not None:
            lowest = torch.finfo(h.dtype).min
            known = bias.masked_fill(~mask, lowest)
            share = share * torch.exp(known - known.amax(-1, keepdim=True))
        attention = h.new_zeros(len(h), self.n_slots, h.shape[1])
        for _ in range(self.iterations):
            attention = torch.softmax(self._logits(slots, keys), 1) * share.unsqueeze(1)
            reading = normalise(attention) @ values
            slots = self.update(slots.flatten(0, 1), reading.flatten(0, 1)).view_as(slots)
        untouched = mask.to(h.dtype).unsqueeze(1).expand(-1, self.n_slots + 1, -1)
        return SlotOutput(slots, attention, untouched)

    def _logits(self, slots: Tensor, keys: Tensor) -> Tensor:
        """Return q . k / sqrt D, (B, S, L)."""
        normalised = self.norm_s(slots)
        if not self.collapsed:
            return torch.as_tensor(self.proj_q(normalised) / self.width**0.5 @ keys.mT)
        whole = self.proj_qk(normalised) @ keys.mT + self.proj_offset(normalised)
        return torch.as_tensor(whole / self.width**0.5)

    def _collapse(self) -> None:
        """As for all; what the keys' bias adds to a slot counts where slots compete."""
        query, key = self.proj_q, self.proj_k
        self.proj_offset = nn.Linear(self.width, 1)
        with torch.no_grad():
            self.proj_offset.weight.copy_((key.bias @ query.weight)[None])
            self.proj_offset.bias.copy_(key.bias @ query.bias)
        super()._collapse()

    def query_key(self) -> list[tuple[nn.Parameter, int | None]]:
        """Return the parameters that say which tokens a slot looks at, all whole."""
        offset = list(self.proj_offset.parameters()) if self.collapsed else []
        return [*super().query_key(), *((parameter, None) for parameter in offset)]


#: Kinds of slots by the name that the settings have for them.
KINDS: Final = {
    "evidence-depletion": EvidenceDepletion,
    "sequential": SequentialSlotAttention,
    "vanilla": VanillaSlotAttention,
}
