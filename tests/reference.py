"""The slow, obvious twin of every recursion: one sequence at a time, in float64 log space.

Each function takes `(log_start_S, log_transition, log_emission_TS, log_belief_S=None)`: the first state is drawn
from start, or, when a belief over the state before the first token is given, from belief × transition. The transition
is S×S, or T×S×S where each step has its own: the t-th leads to the t-th token.
−inf is legal everywhere. `enumerate_paths`, at the end, is slower and plainer still: it lists all S**T paths.
"""

import heapq
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

NEVER = -torch.inf

# What every function here takes.
Sequence = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Filtered(NamedTuple):
    """log_prob[t] = log p(o_t | o_<t); log_belief[t, i] = log p(z_t = i | o_≤t).

    From the first impossible token on, both are −inf.
    """

    log_prob_T: Tensor
    log_belief_TS: Tensor


class ExpectedCounts(NamedTuple):
    """posterior[t, i] = p(z_t = i | o); start = posterior[1]; transition[i, j] = Σ p(z_t = i, z_t+1 = j | o).

    These are the gradients of log p(o) by log_emission, log_start, log_transition. Continuing from a belief,
    the step from the state before the first token counts as a transition and start is zero. Where each step has its
    own transition, each is counted by itself. An impossible sequence has no posterior: every count is zero, and
    log_prob says where it became impossible.
    """

    log_prob_T: Tensor
    start_S: Tensor
    transition: Tensor
    posterior_TS: Tensor


class Path(NamedTuple):
    """log_prob = log p(z, o) of one state path z; an impossible best path is −inf with no states."""

    log_prob: float
    states: tuple[int, ...]


def logsumexp(log_x: Tensor, dim: int) -> Tensor:
    """log Σ exp(x) along `dim`, where a sum of nothing is −inf with gradient zero (torch's own is NaN)."""
    nothing = (log_x == NEVER).all(dim, keepdim=True)
    return torch.logsumexp(log_x.masked_fill(nothing, 0.0), dim).masked_fill(nothing.squeeze(dim), NEVER)


def into(log_transition: Tensor, step: int) -> Tensor:
    """The transition that leads to the token of this step, [from, to]."""
    return log_transition if log_transition.dim() == 2 else log_transition[step]


def next_state(log_belief_S: Tensor, log_transition_SS: Tensor) -> Tensor:
    """log p(z_t+1 = j | o_≤t) = log Σ_i belief[i] · transition[i, j]."""
    return logsumexp(log_belief_S.double()[:, None] + log_transition_SS.double(), 0)


def first_state(log_start_S: Tensor, log_transition: Tensor, log_belief_S: Tensor | None) -> Tensor:
    """log p(z_1 = i) before any token is seen: start, or one step on from the belief."""
    return log_start_S.double() if log_belief_S is None else next_state(log_belief_S, into(log_transition, 0))


