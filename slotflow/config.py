"""Validated settings: what was observed, the training prior, the network, the training.

Each preset is a YAML file in ``slotflow/presets``. Unknown keys are errors that name the key.
"""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, ValidationError, model_validator

from slotflow.errors import InputError
from slotflow.plain import parse_yaml
from slotflow.settings import (
    GapSettings,
    ObservationSettings,
    PopulationSettings,
    PriorSettings,
    SegmentSettings,
    Settings,
)

__all__ = [
    "MAX_PROBLEMS", "MIXER_OPTIONS", "ComponentSettings", "GapSettings", "LossSettings",
    "ModelSettings", "ObservationSettings", "PopulationSettings", "Preset", "PriorSettings",
    "SegmentSettings", "Settings", "StreamName", "TrainSettings", "first_difference", "load_preset",
    "parse_preset", "preset_names",
]  # fmt: skip

MAX_PROBLEMS = 20  # of settings that are named in one message


class ComponentSettings(Settings):
    """The component search (docs: components as tokens)."""

    added: ClassVar[frozenset[str]] = frozenset({"crowded", "rounds", "starts"})

    sky_points: int = Field(320, ge=12, le=100_000)
    slow_samples: int = Field(
        128, ge=64, le=65_536, multiple_of=4, description="of the last refit; the search takes half"
    )
    taps: int = Field(33, ge=9)
    max_components: int = Field(16, ge=1, le=1024)
    threshold: float = Field(22.0, gt=0, description="2F below which the search stops")
    block: int = Field(1024, ge=1, le=1 << 20, description="bins that share one template bank")
    crowded: bool = Field(
        False, description="sources in most bins: the noise level is estimated as they come out"
    )
    rounds: int = Field(1, ge=1, description="of search and refits")
    starts: int = Field(
        0, ge=0, le=64, description="of the local fit beside a peak, at other bins and sky places"
    )

    @model_validator(mode="after")
    def _filters_fit(self) -> "ComponentSettings":
        if self.taps % 2 == 0 or self.taps > self.slow_samples // 2:
            raise ValueError("taps must be odd and at most half of slow_samples")
        return self


StreamName = Literal[
    "slot", "attended", "component", "measured", "moments", "band",
    "attended_measured", "frequency", "spectrum", "summary",
]  # fmt: skip


#: Settings of one mixer alone.
MIXER_OPTIONS: Final = {
    "quaternion_scores": ("quaternion",),
    "kuramoto_causal": ("kuramoto",),
    "dice_scores": ("dice",),
    "dice_binary": ("dice",),
    "mixer_spectrum": ("quaternion", "dice"),
}
#: Width that a mixer's head needs in whole: a quaternion's four numbers, a phase's two; two
#: streams share the width.
_UNITS: Final = {"softmax": 1, "quaternion": 4, "kuramoto": 2, "dice": 1}


