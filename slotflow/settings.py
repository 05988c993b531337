"""Settings of what was observed and of the training prior; :mod:`slotflow.config` has the rest."""

from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys and numbers that are not finite.

    What is named in ``added`` is left out of a dump where it has its default: training sets,
    searches and runs are known by their settings' dumps, also those made before it came.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    added: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_defaults_of_added(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        for name in self.added:
            if name in content and getattr(self, name) == fields[name].default:
                del content[name]
        return content


class GapSettings(Settings):
    """Gaps in the data: planned ones at fixed intervals, and random ones (our choice of laws).

    Planned gaps begin at ``(i + 1/2) interval``, each moved by up to ``jitter`` either way;
    random ones are a Poisson process whose lengths follow an exponential law. Each band of a
    training set has its own; an observation has those of its seed.
    """

    planned_interval: float = Field(0.0, ge=0, description="days between planned gaps; 0: none")
    planned_hours: float = Field(7.0, gt=0, description="length of a planned gap, h")
    planned_jitter: float = Field(0.0, ge=0, description="days")
    random_rate: float = Field(0.0, ge=0, description="random gaps a year")
    random_hours: float = Field(24.0, gt=0, description="their mean length, h")
    taper_hours: float = Field(6.0, ge=0, description="cosine taper on both sides of a gap, h")

    @property
    def any(self) -> bool:
        """Whether there are gaps at all."""
        return self.planned_interval > 0.0 or self.random_rate > 0.0

    @model_validator(mode="after")
    def _gaps_fit(self) -> "GapSettings":
        spacing = 24.0 * (self.planned_interval - 2.0 * self.planned_jitter)
        if self.planned_interval > 0.0 and spacing <= self.planned_hours:
            raise ValueError("planned gaps must not touch: interval too short")
        return self


class ObservationSettings(Settings):
    """One year of TDI data (docs: the data product)."""

    samples: int = Field(524_288, ge=1024, description="samples of the series")
    dt: float = Field(60.0, gt=0, description="sampling step, s")
    t0: float = Field(0.0, description="start, s since 2035-01-01T00:00:00 TCB")
    tukey: float = Field(0.05, ge=0.01, le=1, description="tapered fraction of the Tukey window")
    tdi_generation: Literal["1.5", "2.0"] = "1.5"
    channels: Literal["AET", "XYZ"] = Field("AET", description="of a training set's bands")
    orbit: Literal["equal_arm", "keplerian", "file"] = "equal_arm"
    orbit_file: str | None = Field(None, description="a lisaorbits file, with orbit: file")
    orbit_sha256: str | None = Field(None, description="of that file; filled in when it is read")
    arm_length: float = Field(
        2.5e9, gt=1e8, lt=1e11, description="m; of an orbit file its mean, filled in"
    )
    orbit_lambda1: float = Field(0.0, description="lisaorbits' lambda1, rad")
    orbit_m_init1: float = Field(0.0, description="lisaorbits' m_init1, rad")
    noise: Literal["scirdv1", "scirdv1_10pm", "table"] = "scirdv1"
    noise_file: str | None = Field(None, description="a table of the density, with noise: table")
    noise_table: tuple[tuple[float, ...], ...] | None = Field(
        None, description="rows of f (Hz), S_A, S_E, S_T (1/Hz); filled in from noise_file"
    )
    foreground: bool = Field(True, description="the Galactic foreground is in the data")
    gaps: GapSettings = GapSettings()

    @property
    def duration(self) -> float:
        """Observation time T, s."""
        return self.samples * self.dt

    @model_validator(mode="after")
    def _sources_of_files(self) -> "ObservationSettings":
        if (self.orbit == "file") != (self.orbit_file is not None):
            raise ValueError("orbit_file must be given with orbit: file, and only then")
        if self.orbit == "file" and (self.orbit_lambda1 or self.orbit_m_init1):
            raise ValueError("orbit_lambda1 and orbit_m_init1 have no effect with orbit: file")
        table = self.noise_file is not None or self.noise_table is not None
        if (self.noise == "table") != table:
            raise ValueError("noise_file must be given with noise: table, and only then")
        return self