def filter(  # the name of the algorithm; read as reference.filter
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Filtered:
    """Predict, weigh by the emission, normalise; the normaliser is the token's probability."""
    log_predicted_S = first_state(log_start_S, log_transition, log_belief_S)
    never_S = torch.full_like(log_predicted_S, NEVER)
    log_probs: list[Tensor] = [never_S[:0]]
    log_belief_TS: list[Tensor] = []
    for t, log_emission_S in enumerate(log_emission_TS.double()):
        if t > 0:
            log_predicted_S = next_state(log_belief_TS[-1], into(log_transition, t))
        log_joint_S = log_predicted_S + log_emission_S
        log_prob = logsumexp(log_joint_S, 0)
        log_probs.append(log_prob[None])
        log_belief_TS.append(never_S if log_prob == NEVER else log_joint_S - log_prob)
    return Filtered(torch.cat(log_probs), torch.stack(log_belief_TS) if log_belief_TS else never_S[None][:0])


def log_likelihood(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Tensor:
    """log p(o) = Σ_t log p(o_t | o_<t), a scalar; the terms are `filter(…).log_prob_T`."""
    return filter(log_start_S, log_transition, log_emission_TS, log_belief_S).log_prob_T.sum()


def smooth(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Tensor:
    """posterior[t, i] = p(z_t = i | o); zeros if the sequence is impossible."""
    return expected_counts(log_start_S, log_transition, log_emission_TS, log_belief_S).posterior_TS


def expected_counts(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> ExpectedCounts:
    """Forward, then backward, adding up p(z_t, z_t+1 | o) step by step: only a few S×S are ever held."""
    log_prob_T, log_belief_TS = filter(log_start_S, log_transition, log_emission_TS, log_belief_S)
    log_transition, log_emission_TS = log_transition.double(), log_emission_TS.double()
    start_S, transition = torch.zeros_like(log_start_S.double()), torch.zeros_like(log_transition)
    posterior_TS = torch.zeros_like(log_belief_TS)
    if log_prob_T.sum() == NEVER or len(log_prob_T) == 0:
        return ExpectedCounts(log_prob_T, start_S, transition, posterior_TS)
    log_future_S = torch.zeros_like(start_S)  # log p(o_>t | z_t) − log p(o_>t | o_≤t)
    for t in reversed(range(len(log_prob_T))):
        posterior_TS[t] = (log_belief_TS[t] + log_future_S).exp()
        log_before_S = log_belief_TS[t - 1] if t > 0 else log_belief_S
        if log_before_S is None:
            start_S = posterior_TS[0].clone()
            break
        log_step_SS = into(log_transition, t) + (log_emission_TS[t] + log_future_S - log_prob_T[t])
        into(transition, t).add_((log_before_S.double()[:, None] + log_step_SS).exp())
        log_future_S = logsumexp(log_step_SS, 1)
    return ExpectedCounts(log_prob_T, start_S, transition, posterior_TS)


def viterbi(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Path:
    """argmax_z log p(z, o)."""
    best = k_best(log_start_S, log_transition, log_emission_TS, 1, log_belief_S)
    return best[0] if best else Path(NEVER, ())


def k_best(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    k: int,
    log_belief_S: Tensor | None = None,
) -> list[Path]:
    """The k most probable state paths, best first; fewer if fewer are possible.

    A path among the k best has a prefix among the k best that end in the same state, so we keep those.
    """
    first = first_state(log_start_S, log_transition, log_belief_S).tolist()
    emission = log_emission_TS.double().tolist()
    if not emission:
        return [Path(0.0, ())]
    ending_in = [[Path(p + e, (j,))] for j, (p, e) in enumerate(zip(first, emission[0], strict=True))]
    for t, log_emission in enumerate(emission[1:], start=1):
        step = into(log_transition, t).double().tolist()
        ending_in = [
            heapq.nlargest(
                k,
                (
                    Path(path.log_prob + step[i][j] + log_emission[j], (*path.states, j))
                    for i, paths in enumerate(ending_in)
                    for path in paths
                ),
            )
            for j in range(len(first))
        ]
    best = heapq.nlargest(k, itertools.chain.from_iterable(ending_in))
    return [path for path in best if path.log_prob > NEVER]


def posterior_entropy(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Tensor:
    """H(z | o) = H(z_1 | o) + Σ_t H(z_t+1 | z_t, o) in nats: the chain rule, from pairwise posteriors.

    An entropy is at most the logarithm of the number of possible paths; with none possible we say −inf.
    """
    counts = expected_counts(log_start_S, log_transition, log_emission_TS, log_belief_S)
    log_prob_T, posterior_TS = counts.log_prob_T, counts.posterior_TS
    if log_prob_T.sum() == NEVER:
        return log_prob_T.sum()
    entropy: Tensor = torch.special.entr(posterior_TS[:1]).sum()
    log_future_S = torch.zeros_like(log_start_S.double())
    for t in reversed(range(1, len(log_prob_T))):
        log_step_SS = into(log_transition, t).double() + (log_emission_TS[t].double() + log_future_S)
        log_future_S = logsumexp(log_step_SS, 1)
        reachable_S1 = (log_future_S > NEVER)[:, None]
        next_SS = torch.where(reachable_S1, log_step_SS - log_future_S[:, None], NEVER).exp()
        entropy = entropy + posterior_TS[t - 1] @ torch.special.entr(next_SS).sum(1)
    return entropy


class Enumeration(NamedTuple):
    """Each state path z of N = S**T with log_joint[n] = log p(z, o), and what follows by definition."""

    paths_NT: Tensor
    log_joint_N: Tensor
    states: int

    def log_likelihood(self) -> Tensor:
        """log Σ_z p(z, o)."""
        return logsumexp(self.log_joint_N, 0)

    def weights(self) -> Tensor:
        """p(z | o) of every path; zeros if the sequence is impossible."""
        total = self.log_likelihood()
        return (self.log_joint_N - total).exp() if total > NEVER else torch.zeros_like(self.log_joint_N)

    def posterior(self) -> Tensor:
        """p(z_t = i | o), (T, S)."""
        at_NTS = torch.nn.functional.one_hot(self.paths_NT, self.states).double()
        return torch.einsum("n,nts->ts", self.weights(), at_NTS)

    def pairs(self) -> Tensor:
        """p(z_t = i, z_t+1 = j | o), (T − 1, S, S)."""
        at_NTS = torch.nn.functional.one_hot(self.paths_NT, self.states).double()
        return torch.einsum("n,nti,ntj->tij", self.weights(), at_NTS[:, :-1], at_NTS[:, 1:])

    def best(self, k: int = 1) -> list[Path]:
        """The k most probable possible paths, best first."""
        order = self.log_joint_N.argsort(descending=True, stable=True)[:k].tolist()
        ranked = [Path(float(self.log_joint_N[n]), tuple(self.paths_NT[n].tolist())) for n in order]
        return [path for path in ranked if path.log_prob > NEVER]

    def entropy(self) -> Tensor:
        """−Σ_z p(z | o) log p(z | o); −inf if no path is possible."""
        weights_N = self.weights()
        return torch.special.entr(weights_N).sum() if weights_N.any() else torch.full_like(weights_N[0], NEVER)


def enumerate_paths(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_emission_TS: Tensor,
    log_belief_S: Tensor | None = None,
) -> Enumeration:
    """log p(z, o) = log p(z_1) + Σ_t log transition[z_t, z_t+1] + Σ_t log emission[t, z_t], for every z."""
    time, states = log_emission_TS.shape
    paths_NT = torch.tensor(list(itertools.product(range(states), repeat=time)), dtype=torch.int64)
    paths_NT = paths_NT.reshape(states**time, time)
    log_joint_N = log_emission_TS.double()[torch.arange(time), paths_NT].sum(1)
    if time > 0:
        log_joint_N = log_joint_N + first_state(log_start_S, log_transition, log_belief_S)[paths_NT[:, 0]]
        for t in range(1, time):
            log_joint_N = log_joint_N + into(log_transition, t).double()[paths_NT[:, t - 1], paths_NT[:, t]]
    return Enumeration(paths_NT, log_joint_N, states)