class ModelSettings(Settings):
    """The network's shape."""

    added: ClassVar[frozenset[str]] = frozenset({
        "mixer", "mixer_spectrum", "mlp_width", "quaternion_scores", "kuramoto_causal",
        "dice_scores", "dice_binary", "parameterisation", "psi_stretched", "mid_epoch",
        "evidence_gradient",
    })  # fmt: skip

    width: int = Field(96, ge=8, description="token and slot width")
    layers: int = Field(2, ge=0, description="token self-attention layers")
    heads: int = Field(4, ge=1)
    neighbour_scale: float = Field(24.0, gt=0, description="bins over which pairs see each other")
    slots: int = Field(5, ge=1)
    slot_attention: Literal["evidence-depletion", "sequential", "vanilla"] = "evidence-depletion"
    depletion: Literal["linear", "quadratic", "cubic", "binary"] = "quadratic"
    iterations: int = Field(3, ge=1)
    gamma: float = Field(3.0, ge=0)
    tau: float = Field(0.3, gt=0)
    epsilon: float = Field(1e-4, gt=0, lt=1)
    evidence_gradient: bool = Field(
        True, description="gradients flow through what evidence a slot leaves to the next"
    )
    learned_starts: bool = True
    context: int = Field(128, ge=8)
    streams: tuple[StreamName, ...] = Field(
        ("slot", "attended", "component", "measured", "moments", "band"), min_length=1,
        description="what the context is made of (slotflow.context)",
    )  # fmt: skip
    mix: bool = Field(True, description="mix the streams by a network; else they are the context")
    stream_dropout: float = Field(
        0.0, ge=0, lt=1, description="chance that a slot is trained without a droppable stream"
    )
    auxiliary_heads: bool = Field(False, description="of frequency, amplitude and sky")
    flow_layers: int = Field(6, ge=1)
    flow_bins: int = Field(12, ge=2)
    flow_hidden: int = Field(96, ge=8)
    flow_blocks: int = Field(2, ge=0, description="residual blocks of a layer's conditioner")
    tail_bound: float = Field(5.0, gt=0)
    psi_bins: int = Field(16, ge=2)
    psi_hidden: int = Field(96, ge=8)
    psi_stretched: bool = Field(
        False, description="psi's circle stretched about the component's by its SNR"
    )
    mid_epoch: bool = Field(
        False, description="local coordinates of the frequency and phase amid the observation"
    )
    dropout: float = Field(0.0, ge=0, lt=1)
    mixer: Literal["softmax", "quaternion", "kuramoto", "dice"] = Field(
        "softmax", description="how tokens see each other (slotflow.mixers)"
    )
    mixer_spectrum: bool = Field(
        False, description="quaternion, dice: also read the band's data, by a Conformer or streams"
    )
    mlp_width: int | None = Field(
        None, ge=1, description="of the two-layer network after each mixer; twice the width if null"
    )
    quaternion_scores: Literal["shared", "hamilton"] = "shared"
    kuramoto_causal: bool = Field(False, description="see components of lower frequency alone")
    dice_scores: Literal["dice", "linear"] = "dice"
    dice_binary: bool = Field(False, description="features of 0 and 1, straight through")
    parameterisation: Literal["factorised", "collapsed"] = Field(
        "factorised", description="of query-key and output-value in slots and the softmax mixer"
    )

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "ModelSettings":
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} must divide the width {self.width}")
        if len(set(self.streams)) != len(self.streams):
            raise ValueError("streams: each may be named once")
        unit = 2 if self.mixer == "dice" and self.mixer_spectrum else _UNITS[self.mixer]
        if self.width % (unit * self.heads):
            raise ValueError(
                f"mixer {self.mixer}: width {self.width} must be a multiple of {unit} x heads"
                f" {self.heads}"
            )
        return self

    @model_validator(mode="after")
    def _options_have_their_mixer(self) -> "ModelSettings":
        fields = type(self).model_fields
        for name, mixers in MIXER_OPTIONS.items():
            if getattr(self, name) != fields[name].default and self.mixer not in mixers:
                raise ValueError(
                    f"{name} has no effect with mixer: {self.mixer} (needs {' or '.join(mixers)})"
                )
        if not self.evidence_gradient and self.slot_attention != "evidence-depletion":
            raise ValueError(
                f"evidence_gradient has no effect with slot_attention: {self.slot_attention}"
            )
        if self.layers == 0:
            for name in ("mixer", "mlp_width"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(f"{name} has no effect with layers: 0")
        return self


class LossSettings(Settings):
    """Weights of the loss terms (slotflow.losses)."""

    nll: float = Field(1.0, ge=0)
    psi: float = Field(1.0, ge=0)
    existence: float = Field(2.0, ge=0)
    attention: float = Field(1.0, ge=0)
    component: float = Field(2.0, ge=0)
    diversity: float = Field(0.01, ge=0)
    orthogonality: float = Field(0.01, ge=0)
    frequency: float = Field(0.0, ge=0)
    cardinality: float = Field(0.0, ge=0)
    amplitude: float = Field(0.0, ge=0)
    sky: float = Field(0.0, ge=0)
    focal_gamma: float = Field(0.0, ge=0, description="of the existence term; 0: cross-entropy")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="of the existence term")


