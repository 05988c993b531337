"""All token layers: masks, order, gradients, what they start as, and their settings."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from slotflow.config import MIXER_OPTIONS, ModelSettings, parse_preset
from slotflow.encoder import Encoder
from slotflow.errors import InputError
from slotflow.mixers import Pairs, TokenLayer, token_layer
from slotflow.mixers.conformer import ConformerBlock
from slotflow.mixers.layer import attend
from slotflow.mixers.softmax import CollapsedLayer, SoftmaxLayer
from slotflow.tokens import BAND_WIDTH, TOKEN_WIDTH

BATCH, LENGTH, WIDTH, HEADS = 3, 7, 16, 2
KINDS: dict[str, dict[str, object]] = {
    "softmax": {},
    "collapsed": {"parameterisation": "collapsed"},
    "quaternion": {"mixer": "quaternion"},
    "hamilton": {"mixer": "quaternion", "quaternion_scores": "hamilton"},
    "kuramoto": {"mixer": "kuramoto"},
    "kuramoto causal": {"mixer": "kuramoto", "kuramoto_causal": True},
    "dice": {"mixer": "dice"},
    "dice linear": {"mixer": "dice", "dice_scores": "linear"},
    "dice binary": {"mixer": "dice", "dice_binary": True},
}
SPECTRUM: dict[str, dict[str, object]] = {
    "conformer": {"mixer": "quaternion", "mixer_spectrum": True},
    "streams": {"mixer": "dice", "mixer_spectrum": True},
    "binary streams": {"mixer": "dice", "mixer_spectrum": True, "dice_scores": "linear"},
}


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def settings(kind: dict[str, object]) -> ModelSettings:
    return ModelSettings.model_validate({"width": WIDTH, "heads": HEADS, "layers": 1, **kind})


def make(kind: str) -> TokenLayer:
    torch.manual_seed(1)
    layer = token_layer(settings(KINDS[kind]))
    for parameter in layer.parameters():  # biases and scales that start at 0 and 1 too
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer


def inputs(seed: int = 0) -> tuple[Tensor, Pairs]:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, generator=g)
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=g)
    place = 256.0 * torch.rand(BATCH, LENGTH, generator=g)
    return tokens, Pairs(bias, place)


def assert_gradients(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_gradients_everywhere(kind: str) -> None:
    layer = make(kind)
    tokens, pairs = inputs()
    tokens.requires_grad_()
    assert pairs.bias is not None
    pairs.bias.requires_grad_()
    out = layer(tokens, pairs)
    assert out.shape == tokens.shape
    out.square().sum().backward()
    assert_gradients(layer)
    assert tokens.grad is not None
    assert tokens.grad.abs().sum(dim=(0, 1)).min() > 0.0
    assert pairs.bias.grad is not None
    assert pairs.bias.grad.abs().max() > 0.0
    # some do not matter to a softmax, so that theirs is rounding alone: all but those move it
    still = [n for n, p in layer.named_parameters() if p.grad.abs().max() < 1e-12]  # type: ignore[union-attr]
    assert all(name.endswith("key.bias") for name in still), still


@pytest.mark.parametrize("kind", KINDS)
def test_masked_tokens_are_as_if_absent(kind: str) -> None:
    layer = make(kind)
    tokens, pairs = inputs()
    assert pairs.bias is not None
    assert pairs.place is not None
    short = Pairs(pairs.bias[:, :, :5, :5], pairs.place[:, :5])
    expected = layer(tokens[:, :5], short)
    bias = pairs.bias.clone()
    bias[:, :, :, 5:] = -torch.inf
    got = layer(tokens, Pairs(bias, pairs.place))
    torch.testing.assert_close(got[:, :5], expected)
    tokens[:, 5:] = 7.0
    torch.testing.assert_close(layer(tokens, Pairs(bias, pairs.place))[:, :5], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_sees_nothing_reads_zeros(kind: str) -> None:
    """What it gets is what no value at all would give, and every gradient is finite."""
    layer = make(kind)
    tokens, pairs = inputs()
    tokens.requires_grad_()
    bias = torch.full((BATCH, HEADS, LENGTH, LENGTH), -torch.inf)
    mixed = layer.mix(tokens, Pairs(bias, pairs.place))
    assert mixed.isfinite().all()
    added = mixed - tokens
    if kind.startswith("kuramoto"):
        assert added.abs().max() < 1e-12
    else:  # the bias of the map after it
        torch.testing.assert_close(added, added[:1, :1].expand_as(added))
    layer(tokens, Pairs(bias, pairs.place)).square().sum().backward()
    assert_gradients(layer)
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_change_places_change_outputs(kind: str) -> None:
    layer = make(kind)
    tokens, pairs = inputs()
    assert pairs.bias is not None
    assert pairs.place is not None
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    moved = Pairs(pairs.bias[:, :, order][..., order], pairs.place[:, order])
    torch.testing.assert_close(layer(tokens[:, order], moved), layer(tokens, pairs)[:, order])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bias_draws_attention(kind: str) -> None:
    """All look at one token alone: where it is moved, every output moves, and no other does."""
    layer = make(kind)
    tokens, _ = inputs()
    bias = torch.zeros(BATCH, HEADS, LENGTH, LENGTH)
    bias[..., 0] = 200.0
    place = torch.zeros(BATCH, LENGTH)
    before = layer(tokens, Pairs(bias, place))
    changed = tokens.clone()
    changed[:, 1] = -changed[:, 1]
    torch.testing.assert_close(layer(changed, Pairs(bias, place))[:, 2:], before[:, 2:])
    changed = tokens.clone()
    changed[:, 0] = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(8))
    assert (layer(changed, Pairs(bias, place))[:, 2:] - before[:, 2:]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [*KINDS, *SPECTRUM])
def test_autocast_is_close_to_single_precision(kind: str) -> None:
    torch.manual_seed(2)
    encoder = Encoder(settings((KINDS | SPECTRUM)[kind])).float()
    features, band, reference, valid, data = batch(torch.ones(2, 5, dtype=torch.bool))
    given = (features.float(), band.float(), reference, valid, data.to(torch.complex64))
    gradients = []
    for enabled in (False, True):
        encoder.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = encoder(*given)
        (out.float() * torch.linspace(-1.0, 1.0, WIDTH).float()).sum().backward()
        whole = [p.grad.flatten() for p in encoder.parameters() if p.grad is not None]
        gradients.append(torch.cat(whole))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.95


def test_no_bias_is_a_bias_of_zeros() -> None:
    for kind in KINDS:
        layer = make(kind)
        tokens, pairs = inputs()
        zeros = torch.zeros(BATCH, HEADS, LENGTH, LENGTH)
        got = layer(tokens, Pairs(None, pairs.place))
        torch.testing.assert_close(got, layer(tokens, Pairs(zeros, pairs.place)))
    block = ConformerBlock(WIDTH, HEADS)
    torch.testing.assert_close(block(tokens), block(tokens, zeros))


def test_softmax_is_attention_written_out() -> None:
    layer = make("softmax")
    assert isinstance(layer, SoftmaxLayer)
    tokens, pairs = inputs()
    assert pairs.bias is not None
    h = layer.norm_attention(tokens)
    q, k, v = (part.view(BATCH, LENGTH, HEADS, -1) for part in layer.qkv(h).chunk(3, dim=-1))
    scores = torch.einsum("blhd,bmhd->bhlm", q, k) / (WIDTH / HEADS) ** 0.5 + pairs.bias
    read = torch.einsum("bhlm,bmhd->blhd", torch.softmax(scores, dim=-1), v).flatten(2)
    torch.testing.assert_close(layer.mix(tokens, pairs), tokens + layer.out(read))


def test_collapsed_starts_as_factorised() -> None:
    torch.manual_seed(5)
    collapsed = CollapsedLayer(WIDTH, HEADS, 0.0)
    torch.manual_seed(5)
    factorised = SoftmaxLayer(WIDTH, HEADS, 0.0)
    tokens, pairs = inputs()
    torch.testing.assert_close(collapsed(tokens, pairs), factorised(tokens, pairs))


def test_attend_is_a_softmax_with_empty_rows() -> None:
    tokens, pairs = inputs()
    assert pairs.bias is not None
    bias = pairs.bias.clone()
    bias[:, :, 2] = -torch.inf
    scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    values = tokens.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
    got = attend(scores, values, bias)
    assert not got[:, :, 2].any()
    expected = torch.softmax(scores + pairs.bias, dim=-1) @ values
    torch.testing.assert_close(got[:, :, 3:], expected[:, :, 3:])


def batch(valid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(4)
    features = torch.randn(2, 5, TOKEN_WIDTH, generator=g)
    reference = torch.rand(2, 5, 13, generator=g) + 0.1
    reference[..., 0] = 256.0 * torch.rand(2, 5, generator=g)
    data = torch.randn(2, 3, 64, generator=g, dtype=torch.complex128)
    return features, torch.randn(2, BAND_WIDTH, generator=g), reference, valid, data


@pytest.mark.parametrize("kind", [*KINDS, *SPECTRUM])
def test_the_encoder_is_built_of_each(kind: str) -> None:
    torch.manual_seed(2)
    encoder = Encoder(settings((KINDS | SPECTRUM)[kind]))
    valid = torch.tensor([[True, True, True, False, False], [False] * 5])
    features, band, reference, _, data = batch(valid)
    out = encoder(features, band, reference, valid, data)
    assert not out[~valid].any()
    assert out[valid].isfinite().all()
    out.square().sum().backward()
    assert_gradients(encoder)
    features = features.masked_fill(~valid[..., None], 3.0)
    torch.testing.assert_close(encoder(features, band, reference, valid, data), out)


@pytest.mark.parametrize("kind", SPECTRUM)
def test_the_spectrum_is_read(kind: str) -> None:
    encoder = Encoder(settings(SPECTRUM[kind]))
    features, band, reference, valid, data = batch(torch.ones(2, 5, dtype=torch.bool))
    before = encoder(features, band, reference, valid, data)
    assert not torch.allclose(encoder(features, band, reference, valid, 2.0 * data), before)
    with pytest.raises(ValueError, match="bands' data"):
        encoder(features, band, reference, valid)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("mixer: mamba", "model.mixer"),
        ("dice_scores: linear", "dice_scores has no effect with mixer: softmax"),
        ("dice_binary: true", "dice_binary has no effect with mixer: softmax"),
        ("mixer: dice, quaternion_scores: hamilton", "quaternion_scores has no effect"),
        ("mixer: quaternion, kuramoto_causal: true", "kuramoto_causal has no effect"),
        ("mixer: kuramoto, mixer_spectrum: true", "mixer_spectrum has no effect"),
        ("mixer: dice, layers: 0", "mixer has no effect with layers: 0"),
        ("mlp_width: 8, layers: 0", "mlp_width has no effect with layers: 0"),
        ("mixer: quaternion, width: 24", "width 24 must be a multiple of 4 x heads 4"),
        ("mixer: kuramoto, width: 12", "width 12 must be a multiple of 2 x heads 4"),
        ("parameterisation: both", "model.parameterisation"),
        ("mlp_width: 0", "model.mlp_width"),
    ],
)
def test_settings_without_effect_are_named(model: str, named: str) -> None:
    import yaml

    with pytest.raises(InputError, match=named):
        parse_preset(yaml.safe_load(f"model: {{{model}}}"), "mine.yaml")
    with pytest.raises(InputError, match="qk_learning_rate_ratio"):
        parse_preset({"train": {"qk_learning_rate_ratio": 0.0}}, "mine.yaml")


def test_every_option_of_a_mixer_changes_it() -> None:
    """No setting that nothing reads."""
    values: dict[str, object] = {
        "quaternion_scores": "hamilton", "kuramoto_causal": True, "dice_scores": "linear",
        "dice_binary": True, "mixer_spectrum": True,
    }  # fmt: skip
    assert values.keys() == MIXER_OPTIONS.keys()
    features, band, reference, valid, data = batch(torch.ones(2, 5, dtype=torch.bool))
    for name, mixers in MIXER_OPTIONS.items():
        for mixer in mixers:
            outputs = []
            for changes in ({}, {name: values[name]}):
                torch.manual_seed(3)
                encoder = Encoder(settings({"mixer": mixer, **changes}))
                outputs.append(encoder(features, band, reference, valid, data))
            assert not torch.allclose(*outputs), (name, mixer)


def test_the_networks_width_after_the_mixer() -> None:
    counts: list[int] = []
    make_layer: Callable[[int | None], TokenLayer] = lambda width: token_layer(  # noqa: E731
        settings({"mlp_width": width})
    )
    for width in (None, 2 * WIDTH, 5):
        counts.append(sum(p.numel() for p in make_layer(width).mlp.parameters()))
    assert counts == [4 * WIDTH**2 + 3 * WIDTH] * 2 + [10 * WIDTH + 5 + WIDTH]


def test_defaults_are_not_written() -> None:
    """A model or run from before these settings came compares equal."""
    written = ModelSettings().model_dump()
    assert not written.keys() & {"mixer", "mlp_width", "parameterisation", *MIXER_OPTIONS}
    dumped = ModelSettings(mixer="dice", dice_binary=True).model_dump()
    assert (dumped["mixer"], dumped["dice_binary"]) == ("dice", True)
    assert ModelSettings.model_validate(dumped).dice_binary
