"""Query-key against output-value: the reduced flow of one attention layer, and the layer itself.

The task (the setting of arXiv:2608.06776, of which only the summary was at hand; what follows is
our reading, and docs/mixers.md derives it): a sequence holds m copies of the token of its class,
of M classes, and n tokens that say nothing; a query, one of b tokens, attends to all, and the
class is to be named. One layer with W_QK (b, b) and W_OV (M, b), both zero at first. By symmetry
two numbers matter: mu_QK, by which the class's token outscores the others, and mu_OV, by which it
raises its class's logit over the others'. With alpha = m e^mu_QK / (m e^mu_QK + n) and
Z = e^(alpha mu_OV) + M - 1 the flow, in units of b times that of the mean loss, is

    d mu_OV / dt = alpha / (b Z),
    d mu_QK / dt = r (M - 1) alpha (1 - alpha) mu_OV / (M b^2 Z),

r the ratio of the learning rates. It conserves m (e^mu_QK - 1) + n mu_QK - r n (M - 1) mu_OV^2 /
(2 M b), which is zero from the start. The reduction leaves out that each silent token's score falls
too, by M / (b - M) of what the class's token gains.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from torch import Tensor, nn
from torch.nn import functional

from slotflow.slotbase import Parameterisation

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """m informative and n silent tokens, of a vocabulary of b, and M classes."""

    informative: int = 2
    silent: int = 14
    vocabulary: int = 128
    classes: int = 4


class Path(NamedTuple):
    """A trajectory: ``time``, ``mu_ov``, ``mu_qk``, ``alpha``, all (T,)."""

    time: Float
    mu_ov: Float
    mu_qk: Float
    alpha: Float


def attention(task: Task, mu_qk: ArrayLike) -> Float:
    """Return alpha, the attention on the informative tokens together."""
    raised = task.informative * np.exp(np.asarray(mu_qk, dtype=np.float64))
    return np.asarray(raised / (raised + task.silent))


def reduced_flow(task: Task, ratio: float, times: ArrayLike) -> Path:
    """Integrate the two equations from zero.

    Args:
        task: see there.
        ratio: r.
        times: (T,) at which the state is returned, rising, the first at 0 or later.

    Raises:
        ValueError: the integration did not succeed.
    """
    time = np.asarray(times, dtype=np.float64)
    b, classes = task.vocabulary, task.classes

    def slope(_: float, state: Float) -> list[float]:
        mu_ov, mu_qk = state
        alpha = float(attention(task, mu_qk))
        z = np.exp(alpha * mu_ov) + classes - 1
        gain = ratio * (classes - 1) * alpha * (1.0 - alpha) * mu_ov / (classes * b**2 * z)
        return [alpha / (b * z), gain]

    found = solve_ivp(slope, (0.0, time[-1]), [0.0, 0.0], "DOP853", time, rtol=1e-11, atol=1e-13)
    if not found.success:
        raise ValueError(f"the flow cannot be integrated: {found.message}")
    mu_ov, mu_qk = found.y
    return Path(time, mu_ov, mu_qk, attention(task, mu_qk))


def relation(task: Task, ratio: float, mu_ov: ArrayLike, mu_qk: ArrayLike) -> Float:
    """Return m (e^mu_QK - 1) + n mu_QK - r n (M - 1) mu_OV^2 / (2 M b): zero along the flow."""
    ov, qk = np.asarray(mu_ov, dtype=np.float64), np.asarray(mu_qk, dtype=np.float64)
    spent = task.informative * np.expm1(qk) + task.silent * qk
    share = task.silent * (task.classes - 1) / (2.0 * task.classes * task.vocabulary)
    return np.asarray(spent - ratio * share * ov**2)


class AttentionLayer(nn.Module):
    """The layer itself, on one-hot tokens.

    Args:
        task: its sizes.
        parameterisation: ``collapsed``: W_QK and W_OV, zero at first. ``factorised``:
            W_K^T W_Q and W_O W_V of that inner width, small Gaussians at first.
        generator: draws the factors.
        inner: the inner width.
    """

    def __init__(
        self, task: Task, parameterisation: Parameterisation = "collapsed",
        generator: torch.Generator | None = None, inner: int = 32,
    ) -> None:  # fmt: skip
        super().__init__()
        b, classes = task.vocabulary, task.classes
        self.factorised = parameterisation == "factorised"

        def factor(rows: int, columns: int) -> nn.Parameter:
            drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            return nn.Parameter(0.1 * drawn)

        if self.factorised:
            self.query, self.key, self.value = (factor(inner, b) for _ in range(3))
            self.out = factor(classes, inner)
        else:
            self.qk = nn.Parameter(torch.zeros(b, b, dtype=torch.float64))
            self.ov = nn.Parameter(torch.zeros(classes, b, dtype=torch.float64))

    def circuits(self) -> tuple[Tensor, Tensor]:
        """Return W_QK (query, key) and W_OV (class, token)."""
        if self.factorised:
            return self.query.T @ self.key, self.out @ self.value
        return self.qk, self.ov

    def rates(self, rate: float, ratio: float) -> list[dict[str, object]]:
        """Return the optimiser's groups."""
        if self.factorised:
            slow, fast = [self.value, self.out], [self.query, self.key]
        else:
            slow, fast = [self.ov], [self.qk]
        return [{"params": slow, "lr": rate}, {"params": fast, "lr": rate * ratio}]

    def forward(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, M) and attention (N, L) of queries (N,) and tokens (N, L)."""
        qk, ov = self.circuits()
        weights = torch.softmax(torch.gather(functional.embedding(query, qk), 1, tokens), dim=-1)
        values = functional.embedding(tokens, ov.T)
        return (weights[:, None] @ values).squeeze(1), weights


def sequences(task: Task, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return every pair of query and class once, with silent tokens drawn anew.

    Returns:
        Queries (N,), tokens (N, m + n), the informative first, and classes (N,).
    """
    b, classes = task.vocabulary, task.classes
    query = torch.arange(b).repeat_interleave(classes)
    label = torch.arange(classes).repeat(b)
    told = label[:, None].expand(-1, task.informative)
    silent = torch.randint(classes, b, (len(label), task.silent), generator=generator)
    return query, torch.cat([told, silent], dim=1), label


