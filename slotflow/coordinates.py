"""The flow's coordinates: a source measured from a component, exactly and reversibly.

Seven real coordinates z and one angle v, all one-to-one with the eight parameters (psi and
phi0 up to their symmetry), so that bounds hold by construction:

====  =============================================================================
z[0]  frequency: asinh of the offset of logit(bin / K) from the component's, in widths
z[1]  fdot T^2: probit of its place in the prior
z[2]  amplitude: asinh of rho times the offset of the log norm of the circular amplitudes
z[3]  right ascension: as frequency, of the wrapped offset
z[4]  sin dec: as frequency
z[5]  cos iota: as frequency
z[6]  phi0 modulo pi: as right ascension
v     (psi - psi_ref(phi0)) / pi + 1/2 modulo 1; stretched about 1/2 where asked for
====  =============================================================================

psi_ref(phi0) is the polarisation that, for that phi0, gives the component's stronger
circular amplitude its phase. (psi + pi/2, phi0 + pi), the same signal, has the same z[6]
and the same v, so (z[6], v) lie on a plain torus: nothing is twisted and nothing doubled.
Given all else psi is known to 1 / (2 rho) or so: at SNR 100 a hundredth of its circle, finer than
a spline of a few bins is taught soon. The stretched circle, tan(pi (v' - 1/2)) =
tan(pi (v - 1/2)) / s with s = 3 / rho (1 at most), brings that to a few hundredths at any SNR, and
leaves room for what the other coordinates shift it by; it is smooth all around.
A year's data know frequency and phase in its middle; at its start, where f0 and phi0 are defined,
both follow fdot. With ``mid_epoch`` z[0], z[6] and v are of the frequency f0 + fdot T / 2 and of
the phase there, phi0 - 2 pi (df0 T / 2 + dfdot T^2 / 8) about the component's: above 4 mHz ten
times as narrow, and no longer tied to fdot and to each other. A shear: the Jacobian stays
triangular.
Sampled amplitudes stay within a factor of 10^4 of the component's, more than any prior's range
of SNR. The widths are the component's own, so z is of order one at every SNR, and a frequency
posterior of 1e-4 of the band is resolved. float64 throughout. The coordinates are our
choice; arXiv:2605.02323 names the symmetry and the auxiliary psi flow.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from slotflow.parameters import FDOT_T2_PRIOR, LN_AMPLITUDE_RANGE

FEATURES = 7
_EDGE = 1e-9  # keeps logits finite
_AMPLITUDE_REACH = 2.0 * LN_AMPLITUDE_RANGE
_FDOT_LOW, _FDOT_HIGH = FDOT_T2_PRIOR


class Frame(NamedTuple):
    """Which coordinates: ``psi_stretched`` and ``mid_epoch`` of the model's settings."""

    psi_stretched: bool = False
    mid_epoch: bool = False


PLAIN = Frame()


class Local(NamedTuple):
    """A source in local coordinates.

    ``z`` (..., 7), ``v`` (...) in [0, 1), and the logs of |dz / du| and |dv / du| at fixed z (...),
    whose sum is that of |d(z, v) / du|, with u the source in the unit ranges of
    :func:`slotflow.parameters.to_scored`.
    """

    z: Tensor
    v: Tensor
    log_jacobian_z: Tensor
    log_jacobian_v: Tensor

    @property
    def log_jacobian(self) -> Tensor:
        """The log of |d(z, v) / du|."""
        return self.log_jacobian_z + self.log_jacobian_v


def _logit(p: Tensor) -> Tensor:
    return torch.log(p) - torch.log1p(-p)


