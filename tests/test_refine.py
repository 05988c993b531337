"""The refined posterior of a band: densities, moves, evidence, and what is said of failure."""

from functools import lru_cache

import numpy as np
import pytest

from slotflow import refine_sample
from slotflow.amplitudes import draw_amplitude, log_marginal, reduce
from slotflow.importance import weigh
from slotflow.likelihood import BandLikelihood
from slotflow.parameters import AMPLITUDE, DEC, IOTA
from slotflow.refine_band import Cloud, Placed, measured, symmetrised
from slotflow.refine_divergence import jensen_shannon
from slotflow.refine_evidence import one_more
from slotflow.refine_kernels import mapped
from slotflow.refine_moves import SourceMoves
from slotflow.refine_sample import by_importance, by_smc
from slotflow.refine_space import (
    BIN,
    COS_IOTA,
    DRIFT,
    LN_A,
    PHI0,
    PSI,
    RA,
    SIN_DEC,
    difference,
    folded,
    reflected,
    traced,
)
from slotflow.refined import (
    Evidence,
    Refinement,
    RefineSettings,
    packed_refinement,
    refinement_notes,
    unpacked_refinement,
)
from slotflow.smc import SmcRun, SmcSettings, run
from slotflow.templates import make_bank
from tests.refine_example import (
    FIRST_BIN,
    PRESET,
    TRUTH,
    band,
    grid,
    problem,
    space,
)

Float = np.typing.NDArray[np.float64]
SECOND = np.array([141.2, 0.15, -50.0, 4.1, -0.2, 1.2, -0.6, 0.7])


@lru_cache(maxsize=1)
def _one() -> tuple[BandLikelihood, Float]:
    return band([TRUTH], [15.0])


@lru_cache(maxsize=1)
def _two() -> tuple[BandLikelihood, Float]:
    return band([TRUTH, SECOND], [15.0, 12.0])


@lru_cache(maxsize=1)
def _run() -> tuple[SourceMoves, SmcRun[Cloud]]:
    likelihood, x = _one()
    here = problem(likelihood, list(x))
    settings = SmcSettings(400, 800, forget=0.4)
    return here, run(here, settings, np.random.default_rng(1))


def test_the_target_is_prior_times_likelihood_in_other_coordinates() -> None:
    likelihood, x = _two()
    here = problem(likelihood, list(x))
    cloud = here.draw(200, np.random.default_rng(3))
    sources = space().to_sources(cloud.x)
    prior, ln_l = likelihood.log_prior_and_likelihood(sources)
    duration = likelihood.duration
    jacobian = np.log(2.0 * sources[..., AMPLITUDE] / np.cos(sources[..., DEC]))  # 2: folded psi
    jacobian -= np.log(np.sin(sources[..., IOTA])) + 3.0 * np.log(duration)
    expected = prior + jacobian.sum(axis=1) + ln_l - likelihood.log_noise
    inside = np.isfinite(expected)
    assert inside.sum() > 50
    assert np.array_equal(inside, np.isfinite(cloud.log_target))
    assert cloud.log_target[inside] == pytest.approx(expected[inside], abs=1e-8)


def test_a_settled_cloud_keeps_its_target_through_sweeps() -> None:
    likelihood, x = _two()
    here = problem(likelihood, list(x))
    rng = np.random.default_rng(4)
    cloud = here.draw(300, rng)
    state = here.settle(cloud.take(np.flatnonzero(np.isfinite(cloud.log_target))[:60]), 0.3)
    for temperature in (0.3, 0.3, 1.0, 1.0):
        state = here.settle(here.sweep(state, temperature, rng).state, temperature)
        sources = space().to_sources(state.x)
        ln_l = likelihood.log_likelihood(sources) - likelihood.log_noise
        assert state.log_target == pytest.approx(ln_l + 2 * space().log_prior, abs=1e-7)
        assert here.space.inside(state.x).all()
        densities = np.stack([here.densities_at(s, state.x[:, s]) for s in range(2)], axis=2)
        if temperature < 1.0:
            assert state.densities == pytest.approx(densities, abs=1e-9)


