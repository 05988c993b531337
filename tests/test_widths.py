"""slotflow.widths: known widths are found, and a flow with them is a density that covers."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2, norm

from slotflow.flow import ConditionalFlow
from slotflow.widths import fit_widths

SCALE = torch.tensor([1.3, 0.8, 1.0], dtype=torch.float64)


def flow(scale: torch.Tensor = SCALE) -> ConditionalFlow:
    """A flow that is far from the identity, with a base of those widths."""
    made = ConditionalFlow(3, 2, layers=4, bins=6, hidden=16).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weights in made.parameters():
            weights.copy_(
                0.3 * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
            )
        made.base_scale.copy_(scale)
    return made.eval()


def test_known_widths_are_found() -> None:
    """To four standard errors of the quantile; a share far out in the tails hardly matters."""
    rng, n = np.random.default_rng(1), 20_000
    widths = np.array([0.7, 1.0, 1.4])
    z = widths * rng.standard_normal((n, 3))
    edge = norm.ppf(0.9)
    error = np.sqrt(0.8 * 0.2 / n) / (2 * norm.pdf(edge)) / edge  # of the quantile, relative
    np.testing.assert_allclose(fit_widths(z), widths, rtol=4 * error)
    z[:200] *= 50.0  # 1% of wrong components; the standard deviation would be five times as large
    assert (np.abs(fit_widths(z) / widths - 1.0) < 0.03).all()


@pytest.mark.parametrize(
    "z",
    [np.zeros((500, 2)), np.full((500, 2), np.nan), np.ones((10, 2)), np.ones(500),
     5.0 * np.random.default_rng(1).standard_normal((500, 2))],
)  # fmt: skip
def test_what_is_no_small_correction_is_refused(z: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        fit_widths(z)


def test_the_density_is_normalised_and_that_of_its_draws() -> None:
    """Importance weights against another density average to one, and ln q of draws agrees."""
    narrow, wide = flow(torch.ones(3, dtype=torch.float64)), flow()
    context = torch.randn(2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        x, log_q = wide.sample_and_log_prob(context, 20_000, torch.Generator().manual_seed(2))
        torch.testing.assert_close(
            wide.log_prob(x, context[:, None]), log_q, rtol=0, atol=1e-6
        )  # two ways through the spline
        weight = (narrow.log_prob(x, context[:, None]) - log_q).exp()
    # narrower only where the base is wider, so that weights have a variance; its mean to 5 errors
    error = weight.std(dim=1) / np.sqrt(20_000)
    assert (torch.abs(weight.mean(dim=1) - 1.0) < 5.0 * error).all()
    assert (error < 0.05).all()


def test_points_of_the_base_have_its_widths() -> None:
    """Draws by the wide flow are over-dispersed for the narrow one, by what is then found."""
    narrow, wide = flow(torch.ones(3, dtype=torch.float64)), flow()
    context = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        truth = wide.sample_and_log_prob(context, 1, torch.Generator().manual_seed(3))[0][:, 0]
        z, log_det = narrow.base_point(truth, narrow.project(context))
        expected = -0.5 * (z**2).sum(1) - 1.5 * np.log(2 * np.pi) + log_det
        torch.testing.assert_close(narrow.log_prob(truth, context), expected, rtol=0, atol=1e-9)
        found = fit_widths(z.numpy())
    np.testing.assert_allclose(found, SCALE.numpy(), rtol=0.08)
    inside = chi2.cdf((z.numpy() ** 2 / found**2).sum(axis=1), 3) < 0.8
    assert binomtest(int(inside.sum()), len(inside), 0.8).pvalue > 1e-3


def test_widths_are_no_weights() -> None:
    assert "base_scale" not in flow().state_dict()
