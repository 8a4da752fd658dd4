"""Particles are draws from the language model given that the constraint is met, which guided tokens alone are not."""

import collections
import functools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.steering import Guide, particles
from trellis.steering.language_models import Prompts

from .tiny_llamas import EOS, WORDS, accepts, contains, hmm, inner, lacks, llama, log_probs, texts

TOKENS, COUNT = 3, 1_500
AUTOMATON = contains("b")


def prompts(*rows):
    longest = max(map(len, rows))
    ids = torch.tensor([[EOS] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return Prompts(ids, mask, None, EOS, EOS)


@functools.cache
def wanted(prompt, temperature=1.0):
    """p_LM(text | the constraint is met)."""
    those = [one for one in texts(TOKENS) if accepts(AUTOMATON, inner(one))]
    found = log_probs(llama(2), list(prompt), those, temperature)
    weight = {text: np.exp(one) for text, one in found.items()}
    total = sum(weight.values())
    return {text: one / total for text, one in weight.items()}


def drawn(prompt, count, rows=COUNT, seed=0, **options):
    """How often each text came, out of so many draws of one particle each out of `count`."""
    guide = Guide(hmm(5), WORDS, AUTOMATON, TOKENS)
    generator = torch.Generator().manual_seed(seed)
    found = guide.generate_ids(llama(2), prompts(*[prompt] * rows), particles=count, generator=generator, **options)
    return collections.Counter(tuple(text) if len(text) == TOKENS else (*text, EOS) for text in found)


def surprise(seen, chances):
    """How many standard deviations χ² is above its mean, over texts that are expected often enough."""
    total = seen.total()
    often = [text for text, one in chances.items() if one * total >= 5]
    squares = sum((seen[text] - chances[text] * total) ** 2 / (chances[text] * total) for text in often)
    return (squares - len(often)) / (2 * len(often)) ** 0.5


def test_guided_tokens_are_biased_and_many_particles_are_not():
    prompt = (4, 5)
    chances = wanted(prompt)
    alone, together = drawn(prompt, 1), drawn(prompt, 60, rows=800)
    for seen in (alone, together):
        assert seen.keys() <= chances.keys()
    assert surprise(alone, chances) > 100  # the HMM is another model than the Llama
    assert surprise(together, chances) < 5
    assert _distance(together, chances) < 0.4 * _distance(alone, chances)


def _distance(seen, chances):
    """The total variation between what was seen and what is true."""
    return sum(abs(seen[text] / seen.total() - one) for text, one in chances.items()) / 2


def test_the_mean_weight_is_the_probability_that_the_constraint_is_met(monkeypatch):
    """Σ over texts that meet it of p_LM, unbiased, without resampling."""
    monkeypatch.setattr(particles, "FEWEST", 0.0)
    prompt, steps = (4, 5), []
    keep = particles._check_alive
    monkeypatch.setattr(particles, "_check_alive", lambda weight: (steps.append(weight.clone()), keep(weight)))
    drawn(prompt, 3_000, rows=1)
    want = sum(np.exp(one) for text, one in log_probs(llama(2), list(prompt), texts(TOKENS)).items()
               if accepts(AUTOMATON, inner(text)))  # fmt: skip
    weight_N = steps[-1][0].exp()
    error = float(weight_N.std()) / len(weight_N) ** 0.5
    assert abs(float(weight_N.mean()) - want) < 4 * error
    assert error < 0.05 * want


def test_mixed_prompts_and_constraints_in_a_batch():
    constraints = [contains("b", "c"), lacks("a"), contains("e")]
    guide = Guide(hmm(1), WORDS, constraints * 5, 4)
    rows = prompts(*[(2,), (4, 5, 3), (7, 6)] * 5)
    found = guide.generate_ids(llama(2), rows, particles=5, generator=torch.Generator().manual_seed(1))
    for automaton, text in zip(constraints * 5, found, strict=True):
        assert automaton.accepts(text)
    assert len({len(text) for text in found}) > 1


def test_a_prompt_in_a_padded_batch_has_its_own_distribution():
    """The cache and the positions of a padded row are its own."""
    guide = Guide(hmm(5), WORDS, AUTOMATON, TOKENS)
    rows = prompts(*[(4, 5), (2, 3, 6, 7, 2)] * 400)
    found = guide.generate_ids(llama(2), rows, particles=50, generator=torch.Generator().manual_seed(3))
    for first, prompt in enumerate(((4, 5), (2, 3, 6, 7, 2))):
        seen = collections.Counter(tuple(text) if len(text) == TOKENS else (*text, EOS) for text in found[first::2])
        assert surprise(seen, wanted(prompt)) < 5


def test_resampling_takes_each_particle_as_often_as_it_weighs():
    log_weight_BN = torch.tensor([[0.0, 0.0, -torch.inf, np.log(6.0)], [0.0, 0.1, 0.0, 0.1]], dtype=torch.float64)
    for seed in range(50):
        weight_BN = log_weight_BN.clone()
        chosen_BN = particles._resampled(weight_BN, torch.Generator().manual_seed(seed))
        often = torch.bincount(chosen_BN[0], minlength=4)
        assert_close(chosen_BN[1], torch.arange(4))  # all count there
        assert often[2] == 0
        assert often[3] == 3
        assert (weight_BN[0] == 0).all()
        assert torch.equal(weight_BN[1], log_weight_BN[1])
    assert particles._resampled(log_weight_BN[1:].clone(), None) is None


def test_the_same_generator_draws_the_same_texts():
    assert drawn((4,), 4, rows=20, seed=7) == drawn((4,), 4, rows=20, seed=7)


def test_what_particles_do_not_know_is_refused():
    guide, rows = Guide(hmm(), WORDS, AUTOMATON, TOKENS), prompts((2,))
    with pytest.raises(TrellisError, match="nothing of num_beams"):
        guide.generate_ids(llama(), rows, particles=2, num_beams=3)
    with pytest.raises(TrellisError, match="give 1 or more"):
        guide.generate_ids(llama(), rows, particles=0)


def test_a_temperature_is_the_language_models():
    seen = drawn((4, 5), 60, rows=500, temperature=0.7)
    assert surprise(seen, wanted((4, 5), 0.7)) < 5
    assert surprise(seen, wanted((4, 5))) > 10