def test_mapped_amplitudes_change_the_likelihood_as_the_f_statistic_and_come_back() -> None:
    likelihood, x = _one()
    here = problem(likelihood, list(x))
    rng = np.random.default_rng(5)
    old = here.draw(40, rng).x[:, 0]
    new = old.copy()
    new[:, [BIN, RA, SIN_DEC]] += 0.02 * rng.standard_normal((40, 3))
    residual, rows = here.data[None], np.zeros(40, dtype=np.int64)
    first, second = here.place(old, residual, rows), here.place(new, residual, rows)
    there, back = np.empty(40), np.empty(40)
    mapped((first.product, first.gram), (second.product, second.gram), old, new, there)

    def f_statistic(one: Placed) -> Float:
        best = np.linalg.solve(one.gram, one.product[..., None])[..., 0]
        return np.asarray(np.einsum("np,np->n", one.product.conj(), best).real)

    change = measured(second, new)[0] - measured(first, old)[0]
    expected = f_statistic(second) - f_statistic(first)
    assert change == pytest.approx(expected, abs=1e-7)
    again = new.copy()
    again[:, [BIN, RA, SIN_DEC]] = old[:, [BIN, RA, SIN_DEC]]
    mapped((second.product, second.gram), (first.product, first.gram), new, again, back)
    assert difference(again, old) == pytest.approx(0.0, abs=1e-6)
    assert there == pytest.approx(-back, abs=1e-6)


def test_the_jacobian_of_mapped_amplitudes() -> None:
    likelihood, x = _one()
    here = problem(likelihood, list(x))
    old = np.tile(x[0], (5, 1))
    step = 1e-5
    columns = [2, 5, 6, 7]
    for i, column in enumerate(columns):
        old[i + 1, column] += step
    new = old.copy()
    new[:, [BIN, RA, SIN_DEC]] += [0.05, 0.06, -0.04]
    rows = np.zeros(5, dtype=np.int64)
    first = here.place(old, here.data[None], rows)
    second = here.place(new, here.data[None], rows)
    ln_jacobian = np.empty(5)
    mapped((first.product, first.gram), (second.product, second.gram), old, new, ln_jacobian)
    matrix = difference(new[1:], np.tile(new[0], (4, 1)))[:, columns] / step
    assert ln_jacobian[0] == pytest.approx(np.log(abs(np.linalg.det(matrix))), abs=1e-3)


def test_smc_agrees_with_weights_of_independent_draws() -> None:
    # places from a normal distribution, psi and iota from the prior, phase and amplitude exact
    here, found = _run()
    rng, number = np.random.default_rng(8), 6000
    place = [BIN, DRIFT, RA, SIN_DEC]
    cloud = found.state.x[:, 0][:, place]
    mean, root = cloud.mean(axis=0), 1.3 * np.linalg.cholesky(np.cov(cloud.T))
    white = rng.standard_normal((number, 4))
    x = np.zeros((number, 8))
    x[:, place] = mean + white @ root.T
    ln_q = -0.5 * (white**2).sum(axis=1) - np.log(np.diag(root)).sum() - 2 * np.log(2 * np.pi)
    x[:, PSI], x[:, COS_IOTA] = rng.uniform(0, np.pi / 2, number), rng.uniform(-1, 1, number)
    inside = here.space.inside(x)
    one = here.place(x, here.data[None], np.zeros(number, dtype=np.int64))
    reduced = reduce(one.product, one.gram, one.snr_gram, x[:, PSI], np.arccos(x[:, COS_IOTA]))
    amplitude, x[:, PHI0] = draw_amplitude(rng, reduced, here.space.snr)
    x[:, LN_A] = np.log(amplitude)
    prior = -np.log(PRESET.prior.window(1.5e-3)) - np.log(0.4) - np.log(4 * np.pi)
    weighted = weigh(
        np.where(inside, prior + log_marginal(reduced, here.space.snr) - ln_q, -np.inf)
    )
    assert weighted.ess > 150
    error = np.hypot(found.ln_z_error, weighted.ln_z_error)
    assert found.ln_z == pytest.approx(weighted.ln_z, abs=4.0 * error)
    coordinates, other = found.state.coordinates(), traced(x[:, None])
    mean = weighted.weights @ other
    width = np.sqrt(weighted.weights @ (other - mean) ** 2)
    scatter = np.sqrt(1.0 / weighted.ess + 2.0 / len(coordinates))
    assert np.abs((coordinates.mean(axis=0) - mean) / width).max() < 4.0 * scatter
    assert coordinates.std(axis=0) / width == pytest.approx(1.0, abs=0.25)


def test_a_reference_wrong_by_three_sigma_is_corrected() -> None:
    _, good = _run()
    likelihood, x = _one()
    centre, width = good.state.x[:, 0].mean(axis=0), good.state.x[:, 0].std(axis=0)
    wrong = x[0].copy()
    wrong[BIN] = centre[BIN] + 3.0 * width[BIN]
    narrow = (1.2 * width[BIN], 0.3, 1.5 * width[RA], 1.5 * width[SIN_DEC])
    biased = problem(likelihood, [wrong], width=narrow)
    found = run(biased, SmcSettings(300, 600, forget=0.4), np.random.default_rng(2))
    assert found.first_ess < 0.02
    offset = (found.state.x[:, 0].mean(axis=0) - centre) / width
    assert abs(offset[BIN]) < 0.35
    assert abs(offset[LN_A]) < 0.35
    assert found.ln_z == pytest.approx(good.ln_z, abs=0.8)