def _squash(p: Tensor, centre: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return asinh((logit p - logit c) / s) and the log of its derivative.

    s is the width ``width`` of p carried to the logit at the centre.
    """
    p = p.clamp(_EDGE, 1.0 - _EDGE)
    scale = _logit_width(centre, width)
    x = (_logit(p) - _logit(centre)) / scale
    log_slope = -torch.log(scale) - torch.log(p) - torch.log1p(-p) - 0.5 * torch.log1p(x * x)
    return torch.asinh(x), log_slope


def _unsquash(z: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    scale = _logit_width(centre, width)
    # beyond this the logit is at the edge anyway, and sinh would overflow
    logit = _logit(centre) + scale * torch.sinh(z.clamp(-30.0, 30.0))
    return torch.sigmoid(logit).clamp(_EDGE, 1.0 - _EDGE)


def _logit_width(centre: Tensor, width: Tensor) -> Tensor:
    return (width / (centre * (1.0 - centre))).clamp(max=2.0)


def _norm_of_cos(cos_iota: Tensor) -> Tensor:
    """log of hypot(|r|, |l|) / A = log sqrt((1 + c)^4 + (1 - c)^4)."""
    return 0.5 * torch.log((1.0 + cos_iota) ** 4 + (1.0 - cos_iota) ** 4)


def _places(reference: Tensor) -> tuple[Tensor, ...]:
    """Centres and widths of sin dec, cos iota, and widths of ra, phi0, in unit ranges."""
    r = reference
    dec = (0.5 * (torch.sin(r[..., 2]) + 1.0)).clamp(1e-3, 1.0 - 1e-3)
    cos_dec = torch.cos(r[..., 2]).clamp(min=0.05)
    iota = (0.5 * (r[..., 8] + 1.0)).clamp(0.05, 0.95)
    return (
        dec, 0.5 * r[..., 5] * cos_dec,
        iota, 0.5 * r[..., 12],
        (r[..., 4] / cos_dec / (2.0 * torch.pi)).clamp(max=0.25),
        r[..., 11] / torch.pi,
    )  # fmt: skip


def _phases(reference: Tensor, phi0: Tensor) -> Tensor:
    """psi_ref at given phi0, from the stronger circular amplitude."""
    right = 0.5 * (phi0 + reference[..., 9])
    left = -0.5 * (phi0 + reference[..., 10])
    return torch.where(reference[..., 8] >= 0.0, right, left)


def _stretch(v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Stretch the circle [0, 1) about 1/2 by 1 / scale; return v' and ln dv' / dv."""
    angle = torch.pi * (v - 0.5)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    # the same point of the circle has cosine 0 from either side
    out = torch.remainder(torch.atan2(sine, scale * cosine) / torch.pi + 0.5, 1.0)
    log_slope = torch.log(scale) - torch.log((scale * cosine) ** 2 + sine**2)
    return torch.where(out < 1.0, out, torch.zeros_like(out)), log_slope


def _psi_scale(reference: Tensor) -> Tensor:
    return (3.0 / reference[..., 7]).clamp(max=1.0)


def _fdot_offset(fdot: Tensor, reference: Tensor) -> Tensor:
    """How far fdot T^2 (in units of the widening) is from the component's, in bins."""
    return reference[..., 15] * (fdot - reference[..., 14])


def _frequency_place(
    reference: Tensor, bins: int, fdot: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    """Where a source of this fdot is expected, and how precisely, in unit range."""
    if not frame.mid_epoch:
        return (reference[..., 0] / bins).clamp(1e-3, 1.0 - 1e-3), reference[..., 3] / bins
    place = reference[..., 0] - 0.5 * _fdot_offset(fdot, reference)
    return (place / bins).clamp(1e-3, 1.0 - 1e-3), reference[..., 13] / bins


def _drift(position: Tensor, fdot: Tensor, reference: Tensor, frame: Frame) -> Tensor:
    """What phi0 is ahead by for these f0 and fdot if the phase in the middle is the component's."""
    if not frame.mid_epoch:
        return torch.zeros_like(position)
    offset = position - reference[..., 0] + 0.25 * _fdot_offset(fdot, reference)
    return torch.pi * offset


def _phi0_reference(reference: Tensor) -> Tensor:
    return -0.5 * (reference[..., 9] + reference[..., 10])


def to_local(sources: Tensor, reference: Tensor, bins: int, frame: Frame = PLAIN) -> Local:
    """Measure sources from components.

    Args:
        sources: (..., 8) float64: bin from the band's first, fdot T^2, ln amplitude, ra,
            sin dec, psi, cos iota, phi0.
        reference: (..., R) float64, columns of :data:`slotflow.tokens.REFERENCE`.
        bins: bins in the band.
        frame: which coordinates.
    """
    dec_c, dec_s, iota_c, iota_s, ra_s, phi_s = _places(reference)
    f_c, f_s = _frequency_place(reference, bins, sources[..., 1], frame)
    half = torch.full_like(dec_c, 0.5)
    z_f, j_f = _squash(sources[..., 0] / bins, f_c, f_s)
    unit = ((sources[..., 1] - _FDOT_LOW) / (_FDOT_HIGH - _FDOT_LOW)).clamp(1e-6, 1.0 - 1e-6)
    z_d = torch.special.ndtri(unit)
    j_d = 0.5 * z_d**2 + 0.5 * torch.log(torch.tensor(2.0 * torch.pi, dtype=z_d.dtype))
    cos_iota = sources[..., 6]
    x = (sources[..., 2] + _norm_of_cos(cos_iota) - reference[..., 6]) * reference[..., 7]
    z_a = torch.asinh(x)
    j_a = torch.log(reference[..., 7] * LN_AMPLITUDE_RANGE) - 0.5 * torch.log1p(x * x)
    turn = torch.remainder((sources[..., 3] - reference[..., 1]) / (2.0 * torch.pi) + 0.5, 1.0)
    z_r, j_r = _squash(turn, half, ra_s)
    z_s, j_s = _squash(0.5 * (sources[..., 4] + 1.0), dec_c, dec_s)
    z_i, j_i = _squash(0.5 * (cos_iota + 1.0), iota_c, iota_s)
    phi0 = sources[..., 7] - _drift(sources[..., 0], sources[..., 1], reference, frame)
    w = torch.remainder((phi0 - _phi0_reference(reference)) / torch.pi + 0.5, 1.0)
    z_p, j_p = _squash(w, half, phi_s)
    v = torch.remainder((sources[..., 5] - _phases(reference, phi0)) / torch.pi + 0.5, 1.0)
    z = torch.stack([z_f, z_d, z_a, z_r, z_s, z_i, z_p], dim=-1)
    j_v = torch.zeros_like(v)
    if frame.psi_stretched:
        v, j_v = _stretch(v, _psi_scale(reference))
    return Local(z, v, j_f + j_d + j_a + j_r + j_s + j_i + j_p, j_v)


def from_local(z: Tensor, v: Tensor, reference: Tensor, bins: int, frame: Frame = PLAIN) -> Tensor:
    """Invert :func:`to_local`: (..., 8), psi modulo pi and phi0 modulo 2 pi, not folded."""
    dec_c, dec_s, iota_c, iota_s, ra_s, phi_s = _places(reference)
    half = torch.full_like(dec_c, 0.5)
    unit = torch.special.ndtr(z[..., 1])
    fdot = _FDOT_LOW + (_FDOT_HIGH - _FDOT_LOW) * unit.clamp(_EDGE, 1.0 - _EDGE)
    f_c, f_s = _frequency_place(reference, bins, fdot, frame)
    position = bins * _unsquash(z[..., 0], f_c, f_s)
    cos_iota = 2.0 * _unsquash(z[..., 5], iota_c, iota_s) - 1.0
    offset = torch.sinh(z[..., 2].clamp(-9.0, 9.0)) / reference[..., 7]
    offset = offset.clamp(-_AMPLITUDE_REACH, _AMPLITUDE_REACH)
    ln_amplitude = reference[..., 6] + offset - _norm_of_cos(cos_iota)
    turn = _unsquash(z[..., 3], half, ra_s) - 0.5
    ra = torch.remainder(reference[..., 1] + 2.0 * torch.pi * turn, 2.0 * torch.pi)
    sin_dec = 2.0 * _unsquash(z[..., 4], dec_c, dec_s) - 1.0
    w = _unsquash(z[..., 6], half, phi_s)
    phi0 = _phi0_reference(reference) + torch.pi * (w - 0.5)
    if frame.psi_stretched:
        v = _stretch(v, 1.0 / _psi_scale(reference))[0]
    psi = torch.remainder(_phases(reference, phi0) + torch.pi * (v - 0.5), torch.pi)
    phi0 = phi0 + _drift(position, fdot, reference, frame)
    phi0 = torch.remainder(phi0, 2.0 * torch.pi)
    return torch.stack([position, fdot, ln_amplitude, ra, sin_dec, psi, cos_iota, phi0], dim=-1)
