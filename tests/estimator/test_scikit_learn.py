"""scikit-learn's own checks of estimators; those that cannot apply are listed with the reason."""

import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.utils.estimator_checks import check_estimator

from trellis import CategoricalHMM

COLUMNS = "the checks' arrays have several columns, of which the adapter drops all but one"
NOT_APPLICABLE = {
    "check_n_features_in": COLUMNS,
    "check_n_features_in_after_fitting": COLUMNS,
    "check_positive_only_tag_during_fit": "the negative number is in a column that the adapter drops",
    "check_estimators_dtypes": "it gives floats, and symbols are whole numbers",
    "check_dtype_object": "it gives objects that are floats, and symbols are whole numbers",
    "check_methods_sample_order_invariance": "rows of a sequence depend on one another",
    "check_methods_subset_invariance": "rows of a sequence depend on one another",
    "check_fit2d_1sample": "one symbol is refused, in other words than it expects",
    "check_fit2d_predict1d": "an array (n,) is a sequence, and no mistake",
}


def first_column(X):
    if hasattr(X, "tocsr"):
        return X
    X = np.asarray(X)
    return X[:, :1] if X.ndim == 2 and X.shape[1] > 1 else X


class AsScikitLearnCalls(CategoricalHMM):
    """Its second argument is y, ours (as hmmlearn's) is lengths; its arrays have several columns, ours have one."""

    def fit(self, X, y=None):
        return super().fit(first_column(X))

    def partial_fit(self, X, y=None):
        return super().partial_fit(first_column(X))

    def score(self, X, y=None):
        return super().score(first_column(X))

    def score_samples(self, X, y=None, *, labels=None):
        return super().score_samples(first_column(X))

    def decode(self, X, y=None, algorithm=None, *, labels=None):
        return super().decode(first_column(X), algorithm=algorithm)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = False  # with it, most checks index a second dimension and fail themselves
        return tags


@pytest.fixture(scope="module")
def results():
    found = []
    for settings in ({}, {"n_components": 3, "random_state": 0}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the checks' own
            found += check_estimator(AsScikitLearnCalls(**settings), on_fail=None, on_skip=None)
    return found


def test_the_checks_that_apply_pass_and_the_reasons_of_the_others_are_still_needed(results):
    failed = {result["check_name"]: repr(result["exception"]) for result in results if result["status"] == "failed"}
    assert not {name: why for name, why in failed.items() if name not in NOT_APPLICABLE}
    assert set(failed) == set(NOT_APPLICABLE)
    assert len({result["check_name"] for result in results if result["status"] == "passed"}) >= 30


def test_a_grid_search_finds_the_number_of_states():
    X, _ = _two_states().sample(600, random_state=0)
    search = GridSearchCV(
        CategoricalHMM(n_features=4, n_iter=40, tol=1e-3, random_state=0), {"n_components": [1, 2]}, cv=KFold(3)
    )
    assert search.fit(X).best_params_ == {"n_components": 2}


def _two_states():
    model = CategoricalHMM(2)
    model.startprob_, model.transmat_ = np.array([0.5, 0.5]), np.array([[0.95, 0.05], [0.05, 0.95]])
    model.emissionprob_ = np.array([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
    return model