class TrainSettings(Settings):
    """The optimisation."""

    added: ClassVar[frozenset[str]] = frozenset({"qk_learning_rate_ratio"})

    samples: int = Field(4_000, ge=1, description="bands simulated where no data set is given")
    noise_draws: int = Field(2, ge=1, description="noise realisations cached per stored band")
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    batch: int = Field(128, ge=1)
    passes: int = Field(100_000, ge=1, description="training samples seen in all")
    accumulate: int = Field(1, ge=1, description="batches that make one step")
    optimiser: Literal["adamw", "adam"] = "adamw"
    schedule: Literal["cosine", "plateau", "constant"] = Field(
        "cosine", description="of the learning rate, after the warm-up"
    )
    patience: int = Field(10, ge=0, description="validations without gain, of plateau")
    factor: float = Field(0.5, gt=0, lt=1, description="by which plateau then lowers the rate")
    validations: int = Field(20, ge=1, description="over a whole run")
    learning_rate: float = Field(1e-3, gt=0)
    qk_learning_rate_ratio: float = Field(
        1.0, gt=0, description="of queries' and keys' learning rate to that of all else"
    )
    weight_decay: float = Field(1e-4, ge=0)
    warmup: float = Field(0.03, ge=0, lt=1, description="share of the steps")
    clip: float = Field(5.0, gt=0)
    matching: Literal["attention", "flow"] = Field(
        "attention", description="cost of a slot and a source: its attention, or the flow's NLL"
    )
    average: float = Field(0.999, ge=0, lt=1, description="decay of the weights' moving average")
    seed: int = Field(1, ge=0)
    checkpoint_seconds: float = Field(60.0, gt=0)


class Preset(Settings):
    """All the settings of a simulation, a model and its training."""

    observation: ObservationSettings = ObservationSettings()
    prior: PriorSettings = PriorSettings()
    population: PopulationSettings = PopulationSettings()
    components: ComponentSettings = ComponentSettings()
    model: ModelSettings = ModelSettings()
    loss: LossSettings = LossSettings()
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _slots_hold_the_sources(self) -> "Preset":
        if self.model.slots < self.prior.max_sources:
            raise ValueError("model.slots must not be below prior.max_sources")
        return self

    @model_validator(mode="after")
    def _heads_for_their_losses(self) -> "Preset":
        if self.model.auxiliary_heads:
            return self
        for name in ("frequency", "amplitude", "sky"):
            if getattr(self.loss, name) > 0.0:
                raise ValueError(f"loss.{name} needs model.auxiliary_heads")
        return self

    @model_validator(mode="after")
    def _a_table_has_no_parts(self) -> "Preset":
        prior = self.prior
        parts = {prior.oms_scale_min, prior.oms_scale_max}
        parts |= {prior.acceleration_scale_min, prior.acceleration_scale_max}
        if self.observation.noise == "table" and parts != {1.0}:
            raise ValueError("oms_scale and acceleration_scale have no effect with noise: table")
        return self


def preset_names() -> list[str]:
    """Names of the presets that ship, sorted."""
    folder = resources.files("slotflow.presets")
    return sorted(
        p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")
    )


def load_preset(name_or_path: str) -> Preset:
    """Return the preset of that name, or the one in that YAML file.

    Raises:
        InputError: no such preset or file, not readable, not YAML, or a key or value that is
            not valid; the message names each.
    """
    if name_or_path in preset_names():
        text = (resources.files("slotflow.presets") / f"{name_or_path}.yaml").read_text("utf-8")
    else:
        path = Path(name_or_path)
        if not path.is_file():
            known = ", ".join(preset_names())
            raise InputError(f"{name_or_path}: no such file, nor a preset ({known})")
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not text in UTF-8 ({error})") from error
    content = parse_yaml(text, name_or_path)
    return parse_preset(content if content is not None else {}, name_or_path)


def parse_preset(content: Any, origin: str) -> Preset:
    """Validate settings read from ``origin``.

    Raises:
        InputError: naming the origin, each key and its value.
    """
    try:
        return Preset.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'settings'}: {e['msg']}"
            f" (got {e['input']!r:.200})"
            for e in error.errors()[:MAX_PROBLEMS]
        )
        raise InputError(f"{origin}: {problems}") from error
    except RecursionError as error:
        raise InputError(f"{origin}: settings are nested too deeply") from error


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first setting in which two dumps differ: its dotted name and both values.

    A setting that one of them lacks is None there. None where they are equal.
    """
    for name in [*old, *(name for name in new if name not in old)]:
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if (inner := first_difference(a, b)) is not None:
                place, a, b = inner
                return f"{name}.{place}", a, b
        elif a != b:
            return name, a, b
    return None