@lru_cache(maxsize=2)
def _pair(first: int) -> tuple[SourceMoves, SmcRun[Cloud]]:
    likelihood, x = _two()
    here = problem(likelihood, [x[first], x[1 - first]], width=(0.1, 0.25, 0.08, 0.08))
    return here, run(here, SmcSettings(200, 800, forget=0.4), np.random.default_rng(6))


def test_sources_can_be_permuted() -> None:
    one, other = _pair(0)[1], _pair(1)[1]
    error = np.hypot(one.ln_z_error, other.ln_z_error)
    assert one.ln_z == pytest.approx(other.ln_z, abs=4.0 * error)
    columns = [BIN, LN_A, SIN_DEC]
    a, b = one.state.x[..., columns], other.state.x[:, ::-1][..., columns]
    assert np.abs((a.mean(axis=0) - b.mean(axis=0)) / a.std(axis=0)).max() < 0.5


def test_either_of_two_sources_may_be_the_first() -> None:
    # the second as one more, its amplitude integrated out: twice the integral over one order
    both = _pair(0)[1]
    likelihood, x = _two()
    alone = problem(likelihood, [x[0]], width=(0.1, 0.25, 0.08, 0.08))
    one = run(alone, SmcSettings(200, 800, forget=0.4), np.random.default_rng(7))
    residuals = alone.settle(one.state, 1.0).residual
    assert residuals is not None
    bank = make_bank(FIRST_BIN + 128, grid().thinned(2), 320, 33)
    more, _ = one_more(alone, residuals, bank, np.random.default_rng(3), draws=6000)
    error = np.sqrt(both.ln_z_error**2 + one.ln_z_error**2 + more.error**2)
    assert both.ln_z - one.ln_z == pytest.approx(more.value, abs=3.0 * error)
    assert error < 0.5


def test_symmetrised_densities() -> None:
    far = np.full((3, 2, 2), -np.inf)
    far[:, 0, 0], far[:, 1, 1] = -1.0, -2.0
    assert symmetrised(far) == pytest.approx(-3.0 - np.log(2.0))
    alike = np.full((3, 3, 3), -1.5)
    assert symmetrised(alike) == pytest.approx(-4.5)


def test_noise_alone_has_no_source() -> None:
    ratios = []
    for seed in range(12):
        likelihood, _ = band([], [], seed)
        here = problem(likelihood, [])
        bank = make_bank(FIRST_BIN + 128, grid().thinned(2), 200, 33)
        found, _ = one_more(here, here.data[None], bank, np.random.default_rng(seed), draws=1500)
        ratios.append(found.value)
    assert np.mean(np.array(ratios) < 0.0) > 0.8
    # under noise the mean of B is 1; rare large values make it up
    assert np.mean(np.exp(ratios)) < 3.0
    assert max(ratios) < 4.0


def test_one_more_finds_what_the_whole_evidence_says() -> None:
    likelihood, _ = _one()
    nothing = problem(likelihood, [])
    bank = make_bank(FIRST_BIN + 128, grid().thinned(2), 320, 33)
    found, _ = one_more(nothing, nothing.data[None], bank, np.random.default_rng(2), draws=6000)
    assert found.value == pytest.approx(_run()[1].ln_z, abs=4.0 * found.error + 0.3)


def test_draws_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine_sample, "LEAST_PARTICLES", 40)
    likelihood, x = _one()
    a, b, c = (
        by_smc(problem(likelihood, list(x)), 60, 2, np.random.default_rng(seed))
        for seed in (5, 5, 6)
    )
    assert np.array_equal(a.x, b.x)
    assert a.ln_z == b.ln_z
    assert not np.array_equal(a.x, c.x)


def test_a_hopeless_reference_is_not_returned_in_silence() -> None:
    likelihood, x = _one()
    elsewhere = x[0].copy()
    elsewhere[BIN] += 30.0
    here = problem(likelihood, [elsewhere], width=(0.01, 0.02, 0.01, 0.01))
    weighed = by_importance(here, 500, np.random.default_rng(1))
    assert weighed.warnings


