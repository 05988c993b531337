"""Adaptive tempered sequential Monte Carlo, for any target and any moves.

A cloud of particles goes from a reference q, from which one can draw and whose density is known,
to a target t that is known up to its integral Z, through ``p_b ~ q^(1-b) t^b``. Each next b is
the largest at which the weights keep a given effective sample size (bisection); the cloud is
resampled systematically and then moved by transitions that leave p_b unchanged until it has
forgotten where it was. The product of the mean weights estimates Z without bias, up to the
adaptation of b and of the moves' scales to the cloud, whose effect vanishes as 1/N (Del Moral,
Doucet & Jasra 2006; Beskos, Jasra, Kantas & Thiery, arXiv:1306.6462).

A reference that is close to the target takes one step.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import scipy.special
from numpy.typing import NDArray

from slotflow.importance import systematic

Float = NDArray[np.float64]

MAX_STEPS: Final = 200  # temperatures; a reference that needs more is of no use
_LEAST_FORGOTTEN: Final = 0.7  # correlation that is always too large
_LEAST: Final = 1e-6  # smallest step of b that bisection resolves


class State(Protocol):
    """A cloud of N particles, as a problem keeps it.

    ``log_target`` and ``log_reference``: (N,), the latter up to date wherever it is needed.
    """

    @property
    def log_target(self) -> Float: ...
    @property
    def log_reference(self) -> Float: ...

    def take(self, index: NDArray[np.int64]) -> Self:
        """Return the particles of these indices, as copies."""
        ...

    def join(self, other: Self) -> Self:
        """Return these particles and others."""
        ...

    def coordinates(self) -> Float:
        """Return (N, D) numbers whose correlation tells whether the cloud has moved."""
        ...


class Moved[S: State](NamedTuple):
    """A cloud after one sweep of moves: accepted share, and evaluations of the likelihood."""

    state: S
    acceptance: float
    evaluations: int


class Problem[S: State](Protocol):
    """What is sampled."""

    def draw(self, number: int, rng: np.random.Generator) -> S:
        """Return particles drawn from the reference."""
        ...

    def sweep(self, state: S, temperature: float, rng: np.random.Generator) -> Moved[S]:
        """Return the particles after transitions that leave p_b unchanged."""
        ...

    def settle(self, state: S, temperature: float) -> S:
        """Prepare for sweeps at a new temperature: called once before them."""
        ...


@dataclass(frozen=True)
class SmcSettings:
    """How a cloud is led.

    Attributes:
        particles: N.
        first: draws from the reference at first; as many more, up to ``first_most``, as let the
            first step go to the target at once, where that is in reach.
        ess: share of N that the effective sample size may fall to in a step.
        ess_last: likewise in the last step, after which the cloud moves the longest.
        forget: correlation with the start, at which a cloud has moved enough on the way.
        loss: share of N that copies of one draw may cost at the end: there a cloud moves until
            its correlation r with its start has ``r^2 N / ESS`` of the last step below that.
        max_sweeps, max_sweeps_last: of moves, where it does not get there.
    """

    particles: int = 1000
    first: int = 1000
    first_most: int = 0
    ess: float = 0.5
    ess_last: float = 0.25
    forget: float = 0.3
    loss: float = 0.1
    max_sweeps: int = 20
    max_sweeps_last: int = 100


@dataclass(frozen=True, eq=False)
class SmcRun[S: State]:
    """One run.

    Attributes:
        state: N particles of equal weight.
        ln_z: ln of the target's integral.
        ln_z_error: by the scatter of the weights of all steps; repeats say more.
        temperatures: b after each step, the last 1.
        acceptance: accepted share of the moves at the last temperature.
        evaluations: of the likelihood, draws and moves.
        sweeps: of moves, by step.
        first_ess: effective sample size of the reference's draws for the target itself, over
            their number.
        correlation: of the cloud with its start when the last moves ended.
        forgot: whether that is small enough.
        ess: effective sample size of the cloud for means, by that correlation: copies and
            neighbours of one draw are not independent.
    """

    state: S
    ln_z: float
    ln_z_error: float
    temperatures: tuple[float, ...]
    acceptance: float
    evaluations: int
    sweeps: tuple[int, ...]
    first_ess: float
    correlation: float
    forgot: bool
    ess: float


def run[S: State](
    problem: Problem[S], settings: SmcSettings, rng: np.random.Generator
) -> SmcRun[S]:
    """Lead a cloud from the reference to the target.

    Args:
        problem: what is sampled.
        settings: how.
        rng: all that is random comes from it.

    Raises:
        ValueError: no draw of the reference lies in the target, or steps that do not end.
    """
    count = settings.particles
    state, ratio = _drawn(problem, settings, rng)
    evaluations, b, ln_z, variance = len(ratio), 0.0, 0.0, 0.0
    first_ess = _ess(ratio) / len(ratio)
    temperatures: list[float] = []
    sweeps: list[int] = []
    moved = _Phase(state, 0.0, 0, 0, 0.0, True)
    while b < 1.0:
        if len(temperatures) >= MAX_STEPS:
            raise ValueError(f"no end after {MAX_STEPS} temperatures (b = {b:.3g})")
        step = 1.0 - b
        if _ess(_scaled(ratio, step)) < settings.ess_last * count:
            step = _next_step(ratio, step, settings.ess * count)
        ln_w = _scaled(ratio, step)
        ln_z += float(scipy.special.logsumexp(ln_w) - np.log(ln_w.size))
        # particles that remember their parents scatter together, as a chain's do
        memory = min(moved.correlation, 0.95) if temperatures else 0.0
        scatter = max(1.0 / _ess(ln_w) - 1.0 / ln_w.size, 0.0)
        variance += scatter * (1.0 + memory) / (1.0 - memory)
        b = 1.0 if b + step > 1.0 - _LEAST else b + step
        state = state.take(systematic(scipy.special.softmax(ln_w), count, rng))
        last = b == 1.0
        kept = _ess(ln_w)
        enough = min(np.sqrt(settings.loss * kept / count), _LEAST_FORGOTTEN)
        plan = _Plan(b, enough if last else settings.forget, last)
        moved = _move(problem, problem.settle(state, b), plan, settings, rng)
        state, evaluations = moved.state, evaluations + moved.evaluations
        temperatures.append(b)
        sweeps.append(moved.sweeps)
        if not last:
            ratio = _ratio(state)
    return SmcRun(
        state, ln_z, float(np.sqrt(variance)), tuple(temperatures), moved.acceptance, evaluations,
        tuple(sweeps), first_ess, moved.correlation, moved.forgot,
        count / (1.0 + max(moved.correlation, 0.0) ** 2 * count / kept),
    )  # fmt: skip


def _drawn[S: State](
    problem: Problem[S], settings: SmcSettings, rng: np.random.Generator
) -> tuple[S, Float]:
    """Return draws of the reference, and ln target less ln reference."""
    state = problem.draw(max(settings.first, settings.particles), rng)
    ratio = _ratio(state)
    if np.isneginf(ratio).all():
        raise ValueError("no draw of the reference lies in the target")
    wanted = settings.ess * settings.particles
    while _ess(ratio) < wanted and len(ratio) < settings.first_most:
        share = _ess(ratio) / len(ratio)
        # a little more than it takes: the share is an estimate, and the largest weights grow
        number = int(1.1 * wanted / share) - len(ratio) + 1
        if len(ratio) + number > settings.first_most:
            break
        more = problem.draw(number, rng)
        state, ratio = state.join(more), np.concatenate([ratio, _ratio(more)])
    return state, ratio


class _Phase[S: State](NamedTuple):
    state: S
    acceptance: float
    evaluations: int
    sweeps: int
    correlation: float
    forgot: bool


class _Plan(NamedTuple):
    """A temperature, the correlation that is small enough there, and whether it is the last."""

    b: float
    enough: float
    last: bool


def _move[S: State](
    problem: Problem[S], state: S, plan: _Plan, settings: SmcSettings, rng: np.random.Generator
) -> _Phase[S]:
    """Sweep until the cloud has forgotten its start."""
    b, enough, last = plan
    limit = settings.max_sweeps_last if last else settings.max_sweeps
    start = _standardised(state.coordinates())
    # two clouds without relation correlate by chance, by the largest of so many
    chance = np.sqrt(2.0 * np.log(2.0 * start.shape[1] + 1.0) / start.shape[0])
    acceptance, evaluations, number, correlation = 0.0, 0, 0, 1.0
    while number < limit and (number < 1 or correlation > enough + chance):
        moved = problem.sweep(state, b, rng)
        state, number = moved.state, number + 1
        acceptance, evaluations = acceptance + moved.acceptance, evaluations + moved.evaluations
        here = _standardised(state.coordinates())
        correlation = float(np.max(np.mean(start * here, axis=0), initial=0.0))
    forgot = correlation <= enough + chance
    return _Phase(state, acceptance / number, evaluations, number, correlation, forgot)


def _standardised(values: Float) -> Float:
    """Ranks of each column with mean 0 and variance 1: a few outliers are not the whole cloud.

    0 where nothing varies.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, np.arange(float(len(values)))[:, None], axis=0)
    ranks = (ranks - 0.5 * (len(values) - 1)) / (len(values) / np.sqrt(12.0))
    return np.where(np.ptp(values, axis=0) > 0.0, ranks, 0.0)


def _ratio(state: State) -> Float:
    """ln t - ln q, -inf outside the target."""
    with np.errstate(invalid="ignore"):
        ratio = state.log_target - state.log_reference
    return np.where(np.isneginf(state.log_target), -np.inf, ratio)


def _scaled(ratio: Float, step: float) -> Float:
    return np.where(np.isneginf(ratio), -np.inf, step * ratio)


def _ess(ln_weights: Float) -> float:
    return float(1.0 / np.sum(scipy.special.softmax(ln_weights) ** 2))


def _next_step(ratio: Float, remaining: float, wanted: float) -> float:
    """Return the largest step, up to what remains, at which the weights' ESS is as wanted."""
    wanted = min(wanted, 0.9 * float(np.isfinite(ratio).sum()))
    if _ess(_scaled(ratio, remaining)) >= wanted:
        return remaining
    low, high = 0.0, remaining
    while high - low > max(1e-3 * low, _LEAST * remaining):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _ess(_scaled(ratio, middle)) >= wanted else (low, middle)
    return max(low, _LEAST * remaining)
