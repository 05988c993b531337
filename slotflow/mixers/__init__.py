"""Token mixers: the layers that the encoder is built of (docs/mixers.md).

``model.mixer`` chooses; each is (B, L, D) -> (B, L, D) with a bias for each pair of tokens.
"""

from torch import nn

from slotflow.config import ModelSettings
from slotflow.mixers.conformer import SpectrumConformer
from slotflow.mixers.dice import DiceLayer
from slotflow.mixers.kuramoto import KuramotoLayer
from slotflow.mixers.layer import Pairs, TokenLayer
from slotflow.mixers.quaternion import QuaternionLayer
from slotflow.mixers.softmax import CollapsedLayer, SoftmaxLayer
from slotflow.mixers.streams import TwoStreams

__all__ = ["Pairs", "TokenLayer", "spectrum_reader", "token_layer"]


def token_layer(settings: ModelSettings) -> TokenLayer:
    """Return one layer of the kind that the settings name."""
    width, heads, dropout = settings.width, settings.heads, settings.dropout
    hidden = settings.mlp_width
    if settings.mixer == "quaternion":
        return QuaternionLayer(width, heads, dropout, hidden, settings.quaternion_scores)
    if settings.mixer == "kuramoto":
        return KuramotoLayer(width, heads, dropout, hidden, settings.kuramoto_causal)
    if settings.mixer == "dice":
        return DiceLayer(width, heads, dropout, hidden, settings.dice_scores, settings.dice_binary)
    kind = CollapsedLayer if settings.parameterisation == "collapsed" else SoftmaxLayer
    return kind(width, heads, dropout, hidden)


def spectrum_reader(settings: ModelSettings) -> nn.Module | None:
    """Return what reads the band's data for the tokens, None where nothing does."""
    width, heads = settings.width, settings.heads
    if not settings.mixer_spectrum:
        return None
    if settings.mixer == "quaternion":
        return SpectrumConformer(width, heads, settings.quaternion_scores)
    return TwoStreams(width, heads, settings.dropout, settings.dice_scores, settings.dice_binary)
