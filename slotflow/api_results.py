"""Results in Python: sources as objects, with tables, pictures and files."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError
from slotflow.parameters import NAMES, PARAMETERS
from slotflow.provenance import Provenance, refuse_existing
from slotflow.refined import Refinement
from slotflow.response import ResponseGrid
from slotflow.results import BandView, Result, SourcePosterior

if TYPE_CHECKING:
    import xarray as xr
    from astropy.table import Table
    from matplotlib.figure import Figure

Float = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The posterior of one source.

    Attributes:
        record: the samples as an array, and what else is known.
    """

    record: SourcePosterior

    @cached_property
    def samples(self) -> "Table":
        """The samples: columns f0, fdot, amplitude, ra, dec, psi, iota, phi0 (with units), log_q.

        Example:
            >>> source.samples["ra"].mean(), source.samples.to_pandas()
        """
        from astropy.table import Table

        table = Table(self.record.samples, names=NAMES)
        for parameter in PARAMETERS:
            table[parameter.name].unit = parameter.unit or None
        table["log_q"] = self.record.log_q
        return table

    @property
    def median(self) -> dict[str, float]:
        """Medians by parameter; psi modulo pi/2 and phi0 modulo pi, which are symmetries."""
        return dict(zip(NAMES, self.record.median.tolist(), strict=True))

    def interval(self, mass: float = 0.9) -> dict[str, tuple[float, float]]:
        """Central intervals of that mass by parameter; lower > upper: it runs through zero.

        Raises:
            ValueError: a mass that is not between 0 and 1.

        Example:
            >>> low, high = source.interval(0.68)["amplitude"]
        """
        if not 0.0 < mass < 1.0:
            raise ValueError(f"mass: expected a number between 0 and 1; got {mass}")
        found = self.record.interval(mass)
        return {
            name: (float(found.lower[i]), float(found.upper[i])) for i, name in enumerate(NAMES)
        }

    @property
    def f0(self) -> float:
        """Median frequency, Hz."""
        return self.record.f0

    @property
    def probability(self) -> float:
        """That the source exists."""
        return self.record.probability

    @property
    def snr(self) -> float:
        """Of the component it was found from, against the noise level of its band."""
        return self.record.snr

    def __repr__(self) -> str:
        return (
            f"<source at {1e3 * self.f0:.7f} mHz, SNR {self.snr:.1f}, p = {self.probability:.3f}>"
        )

    def plot_corner(self, truth: Float | None = None) -> "Figure":
        """Draw all pairs of parameters; ``truth`` (8,), where known, is marked."""
        from slotflow.plots import plot_corner

        return plot_corner(self.record, truth)

    def plot_sky(self, truth: Float | None = None) -> "Figure":
        """Draw the sky position; ``truth`` (8,), where known, is marked."""
        from slotflow.plots import plot_sky

        return plot_sky(self.record, truth)


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior(Sequence[Source]):
    """The sources of an observation, by frequency: a sequence of :class:`Source`.

    Attributes:
        result: the sources, bands, settings and notes as records.
        provenance: what made it.
        grid: the model's observation, by which waveforms are drawn.

    Example:
        >>> len(result), result[0].f0, result.notes
    """

    result: Result
    provenance: Provenance
    grid: ResponseGrid

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The sources, by frequency; none at all is a result, too."""
        return tuple(Source(record) for record in self.result.sources)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, one line each."""
        return self.result.notes

    @property
    def refinements(self) -> tuple[Refinement, ...]:
        """How each band was refined: evidence, diagnostics, warnings; empty where none was."""
        return self.result.refinements

    def __len__(self) -> int:
        return len(self.result.sources)

    @overload
    def __getitem__(self, index: int) -> Source: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Source, ...]: ...
    def __getitem__(self, index: int | slice) -> Source | tuple[Source, ...]:
        return self.sources[index]

    def __repr__(self) -> str:
        settings = self.result.settings
        return f"<{len(self)} sources from {settings.fmin:g} to {settings.fmax:g} Hz>"

    def table(self) -> "Table":
        """Return medians and 90% intervals, one row a source (:mod:`slotflow.catalogue`)."""
        from slotflow.catalogue import to_table

        return to_table(self.result, self.provenance)

    def to_arviz(self) -> "xr.DataTree":
        """Return the samples as an ArviZ DataTree (:mod:`slotflow.catalogue`)."""
        from slotflow.catalogue import to_datatree

        return to_datatree(self.result, self.provenance)

    def write(
        self, folder: str | Path, stem: str | None = None, *, exports: Sequence[str] = (),
        force: bool = False,
    ) -> list[Path]:  # fmt: skip
        """Write ``<stem>.posterior.nc``, ``.catalogue.ecsv``, ``.catalogue.csv`` and exports.

        Args:
            folder: where to; it is made if missing.
            stem: of the files' names; that of the input where None.
            exports: formats of :data:`slotflow.exports.EXPORTS`: glass, l3c, bilby.
            force: replace files that are there.

        Returns:
            The files written.

        Raises:
            InputError: an unknown format, or a file that cannot be written.
            OutputExistsError: a file is there, and not ``force``.

        Example:
            >>> result.write("results", exports=["glass", "l3c"])
        """
        from slotflow import catalogue
        from slotflow.exports import export

        place, name = Path(folder), stem or Path(self.provenance.input).stem
        ends = ("posterior.nc", "catalogue.ecsv", "catalogue.csv")
        paths = [place / f"{name}.{end}" for end in ends]
        for path in paths:
            refuse_existing(path, force)
        written = export(exports, self.result, self.provenance, place, name, force=force)
        table = self.table()
        catalogue.write_netcdf(self.to_arviz(), paths[0])
        catalogue.write_csv(table, paths[2])
        catalogue.write_table(table, paths[1])
        return [*paths, *written]

    def plot_corner(self, source: int | None = None, truth: Float | None = None) -> "Figure":
        """Draw all pairs of parameters of one source.

        Args:
            source: its place in the sequence; the loudest where None.
            truth: (8,) its true parameters, where known.

        Raises:
            InputError: there is no source.

        Example:
            >>> result.plot_corner(0).savefig("corner.png")
        """
        return self.sources[self._loudest() if source is None else source].plot_corner(truth)

    def plot_sky(self, source: int | None = None, truth: Float | None = None) -> "Figure":
        """Draw the sky position of one source; arguments as of :meth:`plot_corner`."""
        return self.sources[self._loudest() if source is None else source].plot_sky(truth)

    def plot_band(self, first_bin: int | None = None, truth: Float | None = None) -> "Figure":
        """Draw a band with its sources and what is left without them.

        Args:
            first_bin: of the band; that of the loudest source where None.
            truth: (S, 8) true sources, where known.

        Raises:
            InputError: that band was not kept.

        Example:
            >>> result.plot_band(result[0].record.first_bin).savefig("band.png")
        """
        from slotflow.plots import plot_band

        return plot_band(self._view(first_bin), self.result, self.grid, truth)

    def plot_slots(self, first_bin: int | None = None) -> "Figure":
        """Draw attention and evidence of a band's slots; ``first_bin`` as of :meth:`plot_band`."""
        from slotflow.plots import plot_slots

        return plot_slots(self._view(first_bin))

    def _loudest(self) -> int:
        if not self.result.sources:
            raise InputError(f"{self.provenance.input}: no source was found: nothing to draw")
        return int(np.argmax([source.snr for source in self.result.sources]))

    def _view(self, first_bin: int | None) -> BandView:
        views: Mapping[int, BandView] = self.result.views
        if first_bin is None and self.result.sources:
            first_bin = self.result.sources[self._loudest()].first_bin
        elif first_bin is None:
            first_bin = min(views, default=-1)
        if first_bin not in views:
            kept = ", ".join(map(str, sorted(views)[:8])) or "none (keep_bands=True keeps them)"
            raise InputError(f"first_bin: {first_bin}: bands kept: {kept}")
        return views[first_bin]
