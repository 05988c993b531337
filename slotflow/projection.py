"""A band's data onto the linear responses of its sources: what the amplitudes' likelihood needs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]


class Projection(NamedTuple):
    """Data onto the two basis responses of one source a particle, over the noise.

    Attributes:
        power: (P,) ``sum |r|^2 / level`` of the data that were projected.
        product: (P, 2) complex ``b = sum conj(u) r / level`` of plus and cross.
        gram: (P, 2, 2) complex Hermitian ``G = sum conj(u_i) u_j / level``, in the band.
        snr_gram: (P, 2, 2) likewise over all bins and by the training set's noise:
            ``SNR^2 = 2 conj(d) . snr_gram . d``.
    """

    power: Float
    product: Complex
    gram: Complex
    snr_gram: Complex


class JointProjection(NamedTuple):
    """The band onto the basis responses of all S sources of a particle.

    Attributes:
        power: (P,) ``sum |d|^2 / level``.
        product: (P, 2 S) complex, source by source (plus, cross).
        gram: (P, 2 S, 2 S) complex Hermitian.
        snr_gram: (P, S, 2, 2) as in :class:`Projection`.
    """

    power: Float
    product: Complex
    gram: Complex
    snr_gram: Complex


def joined(data: Complex, bases: Complex, snr_gram: Complex, weight: Float) -> JointProjection:
    """Project data on all sources' bases together.

    Args:
        data: (2, K) whitened.
        bases: (P, S, 2, 2, K): particle, source, polarisation, channel, bin.
        snr_gram: (P, S, 2, 2), passed on.
        weight: (1 or P, 2) one over the noise level.
    """
    particles, number, *_, bins = bases.shape
    root = np.sqrt(weight)[:, None, :, None]
    scaled = bases.reshape(particles, 2 * number, 2, bins) * root
    scaled = scaled.reshape(particles, 2 * number, 2 * bins)
    weighted = (data * np.sqrt(weight)[:, :, None]).reshape(-1, 2 * bins)
    conjugate = scaled.conj()
    product = (conjugate @ weighted[:, :, None])[..., 0]
    gram = conjugate @ np.swapaxes(scaled, 1, 2)
    power = np.broadcast_to((np.abs(weighted) ** 2).sum(axis=1), particles).copy()
    return JointProjection(power, product, gram, snr_gram)
