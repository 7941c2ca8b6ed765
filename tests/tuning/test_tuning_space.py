"""The ladder: from narrow to wide, as the objective counts."""

from itertools import pairwise

import pytest
from fake import FLOAT, LADDER, FakeModel, pair, search_of

from subbyte.errors import TuningError
from subbyte.tuning.candidate import Candidate, Encoding
from subbyte.tuning.space import TuningSpace


def test_rungs_rise_with_the_cost() -> None:
    model = FakeModel({"a": 10}, {"a": 1.0})
    assert search_of(model).ladder(("a", "Linear")) == [*(pair(width) for width in range(2, 9)), FLOAT]


def test_where_activations_cost_nothing_the_widest_are_taken() -> None:
    pairs = tuple(pair(w, a) for w in (4, 8) for a in (4, 8))
    model = FakeModel({"a": 10}, {"a": 1.0}, alternatives={"a": pairs})
    assert search_of(model, objective="size").ladder(("a", "Linear")) == [pair(4, 8), pair(8, 8)]


def test_each_rung_is_as_wide_as_the_one_before_on_both_sides() -> None:
    pairs = tuple(pair(w, a) for w in (2, 4, 8) for a in (2, 4, 8))
    model = FakeModel({"a": 10}, {"a": 1.0}, alternatives={"a": (*pairs, FLOAT)})
    ladder = search_of(model, objective="bops").ladder(("a", "Linear"))
    widths = [(each.weight.dtype.bits, each.activation.dtype.bits) for each in ladder[:-1]]  # type: ignore[union-attr]
    assert widths[0] == (2, 2)
    assert widths[-1] == (8, 8)
    assert ladder[-1] == FLOAT
    assert all(w <= v and a <= b for (w, a), (v, b) in pairwise(widths))
    costs = [w * a for w, a in widths]
    assert costs == sorted(set(costs))


def test_nothing_to_tune_is_an_error() -> None:
    model = FakeModel({"a": 10}, {"a": 1.0}, alternatives={"a": (pair(8),)})
    with pytest.raises(TuningError, match="there is nothing to tune"):
        TuningSpace(model.ops, model.alternatives)


def test_candidates_are_encoded_and_decoded() -> None:
    model = FakeModel({"a": 10, "b": 5}, {"a": 1.0, "b": 1.0})
    encoding, space = Encoding(model.alternatives), TuningSpace(model.ops, model.alternatives)
    texts = set()
    for index, config in enumerate(LADDER):
        for recovery in ("none", "quick", "full"):
            candidate = Candidate(space.config({("b", "Linear"): config}), recovery)
            assert encoding.decode(encoding.encode(candidate)) == candidate
            texts.add(encoding.encode(candidate))
        assert len(texts) == 3 * (index + 1)
    other = Encoding(model.alternatives, "another method; seed 0")
    assert other.decode(encoding.encode(Candidate(space.widest(), "full"))) is None
    assert other.decode(encoding.encode(Candidate(space.widest()))) == Candidate(space.widest())
    with pytest.raises(TuningError, match=r"op 'a' .*none of its alternatives"):
        encoding.encode(Candidate(space.config({("a", "Linear"): pair(4, 3)})))
