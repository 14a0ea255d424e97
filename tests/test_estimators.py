"""Selectors and samplers obey the rules of scikit-learn.

`fit` is written once for each base class. So one selector of each passes all checks, and the others those of their
constructors.
"""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from seqpoint.selection import FrequentSelector, MedianSelector, PriorSelector, SeqPointSelector, WorstSelector
from seqpoint.selection.stratified import KMedoidsSelector, RandomSelector, StratifiedSelector

#: One of `Selector` itself, of those that choose one length, and of those that draw.
OF_EACH_BASE = [
    SeqPointSelector(max_points=3, initial_bins=9, tolerance=0.0),
    MedianSelector(),
    StratifiedSelector(max_points=3, max_strata=1),
]
OTHERS = [FrequentSelector, WorstSelector, PriorSelector, RandomSelector, KMedoidsSelector]


@parametrize_with_checks(OF_EACH_BASE)
def test_obeys_the_rules_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [*OTHERS, *map(type, OF_EACH_BASE)], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_fit1d,
        estimator_checks.check_dict_unchanged,
    ],
)
def test_a_constructor_and_a_fit_keep_what_they_are_given(kind: type, check: Callable[[str, Any], None]) -> None:
    check(kind.__name__, kind())
