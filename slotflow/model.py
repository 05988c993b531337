"""The whole network: components in, a density for each slot out."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotflow.config import ModelSettings
from slotflow.context import (
    ContextNet,
    Streams,
    attended_spectrum,
    attention_moments,
    frequency_estimates,
    pick,
)
from slotflow.coordinates import FEATURES, Frame, from_local, to_local
from slotflow.encoder import Encoder
from slotflow.flow import ConditionalFlow, PsiFlow
from slotflow.slotbase import SlotOutput
from slotflow.slots import KINDS
from slotflow.tokens import TOKEN_WIDTH
from slotflow.twostage import flow_cost

PSI_FEATURES = FEATURES + 5


class TokenBatch(NamedTuple):
    """A batch of :class:`slotflow.tokens.BandTokens`.

    ``features`` (B, C, TOKEN_WIDTH), ``band`` (B, BAND_WIDTH), ``reference`` (B, C, R)
    float64, ``valid`` (B, C) bool; ``data`` (B, 3, K) complex64, the whitened A, E, T of TDI 1.5,
    is needed by the stream ``spectrum`` and ``mixer_spectrum`` alone.
    """

    features: Tensor
    band: Tensor
    reference: Tensor
    valid: Tensor
    data: Tensor | None = None

    def rows(self, index: Tensor) -> "TokenBatch":
        """Return the chosen bands."""
        data = None if self.data is None else self.data[index]
        features, band, reference = self.features[index], self.band[index], self.reference[index]
        return TokenBatch(features, band, reference, self.valid[index], data)


class Reading(NamedTuple):
    """What the slots made of a batch.

    ``context`` (B, S, context), ``attention`` (B, S, C) normalised over components,
    ``choice`` (B, S) the slot's component (:func:`distinct_choice`), ``reference`` (B, S, R)
    its reference, ``existence`` (B, S) logits, ``component`` (B, C) logits that a component
    stands for a source, ``slots`` (B, S, D), ``evidence`` (B, S + 1, C), ``auxiliary`` (B, S, 5)
    of the auxiliary heads (z of frequency and amplitude, offset of the direction), or None.
    """

    context: Tensor
    attention: Tensor
    choice: Tensor
    reference: Tensor
    existence: Tensor
    component: Tensor
    slots: Tensor
    evidence: Tensor
    auxiliary: Tensor | None = None


def distinct_choice(attention: Tensor, valid: Tensor) -> Tensor:
    """Return each slot's component, no component twice while there are others: (B, S).

    Greedy: the largest attention of all slots and components first. With fewer components
    than slots, those left over take what they attend most.

    Args:
        attention: (B, S, C).
        valid: (B, C) bool.
    """
    batch, slots, components = attention.shape
    left = attention.detach().masked_fill(~valid[:, None], -1.0)
    choice = attention.argmax(dim=-1)
    rows = torch.arange(batch, device=attention.device)
    for _ in range(min(slots, components)):
        best, place = left.flatten(1).max(dim=1)
        slot, component = place // components, place % components
        choice[rows, slot] = torch.where(best >= 0.0, component, choice[rows, slot])
        left[rows, slot] = -1.0
        left[rows, :, component] = -1.0
    return choice


def distinct_slots(reading: Reading) -> Tensor:
    """Return which slots are the likeliest of those on the same component: (B, S) bool.

    A component stands for one source at most (:mod:`slotflow.tokencache`), so a second slot
    on it is the same source again. Of equally likely ones the first counts.
    """
    same = reading.choice[:, :, None] == reading.choice[:, None, :]
    order = torch.arange(reading.choice.shape[1], device=reading.choice.device)
    p, q = reading.existence[:, :, None], reading.existence[:, None, :]
    beaten = same & ((q > p) | ((q == p) & (order[None, :] < order[:, None])))
    return ~beaten.any(dim=2)


class SlotFlow(nn.Module):
    """Encoder, slots, context, flow and heads.

    Args:
        settings: the shape.
        bins: bins of a band.

    Attributes:
        component_share: how much of a slot's existence logit is that of its component's standing
            for a source; 0 in training, then fitted (:func:`slotflow.calibration.fit_share`) and
            kept with the model.
    """

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, settings: ModelSettings, bins: int) -> None:
        super().__init__()
        self.settings = settings
        self.bins = bins
        self.register_buffer("feature_mean", torch.zeros(TOKEN_WIDTH))
        self.register_buffer("feature_scale", torch.ones(TOKEN_WIDTH))
        self.encoder = Encoder(settings)
        self.slot_bias = nn.Linear(settings.width, 1)
        arguments = {
            "n_slots": settings.slots,
            "width": settings.width,
            "iterations": settings.iterations,
            "gamma": settings.gamma,
            "tau": settings.tau,
            "depletion": settings.depletion,
            "epsilon": settings.epsilon,
            "learned_starts": settings.learned_starts,
            "parameterisation": settings.parameterisation,
            "evidence_gradient": settings.evidence_gradient,
        }
        self.slots = KINDS[settings.slot_attention](**arguments)  # type: ignore[arg-type]
        self.context = ContextNet(settings)
        self.flow = ConditionalFlow(
            FEATURES, settings.context, settings.flow_layers, settings.flow_bins,
            settings.flow_hidden, settings.tail_bound, settings.flow_blocks,
        )  # fmt: skip
        self.frame = Frame(settings.psi_stretched, settings.mid_epoch)
        self.psi = PsiFlow(PSI_FEATURES, settings.psi_bins, settings.psi_hidden, settings.context)
        self.exists = nn.Sequential(
            nn.Linear(settings.context, settings.width), nn.GELU(), nn.Linear(settings.width, 1)
        )
        self.auxiliary = nn.Linear(settings.context, 5) if settings.auxiliary_heads else None
        self.component_share = 0.0

    @property
    def needs_data(self) -> bool:
        """Whether a batch must hold the bands' data."""
        return "spectrum" in self.settings.streams or self.settings.mixer_spectrum

    def standardise(self, features: Tensor, valid: Tensor) -> None:
        """Set the features' offset and scale from training tokens (N, C, W), (N, C)."""
        chosen = features[valid].double()
        if len(chosen) < 2:
            return
        self.feature_mean.copy_(chosen.mean(dim=0))
        self.feature_scale.copy_(chosen.std(dim=0).clamp(min=1e-3))

    def read(self, batch: TokenBatch, generator: torch.Generator | None = None) -> Reading:
        """Let the slots read the tokens; ``generator`` drives the slots' order in training."""
        measured = (batch.features - self.feature_mean) / self.feature_scale
        measured = measured.clamp(-8.0, 8.0) * batch.valid[..., None]
        tokens = self.encoder(measured, batch.band, batch.reference, batch.valid, batch.data)
        component = self.slot_bias(tokens).squeeze(-1)
        # the log odds that a component is a source weigh it in every slot's attention
        out = self.slots(tokens, batch.valid, bias=component, generator=generator)
        attention = out.weights
        choice = distinct_choice(attention, batch.valid)
        streams = self._streams(batch, measured, tokens, component, out, choice)
        context = self.context(streams, generator)
        existence = self.exists(context).squeeze(-1)
        if self.component_share > 0.0:
            stands = torch.gather(component, 1, choice)
            existence = torch.lerp(existence, stands.to(existence.dtype), self.component_share)
        # without any component there is nothing to attend to, and nothing to report
        existence = existence.masked_fill(~batch.valid.any(dim=1)[:, None], -20.0)
        return Reading(
            context, attention, choice, pick(batch.reference, choice), existence, component,
            out.slots, out.evidence, None if self.auxiliary is None else self.auxiliary(context),
        )  # fmt: skip

    def _streams(
        self, batch: TokenBatch, measured: Tensor, tokens: Tensor, component: Tensor,
        out: SlotOutput, choice: Tensor,
    ) -> Streams:  # fmt: skip
        """Return the streams that the context is made of; the others are empty."""
        attention, wanted = out.weights, self.settings.streams
        nothing = tokens.new_empty(*choice.shape, 0)
        spectrum = summary = frequency = nothing
        if "spectrum" in wanted:
            if batch.data is None:
                raise ValueError("expected the bands' data for the stream 'spectrum'; got None")
            spectrum = attended_spectrum(batch.data, pick(batch.reference, choice))
        if "summary" in wanted:
            count = batch.valid.sum(dim=1, keepdim=True).clamp(min=1)
            mean = (tokens * batch.valid[..., None]).sum(dim=1) / count
            summary = mean[:, None].expand(-1, choice.shape[1], -1)
        if "frequency" in wanted:
            frequency = frequency_estimates(
                attention, batch.reference, batch.valid, choice, self.bins
            )
        place = batch.reference[..., 0].to(attention.dtype)
        return Streams(
            slot=out.slots,
            attended=attention @ tokens,
            component=pick(tokens, choice),
            measured=pick(measured, choice),
            moments=attention_moments(attention, out.evidence[:, -1], place, component, choice),
            band=batch.band[:, None].expand(-1, choice.shape[1], -1),
            attended_measured=attention @ measured if "attended_measured" in wanted else nothing,
            frequency=frequency,
            spectrum=spectrum.to(tokens.dtype),
            summary=summary,
        )

    def log_prob(self, sources: Tensor, context: Tensor, reference: Tensor) -> Tensor:
        """Return ln q of the flow and of psi in the unit cube: (N, 2).

        Args:
            sources: (N, 8) float64 as for :func:`slotflow.coordinates.to_local`.
            context: (N, context).
            reference: (N, R) float64.
        """
        local = to_local(sources, reference, self.bins, self.frame)
        kind = torch.promote_types(context.dtype, torch.float32)  # whatever the autocast
        z, v = local.z.to(kind), local.v.to(kind)
        flow = self.flow.log_prob(z, context) + local.log_jacobian_z.to(kind)
        psi = self.psi.log_prob(v, psi_features(z, reference), context)
        return torch.stack([flow, psi + local.log_jacobian_v.to(kind)], dim=-1)

    def base_points(self, sources: Tensor, context: Tensor, reference: Tensor) -> Tensor:
        """Return the points of the flow's base that the sources come from: (N, FEATURES).

        Args:
            sources: (N, 8) float64 as for :func:`slotflow.coordinates.to_local`.
            context: (N, context).
            reference: (N, R) float64.
        """
        local = to_local(sources, reference, self.bins, self.frame)
        z = local.z.to(torch.promote_types(context.dtype, torch.float32))
        return self.flow.base_point(z, self.flow.project(context))[0]

    def pair_log_prob(
        self, sources: Tensor, valid: Tensor, context: Tensor, reference: Tensor
    ) -> Tensor:
        """Return ln q of every slot for every source, without gradient: (B, S, K).

        0 where not valid; the flow does not see those, and each slot's context is projected once.

        Args:
            sources: (B, K, 8) float64.
            valid: (B, K) bool.
            context: (B, S, context).
            reference: (B, S, R) float64.
        """
        kind = torch.promote_types(context.dtype, torch.float32)
        own = reference[:, :, None].expand(-1, -1, valid.shape[1], -1)
        every = sources[:, None].expand(-1, own.shape[1], -1, -1)
        local = to_local(every, own, self.bins, self.frame)
        z, v = local.z.to(kind), local.v.to(kind)
        flow = -flow_cost(self.flow, self.flow.project(context), z, valid)
        psi = self.psi.log_prob(v, psi_features(z, own), context[:, :, None])
        return torch.where(valid[:, None], flow + psi + local.log_jacobian.to(kind), 0.0)

    def sample(
        self, context: Tensor, reference: Tensor, draws: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw sources from each slot's posterior.

        Args:
            context: (N, context).
            reference: (N, R) float64.
            draws: n.
            generator: draws the base noise.

        Returns:
            Sources (N, n, 8) float64 as ``to_local`` takes them, and ln q in the unit cube
            (N, n).
        """
        z, log_q = self.flow.sample_and_log_prob(context, draws, generator, chunk=4096)
        u = torch.rand(z.shape[:-1], generator=generator, dtype=z.dtype).to(z.device)
        expanded = reference[:, None].expand(-1, draws, -1)
        features = psi_features(z, expanded)
        v, log_psi = self.psi.sample(features, u, context[:, None])
        sources = from_local(z.double(), v.double(), expanded, self.bins, self.frame)
        jacobian = to_local(sources, expanded, self.bins, self.frame).log_jacobian
        return sources, (log_q + log_psi).double() + jacobian

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters of each part."""
        return {
            name: sum(p.numel() for p in part.parameters()) for name, part in self.named_children()
        }


def psi_features(z: Tensor, reference: Tensor) -> Tensor:
    """What q(psi | the other seven) is told besides the context: (..., PSI_FEATURES).

    The seven coordinates (held to +-4) and phi0's place on its circle of period pi, whose
    harmonics have no seam.
    """
    width = (reference[..., 11] / math.pi / 0.25).clamp(max=2.0)
    turn = torch.sigmoid(width * torch.sinh(z[..., 6].double().clamp(-30.0, 30.0)))
    angle = 2.0 * math.pi * turn
    harmonics = torch.stack(
        [torch.cos(angle), torch.sin(angle), torch.cos(2 * angle), torch.sin(2 * angle)], dim=-1
    )
    stronger = (reference[..., 8] >= 0.0).to(z.dtype)[..., None]
    return torch.cat([z.clamp(-4.0, 4.0), harmonics.to(z.dtype), stronger], dim=-1)