def test_folding_and_reflection() -> None:
    rng = np.random.default_rng(7)
    x = TRUTH + rng.standard_normal((100, 8))
    x[:, SIN_DEC] = rng.uniform(-1, 1, 100)
    kept = folded(x)
    assert ((kept >= space().low) & (kept <= space().high))[:, [3, 5, 7]].all()
    assert difference(kept, x)[:, [3, 5, 7]] == pytest.approx(0.0, abs=1e-9)
    twice = reflected(reflected(kept))
    assert difference(twice, kept) == pytest.approx(0.0, abs=1e-7)
    # an isometry: volumes on the sphere stay, so ecliptic heights are opposite
    pole = np.array([0.0, -np.sin(np.deg2rad(23.4392911)), np.cos(np.deg2rad(23.4392911))])

    def direction(rows: Float) -> Float:
        cos_dec = np.sqrt(1.0 - rows[:, SIN_DEC] ** 2)
        return np.stack(
            [cos_dec * np.cos(rows[:, RA]), cos_dec * np.sin(rows[:, RA]), rows[:, SIN_DEC]], 1
        )

    assert direction(reflected(kept)) @ pole == pytest.approx(-direction(kept) @ pole, abs=1e-7)


def test_divergence_of_normal_distributions() -> None:
    rng = np.random.default_rng(12)
    shift = 1.0
    fine = np.linspace(-8, 9, 20_001)
    p, q = (np.exp(-0.5 * (fine - m) ** 2) / np.sqrt(2 * np.pi) for m in (0.0, shift))
    middle = 0.5 * (p + q)
    exact = 0.5 * np.trapezoid(p * np.log(p / middle) + q * np.log(q / middle), fine)
    found = [
        jensen_shannon(rng.normal(0, 1, 2000), rng.normal(shift, 1, 2000), rng).value
        for _ in range(10)
    ]
    assert np.mean(found) == pytest.approx(exact, rel=0.06)  # 20 cells see a little less
    equal = [jensen_shannon(rng.normal(0, 1, 800), rng.normal(0, 1, 800), rng) for _ in range(30)]
    assert abs(np.mean([one.value for one in equal])) < 4.0 * equal[0].chance / np.sqrt(30)
    assert equal[0].bias > 1e-3  # what would be found without taking it off
    apart = jensen_shannon(np.zeros(100) + rng.random(100), 5 + rng.random(100), rng)
    assert apart.value + apart.bias == pytest.approx(np.log(2.0))
    with pytest.raises(ValueError, match="at least 40"):
        jensen_shannon(np.zeros(10), np.zeros(10), rng)


def _record(**changes: object) -> Refinement:
    values = dict(
        first_bin=47058, method="smc", slots=(1, 3), before=np.ones((2, 5, 8)),
        log_posterior=np.arange(5.0), ln_z=Evidence(12.0, 0.1), more=Evidence(-2.0, 0.2),
        fewer=Evidence(3.0, 0.3), efficiency=0.2, ess=4.0, pareto_k=float("nan"),
        largest=float("nan"), temperatures=(0.5, 1.0), acceptance=0.3, evaluations=123,
        divergence=np.zeros((2, 8)), misfit=np.ones(2), warnings=("one thing", "another"),
        seconds=1.5, foreground=0.0,
    )  # fmt: skip
    return Refinement(**(values | changes))  # type: ignore[arg-type]


def test_records_come_back_from_arrays() -> None:
    record = _record()
    arrays = {f"x_{name}": value for name, value in packed_refinement(record).items()}
    found = unpacked_refinement(arrays, "x_")
    assert found is not None
    for name, value in vars(record).items():
        np.testing.assert_array_equal(getattr(found, name), value)
    assert unpacked_refinement(arrays, "y_") is None
    arrays.pop("x_foreground")  # as in files of 0.1
    earlier = unpacked_refinement(arrays, "x_")
    assert earlier is not None
    assert np.isnan(earlier.foreground)
    assert earlier.ln_z == record.ln_z
    arrays.pop("x_before")
    with pytest.raises(KeyError):
        unpacked_refinement(arrays, "x_")


def test_notes_say_which_band() -> None:
    lines = refinement_notes([_record(), _record(more=Evidence(9.0, 0.1), fewer=Evidence(-1.0, 0))])
    assert sum("band from bin 47058: refinement: one thing" in line for line in lines) == 2
    assert any("favours one source more" in line for line in lines)
    assert any("favours one source less" in line for line in lines)
    for share in (0.8, float("nan")):  # the latter of earlier versions, whose noise was white
        unsure = refinement_notes([_record(more=Evidence(9.0, 0.1), foreground=share)])
        assert any("no verdict" in line for line in unsure)
        assert not any("favours" in line for line in unsure)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"method": "mcmc"}, "method"), ({"repeats": 0}, "repeats"), ({"noise": "red"}, "noise")],
)
def test_settings_out_of_range(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RefineSettings(**settings)  # type: ignore[arg-type]
