"""Tokens and truths of searched bands, and how a training run asks for them: by number."""

import hashlib
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]


class TokenData(NamedTuple):
    """Tokens and truths of N searched bands (sample and noise draw), K sources at most.

    ``features`` (N, C, TOKEN_WIDTH) float32, ``band`` (N, 5) float32, ``reference``
    (N, C, R), ``valid`` (N, C); ``sources`` (N, K, 8) float64 as for
    :func:`slotflow.coordinates.to_local` (padded with the band's centre), ``snr`` (N, K)
    NaN-padded, ``number`` (N,) of sources, ``component`` (N, K) int64, -1 for none,
    ``sample`` (N,) and
    ``first_bin`` (N,).
    """

    features: NDArray[np.float32]
    band: NDArray[np.float32]
    reference: Float
    valid: NDArray[np.bool_]
    sources: Float
    snr: Float
    number: Int
    component: Int
    sample: Int
    first_bin: Int

    def rows(self, index: Int) -> "TokenData":
        """Return the chosen bands."""
        chosen: list[Any] = [array[index] for array in self]
        return TokenData(*chosen)


class TokenSource(Protocol):
    """Bands that are read by their number (:class:`slotflow.tokenstore.TokenStore`, say)."""

    @property
    def sample(self) -> Int:
        """The sample that each band belongs to: (N,)."""

    def __len__(self) -> int: ...

    def rows(self, index: Int) -> TokenData:
        """Return the chosen bands."""

    def bands(self, index: Int) -> NDArray[np.complex64]:
        """Return the whitened A, E, T of TDI 1.5 of the chosen bands: (n, 3, bins)."""

    def fingerprint(self) -> str:
        """Return what tells these bands from others."""


class TokenArrays:
    """Bands in memory as a :class:`TokenSource`."""

    def __init__(self, data: TokenData, bands: NDArray[np.complex64] | None = None) -> None:
        """Hold these; ``bands`` (N, 3, bins) where a network wants them."""
        self.data, self._bands = data, bands

    @property
    def sample(self) -> Int:
        """The sample that each band belongs to: (N,)."""
        return self.data.sample

    def __len__(self) -> int:
        return len(self.data.number)

    def rows(self, index: Int) -> TokenData:
        """Return the chosen bands."""
        return self.data.rows(index)

    def bands(self, index: Int) -> NDArray[np.complex64]:
        """Return the whitened data of the chosen bands.

        Raises:
            ValueError: there are none.
        """
        if self._bands is None:
            raise ValueError("expected bands' data for the stream 'spectrum'; none were given")
        return self._bands[index]

    def fingerprint(self) -> str:
        """Return what tells these bands from others."""
        return hashlib.sha256(np.ascontiguousarray(self.data.features).tobytes()).hexdigest()


class TokenSubset:
    """Some bands of a source, in the order of ``index``."""

    def __init__(self, source: TokenSource, index: Int) -> None:
        """Choose the bands ``index`` (N,) of ``source``."""
        self.source, self.index = source, index

    @property
    def sample(self) -> Int:
        """The sample that each band belongs to: (N,)."""
        return self.source.sample[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, index: Int) -> TokenData:
        """Return the chosen bands of the subset."""
        return self.source.rows(self.index[index])

    def bands(self, index: Int) -> NDArray[np.complex64]:
        """Return the whitened data of the chosen bands of the subset."""
        return self.source.bands(self.index[index])

    def fingerprint(self) -> str:
        """Return what tells these bands from others."""
        own = hashlib.sha256(self.index.tobytes()).hexdigest()
        return f"{self.source.fingerprint()}/{own}"


def as_source(data: TokenSource | TokenData) -> TokenSource:
    """Return bands, in memory or not, as a source."""
    return TokenArrays(data) if isinstance(data, TokenData) else data
