"""Our estimator and hmmlearn's, with the same settings and the same tables."""

import numpy as np

from trellis import CategoricalHMM


def tables(seed, states, symbols):
    random = np.random.RandomState(seed)
    return (
        random.dirichlet(np.ones(states)),
        random.dirichlet(np.ones(states), states),
        random.dirichlet(np.ones(symbols), states),
    )


def given(model, start, transition, emission):
    model.startprob_, model.transmat_, model.emissionprob_ = start.copy(), transition.copy(), emission.copy()
    return model


def ours(seed, states, symbols, **settings):
    return given(CategoricalHMM(states, init_params="", **settings), *tables(seed, states, symbols))


def both(seed, states, symbols, **settings):
    from hmmlearn.hmm import CategoricalHMM as Theirs

    theirs = Theirs(states, init_params="", n_features=symbols, **settings)
    return ours(seed, states, symbols, n_features=symbols, **settings), given(theirs, *tables(seed, states, symbols))


def data(seed, symbols, lengths):
    return np.random.RandomState(seed + 1).randint(symbols, size=(sum(lengths), 1))
