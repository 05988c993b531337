"""Token mixers: the layers that the encoder is built of (docs/mixers.md).

``model.mixer`` chooses; each is (B, L, D) -> (B, L, D) with a bias for each pair of tokens.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from torch import nn

from slotflow.config import ModelSettings
from slotflow.mixers.conformer import SpectrumConformer
from slotflow.mixers.dice import DiceLayer
from slotflow.mixers.kuramoto import KuramotoLayer
from slotflow.mixers.layer import Pairs, TokenLayer
from slotflow.mixers.quaternion import QuaternionLayer
from slotflow.mixers.softmax import CollapsedLayer, SoftmaxLayer
from slotflow.mixers.streams import TwoStreams

__all__ = ["MIXERS", "Mixer", "Pairs", "TokenLayer", "spectrum_reader", "token_layer"]


class Mixer(NamedTuple):
    """How the settings make a layer, and what reads the band's data; None: nothing does."""

    layer: Callable[[ModelSettings], TokenLayer]
    spectrum: Callable[[ModelSettings], nn.Module] | None = None


def _softmax(settings: ModelSettings) -> TokenLayer:
    kind = CollapsedLayer if settings.parameterisation == "collapsed" else SoftmaxLayer
    return kind(settings.width, settings.heads, settings.dropout, settings.mlp_width)


#: The mixers by their names in ``model.mixer``.
MIXERS: Final[Mapping[str, Mixer]] = {
    "softmax": Mixer(_softmax),
    "quaternion": Mixer(
        lambda s: QuaternionLayer(s.width, s.heads, s.dropout, s.mlp_width, s.quaternion_scores),
        lambda s: SpectrumConformer(s.width, s.heads, s.quaternion_scores),
    ),
    "kuramoto": Mixer(
        lambda s: KuramotoLayer(s.width, s.heads, s.dropout, s.mlp_width, s.kuramoto_causal)
    ),
    "dice": Mixer(
        lambda s: DiceLayer(s.width, s.heads, s.dropout, s.mlp_width, s.dice_scores, s.dice_binary),
        lambda s: TwoStreams(s.width, s.heads, s.dropout, s.dice_scores, s.dice_binary),
    ),
}


def token_layer(settings: ModelSettings) -> TokenLayer:
    """Return one layer of the kind that the settings name."""
    return MIXERS[settings.mixer].layer(settings)


def spectrum_reader(settings: ModelSettings) -> nn.Module | None:
    """Return what reads the band's data for the tokens, None where nothing does."""
    reader = MIXERS[settings.mixer].spectrum
    return reader(settings) if settings.mixer_spectrum and reader is not None else None
