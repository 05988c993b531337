"""Conditional rational-quadratic spline flows: the source parameters, and psi on a circle.

``ConditionalFlow`` is nflows' piecewise rational-quadratic coupling flow (arXiv:1906.04032)
with nflows' parameters and state-dict keys, but without its boolean masks: the stock
transform on the same weights is the oracle. The spline works in float32 at least, whatever
the autocast (half precision costs nats in a cumulated softmax).

The context enters each conditioner in its first layer only, so that layer's share of it is
computed once per context ("projected") and broadcast over sources or draws.
"""

import math
from typing import Any, cast

import torch
from nflows.transforms.coupling import PiecewiseRationalQuadraticCouplingTransform
from torch import Tensor, nn
from torch.nn import functional as F

from slotflow.fastsplines import head_spline, packed_spline
from slotflow.splines import UNIT_DERIVATIVE, Shape, at_least_float32

#: Rows times hidden width that sampling takes at a time on a CPU: 2.6 MB (measured: from a half
#: to twice that is as quick, all at once up to a third slower).
CACHED_NUMBERS = 655_360


class ResidualBlock(nn.Module):
    """h + W relu(W relu(h)), under nflows' names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        last = cast(nn.Linear, self.linear_layers[1])
        nn.init.uniform_(last.weight, -1e-3, 1e-3)
        nn.init.uniform_(last.bias, -1e-3, 1e-3)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        first, last = self.linear_layers
        # the second in place, on what nobody else holds
        return _add(last(F.relu(first(F.relu(hidden)), inplace=True)), hidden)


class Conditioner(nn.Module):
    """A small residual network that sees the context in its first layer only.

    Parameter names are those of nflows' ResidualNet. The last layer starts at zero weights.

    Args:
        features: width of the inputs proper.
        outputs: width of the output.
        hidden: width of the residual stream.
        context: width of the context; 0 for none.
        blocks: residual blocks, of two layers each.
    """

    def __init__(
        self, features: int, outputs: int, hidden: int, context: int = 0, blocks: int = 2
    ) -> None:
        super().__init__()
        self.features = features
        self.hidden_features = hidden  # nflows divides its softmax's logits by the root of this
        self.initial_layer = nn.Linear(features + context, hidden)
        self.blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(blocks))
        self.final_layer = nn.Linear(hidden, outputs)
        nn.init.zeros_(self.final_layer.weight)
        nn.init.zeros_(self.final_layer.bias)

    def project(self, context: Tensor) -> Tensor:
        """Return the context's share of the first layer: (..., context) -> (..., hidden)."""
        weight = self.initial_layer.weight[:, self.features :]
        return F.linear(context, weight, self.initial_layer.bias)

    def finish(self, inputs: Tensor, projected: Tensor | None) -> Tensor:
        """Return the output, (..., outputs); arguments as for ``body``."""
        output: Tensor = self.final_layer(self.body(inputs, projected))
        return output

    def body(self, inputs: Tensor, projected: Tensor | None) -> Tensor:
        """Return the last layer's input, (..., hidden), for inputs (..., features).

        Leading dimensions broadcast. ``projected`` is what ``project`` returned, or None for a
        network without context.
        """
        bias = self.initial_layer.bias if projected is None else None
        hidden = F.linear(inputs, self.initial_layer.weight[:, : self.features], bias)
        if projected is not None:
            hidden = _add(hidden, projected)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> Tensor:
        """As nflows calls it: (N, features), (N, context) -> (N, outputs)."""
        return self.finish(inputs, None if context is None else self.project(context))


def _add(into: Tensor, other: Tensor) -> Tensor:
    """Return the sum, in the memory of ``into``, a linear layer's own output, where it fits."""
    pairs = zip(reversed(other.shape), reversed(into.shape), strict=False)
    fits = other.ndim <= into.ndim and all(n in (1, m) for n, m in pairs)
    return into.add_(other) if fits and into.dtype == other.dtype else into + other