def train_layer(
    task: Task, ratio: float, steps: int, step: float, seed: int = 0,
    parameterisation: Parameterisation = "collapsed",
) -> tuple[Path, list[float]]:  # fmt: skip
    """Train the layer by gradient descent; return its path and the loss after each step.

    Args:
        task: see there.
        ratio: r.
        steps: how many.
        step: of the flow's time; the learning rate is ``step`` / b.
        seed: of silent tokens and factors.
        parameterisation: see :class:`AttentionLayer`.
    """
    generator = torch.Generator().manual_seed(seed)
    layer = AttentionLayer(task, parameterisation, generator)
    optimiser = torch.optim.SGD(layer.rates(step / task.vocabulary, ratio))
    rows, losses = [], []
    for _ in range(steps):
        query, tokens, label = sequences(task, generator)
        logits, weights = layer(query, tokens)
        loss = functional.cross_entropy(logits, label)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
        rows.append([*_reduced(task, layer), _told(task, weights)])
    columns = np.array(rows, dtype=np.float64).T
    time = step * np.arange(1, steps + 1, dtype=np.float64)
    return Path(time, columns[0], columns[1], columns[2]), losses


def _reduced(task: Task, layer: AttentionLayer) -> tuple[float, float]:
    """Return mu_OV and mu_QK of a layer."""
    qk, ov = (matrix.detach() for matrix in layer.circuits())
    m = task.classes
    right = ov.diagonal()[:m].mean()
    wrong = (ov[:, :m].sum() - ov.diagonal()[:m].sum()) / (m * (m - 1))
    return float(right - wrong), float(qk[:, :m].mean() - qk[:, m:].mean())


def _told(task: Task, weights: Tensor) -> float:
    return float(weights.detach()[:, : task.informative].sum(dim=1).mean())