class PopulationSettings(Settings):
    """The Galaxy's double white dwarfs (slotflow.simulate.population; our calibration)."""

    density: float = Field(5.3e6, ge=0, description="binaries per Hz at 3 mHz")
    slope: float = Field(-11.0 / 3.0, lt=-1, description="dN/df ~ f^slope")
    disc_fraction: float = Field(0.75, ge=0, le=1)
    disc_scale: float = Field(2.5, gt=0, description="kpc")
    disc_height: float = Field(0.3, gt=0, description="kpc")
    bulge_scale: float = Field(0.5, gt=0, description="kpc")
    sun_radius: float = Field(8.1, gt=0, description="kpc")
    chirp_mass_mean: float = Field(0.37, gt=0, description="solar masses")
    chirp_mass_sigma: float = Field(0.12, gt=0)
    chirp_mass_min: float = Field(0.12, gt=0)
    chirp_mass_max: float = Field(0.62, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> "PopulationSettings":
        if not self.chirp_mass_min < self.chirp_mass_mean < self.chirp_mass_max:
            raise ValueError("chirp_mass_min < chirp_mass_mean < chirp_mass_max expected")
        return self


class SegmentSettings(Settings):
    """From which frequency on a band's window of interest has which width."""

    start: float = Field(ge=0, description="lowest central frequency, Hz")
    window: int = Field(ge=2, multiple_of=2, description="central bins of interest")


#: A quantity by frequency: rows of frequency (Hz) and value.
Table = tuple[tuple[float, float], ...]


class PriorSettings(Settings):
    """The default training prior; every number is our choice (docs: the training prior)."""

    added: ClassVar[frozenset[str]] = frozenset(
        {"segments", "density", "confusion_share", "max_outside"}
    )

    bins: int = Field(256, ge=64, multiple_of=2, description="Fourier bins of a band")
    margin: int = Field(32, ge=0, description="bins simulated beyond each edge")
    fmin: float = Field(1.0e-3, gt=0, description="lowest band centre, Hz")
    fmax: float = Field(2.1e-3, gt=0, description="highest band centre, Hz")
    max_sources: int = Field(4, ge=1, le=16, description="K_max")
    empty_fraction: float = Field(0.1, ge=0, le=1, description="share of bands without target")
    wide_window: int = Field(
        192, ge=2, description="central bins of interest below split_frequency"
    )
    narrow_window: int = Field(96, ge=2, description="central bins of interest above it")
    split_frequency: float = Field(1.7e-3, gt=0, description="Hz")
    segments: tuple[SegmentSettings, ...] = Field(
        (), description="windows by frequency, in place of the three settings above"
    )
    density: Table = Field(
        (), description="resolvable sources per bin by frequency (Hz), at rate scale 1: their"
        " number in a window is Poisson, up to max_sources; none: uniform 1..max_sources",
    )  # fmt: skip
    max_outside: int = Field(
        24, ge=1, le=256, description="bright sources outside the window that are recorded"
    )
    snr_min: float = Field(5.0, gt=0)
    snr_max: float = Field(100.0, gt=0)
    snr_law: Literal["log_uniform", "uniform", "euclidean"] = Field(
        "log_uniform", description="density of the SNR: 1/SNR, flat, or SNR^-4"
    )
    sky: Literal["isotropic", "galactic"] = Field(
        "isotropic", description="of the resolvable sources; galactic: as the population's"
    )
    fdot_t2_min: float = -0.1
    fdot_t2_max: float = 0.3
    rate_scale_min: float = Field(0.5, gt=0, description="foreground rate scale, log-uniform")
    rate_scale_max: float = Field(2.0, gt=0)
    foreground_snr_max: float = Field(5.0, gt=0, description="louder members are left out")
    confusion_share: Table = Field(
        (), description="by frequency (Hz), of the confusion's fit in the density against which"
        " an SNR is taken; none: all of it",
    )  # fmt: skip
    oms_scale_min: float = Field(
        1.0, gt=0, description="optical metrology noise, factor on its amplitude, log-uniform"
    )
    oms_scale_max: float = Field(1.0, gt=0)
    acceleration_scale_min: float = Field(1.0, gt=0, description="acceleration noise, likewise")
    acceleration_scale_max: float = Field(1.0, gt=0)
    noise_scale_min: float = Field(1.0, gt=0, description="all instrument noise, likewise")
    noise_scale_max: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> "PriorSettings":
        for name in (
            "f", "snr_", "fdot_t2_", "rate_scale_", "oms_scale_", "acceleration_scale_",
            "noise_scale_",
        ):  # fmt: skip
            low, high = f"{name}min", f"{name}max"
            if not getattr(self, low) <= getattr(self, high):
                raise ValueError(f"{low} must not exceed {high}")
        if max(window for _, window in self.windows) > self.bins:
            raise ValueError("the window of interest must not be wider than the band")
        return self

    @model_validator(mode="after")
    def _tables(self) -> "PriorSettings":
        starts = [segment.start for segment in self.segments]
        if starts and (starts != sorted(set(starts)) or starts[0] > self.fmin):
            raise ValueError("segments must begin at fmin or below, each above the one before")
        for name in ("density", "confusion_share"):
            table = getattr(self, name)
            places = [row[0] for row in table]
            if places != sorted(set(places)) or any(f <= 0 or value <= 0 for f, value in table):
                raise ValueError(f"{name}: rows of growing frequency and values above 0 expected")
        if self.density and self.empty_fraction:
            raise ValueError("empty_fraction has no effect with density: set it to 0")
        return self

    @property
    def windows(self) -> tuple[tuple[float, int], ...]:
        """Lowest central frequency (Hz) and width in bins of each kind of window, by frequency."""
        if self.segments:
            return tuple((segment.start, segment.window) for segment in self.segments)
        return (0.0, self.wide_window), (self.split_frequency, self.narrow_window)

    def window(self, frequency: float) -> int:
        """Width in bins of the central window that holds a band's targets."""
        width = self.windows[0][1]
        for start, window in self.windows[1:]:
            if frequency >= start:
                width = window
        return width
