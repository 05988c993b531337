"""Components as numbers for the network: token features and local references.

Every feature is invariant under a rotation of all phases by a constant, and every
reference is a place, a width and two phases from which the flow's coordinates are
measured (:mod:`slotflow.coordinates`).
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.components import PATCH, ComponentSet
from slotflow.parameters import fdot_widening
from slotflow.response import Complex, Float

Float32 = NDArray[np.float32]

#: Token features, in order: (name, width).
TOKEN_FEATURES: Final = (
    ("position in the band", 1),
    ("distance to the window's edges", 2),
    ("log F", 1),
    ("direction", 3),
    ("log widths of bin, sky, fdot", 4),
    ("correlations", 6),
    ("fdot T^2", 1),
    ("cos iota, log ratio of circular amplitudes", 2),
    ("polarisation, cos and sin of 4 psi", 2),
    ("log antenna response", 1),
    ("second sky mode: direction, loss", 4),
    ("residual power around it", 2 * PATCH + 1),
)
TOKEN_WIDTH: Final = sum(width for _, width in TOKEN_FEATURES)
#: Features of the band as a whole.
BAND_FEATURES: Final = (
    ("frequency", 1),
    ("log noise level of A and E", 2),
    ("number of components", 1),
    ("window width", 1),
)
BAND_WIDTH: Final = sum(width for _, width in BAND_FEATURES)
#: Columns of a reference, float64.
REFERENCE: Final = (
    "bin", "ra", "dec", "sigma_bin", "sigma_east", "sigma_north", "ln_norm", "rho",
    "cos_iota", "phase_right", "phase_left", "sigma_phi0", "sigma_cos_iota", "sigma_mid", "fdot",
    "widening",
)  # fmt: skip


class BandTokens(NamedTuple):
    """One band as the network sees it, padded to C components.

    ``features`` (C, TOKEN_WIDTH), ``band`` (BAND_WIDTH,), ``reference`` (C, R) float64 in
    the columns of :data:`REFERENCE`, ``valid`` (C,) bool.
    """

    features: Float32
    band: Float32
    reference: Float
    valid: NDArray[np.bool_]


def circular_amplitudes(components: NDArray[np.void]) -> tuple[Complex, Complex]:
    """Return the right and left circular amplitudes r, l of :mod:`slotflow.response`: (C,)."""
    plus, cross = components["plus"], components["cross"]
    return plus + 1j * cross, plus - 1j * cross


def references(components: NDArray[np.void], widening: float = 1.0) -> Float:
    """Return (C, R) float64 in the columns of :data:`REFERENCE`.

    ``sigma_mid`` is the width, in bins, of the frequency in the middle of the observation,
    f0 + fdot T / 2, far narrower than that of f0 where fdot is not known. ``fdot`` is fdot T^2 in
    units of ``widening``, that of its range in this band, which is the last column.
    """
    right, left = circular_amplitudes(components)
    norm = np.hypot(np.abs(right), np.abs(left))
    rho = np.sqrt(2.0 * np.maximum(components["f_statistic"], 1.0))
    root_r, root_l = np.sqrt(np.abs(right)), np.sqrt(np.abs(left))
    cos_iota = (root_r - root_l) / (root_r + root_l)
    sigma = np.sqrt(np.diagonal(components["covariance"], axis1=1, axis2=2))
    covariance = components["covariance"]
    mid = covariance[:, 0, 0] + covariance[:, 0, 3] + 0.25 * covariance[:, 3, 3]
    weaker = np.minimum(np.abs(right), np.abs(left)) / norm
    # of a phase: 1 / (sqrt2 rho) for the amplitude's share of the whole signal
    sigma_phi0 = np.clip(0.7 / (rho * np.maximum(weaker, 1e-3)), 0.01, 0.8)
    # d|l|/dcos iota vanishes face-on, so the width grows towards it
    sigma_cos = np.clip(0.7 / (rho * np.maximum(np.sqrt(weaker), 0.05)), 0.01, 0.5)
    columns = (
        components["bin"], components["ra"], components["dec"],
        np.clip(sigma[:, 0], 0.005, 0.5), np.clip(sigma[:, 1], 2e-3, 1.0),
        np.clip(sigma[:, 2], 2e-3, 1.0), np.log(norm), np.clip(rho, 3.0, 200.0),
        cos_iota, np.angle(-right), np.angle(-left), sigma_phi0, sigma_cos,
        np.clip(np.sqrt(np.maximum(mid, 0.0)), 0.002, 0.5), components["fdot_t2"] / widening,
        np.full(len(components), widening),
    )  # fmt: skip
    return np.stack(columns, axis=-1)


def token_features(
    components: NDArray[np.void], window: tuple[float, float], bins: int, widening: float = 1.0
) -> Float:
    """Return (C, TOKEN_WIDTH) features in the order of :data:`TOKEN_FEATURES`.

    Args:
        components: (C,).
        window: edges of the window of interest, in bins from the band's first.
        bins: bins in the band.
        widening: of the range of fdot in this band; fdot and its width are told in its units.
    """
    ref = references(components)
    right, left = circular_amplitudes(components)
    covariance = components["covariance"]
    sigma = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    correlation = covariance / (sigma[:, :, None] * sigma[:, None, :])
    upper = np.triu_indices(4, 1)
    low, high = window
    position = components["bin"]
    fold = ref[:, 9] - ref[:, 10]  # 4 psi
    columns = [
        (position / bins - 0.5)[:, None],
        np.tanh(np.stack([position - low, high - position], axis=-1) / 4.0),
        np.log(np.maximum(components["f_statistic"], 1.0))[:, None] - 4.0,
        _direction(components["ra"], components["dec"]),
        np.log(sigma / np.array([1.0, 1.0, 1.0, widening])) + 2.0,
        correlation[:, upper[0], upper[1]],
        components["fdot_t2"][:, None] * (5.0 / widening),
        np.stack([ref[:, 8], _log_ratio(right, left) / 3.0], axis=-1),
        np.stack([np.cos(fold), np.sin(fold)], axis=-1),
        (ref[:, 6] - np.log(ref[:, 7]) + 52.0)[:, None],
        _direction(components["second_ra"], components["second_dec"]),
        np.arcsinh(components["second_loss"] / 2.0)[:, None] / 2.0,
        np.log(components["patch"] + 0.1),
    ]
    return np.concatenate(columns, axis=1)


def band_tokens(
    found: ComponentSet,
    first_bin: int,
    bins: int,
    duration: float,
    window: tuple[float, float],
    capacity: int,
) -> BandTokens:
    """Turn a band's components into padded arrays.

    Args:
        found: the components, at most ``capacity``.
        first_bin: the band's first Fourier bin.
        bins: bins in the band.
        duration: observation time T, seconds.
        window: first and last edge of the window of interest, in bins from the first.
        capacity: C.
    """
    count = len(found.components)
    if count > capacity:
        raise ValueError(f"expected at most {capacity} components; got {count}")
    features = np.zeros((capacity, TOKEN_WIDTH), dtype=np.float32)
    reference = np.zeros((capacity, len(REFERENCE)))
    reference[:, 3:6], reference[:, 7], reference[:, 11:14], reference[:, 15] = 0.5, 3.0, 0.5, 1.0
    if count:
        widening = float(fdot_widening((first_bin + 0.5 * bins) / duration))
        features[:count] = token_features(found.components, window, bins, widening)
        reference[:count] = references(found.components, widening)
    frequency = (first_bin + 0.5 * bins) / duration
    band = np.array(
        [
            _compressed((frequency - 1.5e-3) / 0.5e-3),
            *np.log(found.level),
            count / capacity - 0.5,
            (window[1] - window[0]) / bins - 0.5,
        ],
        dtype=np.float32,
    )
    return BandTokens(features, band, reference, np.arange(capacity) < count)


def _compressed(place: float) -> float:
    """Return the number itself up to 2, above it a logarithm that goes on from there."""
    return place if place <= 2.0 else 2.0 + 2.0 * float(np.log(0.5 * place))


def _direction(ra: Float, dec: Float) -> Float:
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=-1)


def _log_ratio(right: Complex, left: Complex) -> Float:
    tiny = 1e-30  # far below any amplitude that can be seen
    return np.log((np.abs(right) + tiny) / (np.abs(left) + tiny))