class SplineCoupling(PiecewiseRationalQuadraticCouplingTransform):  # type: ignore[misc]
    """nflows' coupling transform with a spline that has no boolean masks.

    Its constructor, parameters and 2-D interface are nflows'. ``step`` does the same for any
    leading dimensions, with the context projected beforehand.
    """

    transform_net: Conditioner
    num_bins: int
    tail_bound: float
    identity_features: Tensor
    transform_features: Tensor
    order: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        order = torch.argsort(torch.cat((self.identity_features, self.transform_features)))
        self.register_buffer("order", order, persistent=False)  # nflows has no such key

    def _piecewise_cdf(
        self, inputs: Tensor, transform_params: Tensor, inverse: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The spline inside the bounds and the identity outside, (..., d) and (..., d, 3K-1)."""
        return packed_spline(inputs, transform_params, self._shape(inverse))

    def step(
        self, inputs: Tensor, projected: Tensor, inverse: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Transform (..., F) with the projected context (..., hidden), broadcast.

        Returns the outputs (..., F) and log |det| of their Jacobian (...).
        """
        kept = inputs.index_select(-1, self.identity_features)
        moved = inputs.index_select(-1, self.transform_features)
        hidden = self.transform_net.body(kept, projected)
        leading = hidden.shape[:-1]
        kept, moved = kept.expand(*leading, -1), moved.expand(*leading, -1)
        if self._has_fast_head(moved, hidden):
            last = self.transform_net.final_layer
            flat = moved.reshape(-1, moved.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
            moved, change = head_spline(*flat, last.weight, last.bias, self._shape(inverse))
            moved, change = moved.reshape(kept.shape[:-1] + moved.shape[-1:]), change.view(leading)
        else:
            parameters = self.transform_net.final_layer(hidden)
            parameters = parameters.reshape(*moved.shape, 3 * self.num_bins - 1)
            moved, log_slope = self._piecewise_cdf(moved, parameters, inverse)
            change = log_slope.sum(-1)
        outputs = torch.cat((kept.to(moved.dtype), moved), -1)
        return outputs.index_select(-1, self.order), change

    def _shape(self, inverse: bool) -> Shape:
        """As nflows has it: the steps are divided by the root of the hidden width."""
        scale = self.transform_net.hidden_features**-0.5
        return Shape(self.num_bins, -self.tail_bound, self.tail_bound, scale, True, inverse)

    def _has_fast_head(self, moved: Tensor, hidden: Tensor) -> bool:
        """Whether the last layer can be merged with the spline: on a CPU, in one precision."""
        weight = self.transform_net.final_layer.weight
        return (
            hidden.device.type == "cpu"
            and hidden.dtype in (torch.float32, torch.float64)
            and moved.dtype == hidden.dtype == weight.dtype
            and not torch.is_autocast_enabled("cpu")
        )


def masks(features: int, layers: int) -> list[list[int]]:
    """Return the coupling layers' masks, 1 where a feature is transformed.

    Layer 2j transforms the features whose index has bit j set (bits taken in turn), layer
    2j + 1 the others, so that after 2 log2(features) layers every two features were on
    different sides of a layer in both directions.
    """
    if features < 2:
        raise ValueError(f"features: expected at least 2; got {features}")
    bits = (features - 1).bit_length()
    return [
        [((i >> (layer // 2) % bits) & 1) ^ (layer % 2) for i in range(features)]
        for layer in range(layers)
    ]


class ConditionalFlow(nn.Module):
    """A density over R^features given a context; the standard normal before any training.

    The base is a normal with the standard deviations ``base_scale`` (features,), one each: after
    training they can be set to what fresh data have (:mod:`slotflow.widths`; our choice). They are
    no weights: a state dict is nflows' own.

    Args:
        features: dimensions of the density.
        context: width of the context.
        layers: coupling layers; the masks are those of ``masks``.
        bins: bins of each spline.
        hidden: width of the conditioners.
        tail_bound: beyond +-tail_bound every layer is the identity.
        blocks: residual blocks of each conditioner, of two layers each.
    """

    base_scale: Tensor

    def __init__(
        self,
        features: int = 7,
        context: int = 128,
        layers: int = 5,
        bins: int = 12,
        hidden: int = 96,
        tail_bound: float = 5.0,
        blocks: int = 2,
    ) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("base_scale", torch.ones(features), persistent=False)

        def conditioner(inputs: int, outputs: int) -> Conditioner:
            net = Conditioner(inputs, outputs, hidden, context, blocks)
            per_feature = net.final_layer.bias.detach().view(-1, 3 * bins - 1)
            per_feature[:, 2 * bins :] = UNIT_DERIVATIVE  # so that the flow starts as identity
            return net

        self.layers = nn.ModuleList(
            SplineCoupling(mask, conditioner, bins, tails="linear", tail_bound=tail_bound)
            for mask in masks(features, layers)
        )

    def project(self, context: Tensor) -> tuple[Tensor, ...]:
        """Return each layer's share of the context (..., C): a tuple of (..., hidden).

        It can be indexed or repeated at will before ``log_prob_projected``.
        """
        return tuple(layer.transform_net.project(context) for layer in self._couplings())

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        """Return ln q(x | context): (..., F), (..., C) -> (...), leading dimensions broadcast.

        In float32 at least. NaN where x or the context is.
        """
        return self.log_prob_projected(x, self.project(context))

    def log_prob_projected(self, x: Tensor, projected: tuple[Tensor, ...]) -> Tensor:
        """As ``log_prob``, with the context projected beforehand."""
        z, log_det = self.base_point(x, projected)
        return self._log_base(z) + log_det

    def base_point(self, x: Tensor, projected: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the base point z of x and ln |det dz/dx|: (..., F), (...)."""
        z = at_least_float32(x)
        log_det = z.new_zeros(())
        for layer, share in zip(self._couplings(), projected, strict=True):
            z, change = layer.step(z, share)
            log_det = log_det + change
        return z, log_det

    def invert(self, z: Tensor, projected: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return x and ln q(x) for base points z (..., F): (..., F), (...)."""
        x, log_q = z, self._log_base(z)
        for layer, share in reversed(list(zip(self._couplings(), projected, strict=True))):
            x, change = layer.step(x, share, inverse=True)
            log_q = log_q - change
        return x, log_q

    def sample_and_log_prob(
        self,
        context: Tensor,
        n: int,
        generator: torch.Generator | None = None,
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw from q(. | context).

        Args:
            context: (N, C).
            n: draws for each context.
            generator: draws the base noise, all of it first, so that the draws do not depend
                on ``chunk``.
            chunk: most draws per context made at a time (bounds the memory); None: no bound. On
                a CPU never more than keep the hidden layers in the cache.

        Returns:
            x (N, n, F) and ln q(x | context) (N, n).
        """
        noise = self._noise(context, n, generator)
        projected = tuple(share.unsqueeze(-2) for share in self.project(context))
        size = min(chunk or n, self._cached_draws(context))
        parts = [self.invert(part, projected) for part in torch.split(noise, max(1, size), -2)]
        return torch.cat([x for x, _ in parts], -2), torch.cat([q for _, q in parts], -1)

    def _cached_draws(self, context: Tensor) -> int:
        """Return how many draws per context to make at a time on this device."""
        if context.device.type != "cpu":
            return 2**31
        hidden = self._couplings()[0].transform_net.hidden_features
        return CACHED_NUMBERS // (hidden * max(1, context.shape[:-1].numel()))

    def _noise(self, context: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        device = context.device if generator is None else generator.device
        dtype = torch.promote_types(context.dtype, torch.float32)
        shape = (*context.shape[:-1], n, self.features)
        noise = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return noise.to(context.device) * self.base_scale

    def _log_base(self, z: Tensor) -> Tensor:
        """Log density of the base: (..., F) -> (...)."""
        return _log_normal(z / self.base_scale) - self.base_scale.log().sum()

    def _couplings(self) -> list[SplineCoupling]:
        return cast(list[SplineCoupling], list(self.layers))


def _log_normal(z: Tensor) -> Tensor:
    """Log density of the standard normal: (..., F) -> (...)."""
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2.0 * math.pi)


class PsiFlow(nn.Module):
    """A density on the circle [0, 1) given features; uniform before any training.

    v is shifted by a learned angle (so that the spline's seam is nowhere in particular) and
    mapped by a spline of [0, 1] whose end derivatives are equal: the density is continuous
    all around, v = 0 / 1 included.

    Args:
        features: width of the features, which may differ for each v (say, the other seven
            parameters).
        bins: bins of the spline.
        hidden: width of the conditioner.
        context: width of a further context that is projected once and broadcast; 0 for none.
        blocks: residual blocks of the conditioner, of two layers each.
    """

    def __init__(
        self, features: int, bins: int = 16, hidden: int = 96, context: int = 0, blocks: int = 2
    ) -> None:
        super().__init__()
        self.bins = bins
        self.conditioner = Conditioner(features, 3 * bins + 2, hidden, context, blocks)
        bias = self.conditioner.final_layer.bias.detach()
        bias[2 * bins : 3 * bins] = UNIT_DERIVATIVE
        bias[3 * bins] = 1.0  # the shift's cosine: no shift

    def log_prob(self, v: Tensor, features: Tensor, context: Tensor | None = None) -> Tensor:
        """Return ln q(v | features, context) for v in [0, 1), taken modulo 1.

        Args:
            v: (...).
            features: (..., features).
            context: (..., context), or None if built without. Leading dimensions broadcast.
        """
        parameters, shift = self._spline_parameters(features, context)
        inputs = _wrap(at_least_float32(v) - shift)
        return self._spline(inputs, parameters, inverse=False)[1]

    def sample(
        self, features: Tensor, u: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return v and ln q(v) for uniform u in [0, 1): (...), (...), shapes as in log_prob."""
        parameters, shift = self._spline_parameters(features, context)
        u = at_least_float32(u) + torch.zeros_like(shift)
        inverse, change = self._spline(u, parameters, inverse=True)
        return _wrap(inverse + shift), -change

    def _spline_parameters(self, features: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the spline's parameters (..., 3 K + 1) and the shift (...)."""
        projected = None if context is None else self.conditioner.project(context)
        raw = at_least_float32(self.conditioner.finish(features, projected))
        angle = raw[..., 3 * self.bins :]
        # the last knot's derivative is the first's
        closed = torch.cat(
            (raw[..., : 3 * self.bins], raw[..., 2 * self.bins : 2 * self.bins + 1]), -1
        )
        return closed, torch.atan2(angle[..., 1], angle[..., 0]) / (2.0 * math.pi)

    def _spline(self, inputs: Tensor, parameters: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        parameters = parameters.expand(*inputs.shape, -1)
        return packed_spline(inputs, parameters, Shape(self.bins, 0.0, 1.0, inverse=inverse))


def _wrap(v: Tensor) -> Tensor:
    """Return v modulo 1, in [0, 1): the remainder of a tiny negative number rounds to 1."""
    v = torch.remainder(v, 1.0)
    return torch.where(v < 1.0, v, torch.zeros_like(v))
