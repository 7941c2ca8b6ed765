"""What is recovered in full after the strategy has ended."""

from fake import FakeModel, pair, play, search_of

from subbyte import TuneConfig
from subbyte.tuning.candidate import Candidate, Recovery
from subbyte.tuning.finalists import finalists
from subbyte.tuning.ladder import bits
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.trial import Trial

LOSSES = {2: 0.03, 3: 0.02, 4: 0.012, 5: 0.005, 8: 0.0}  # after quick recovery, by the bits of the weight


def width(config: TuneConfig) -> int:
    return bits(config.op["a", "Linear"].weight)


def tried(search: Search, losses: dict[int, float], recovery: Recovery = "quick") -> list[Trial]:
    """One trial for each width of the only op."""
    configs = [search.space.config({("a", "Linear"): pair(each)}) for each in losses]

    def proposals() -> Proposals:
        for config in configs:
            yield [Candidate(config, recovery)]

    return play(search, proposals(), lambda candidate, number: losses[width(candidate.config)])


def finals(search: Search, trials: list[Trial], full: dict[int, float]) -> list[tuple[int, float]]:
    """Bits and losses of the finalists; what is not in `full` loses 0.02 after full recovery."""
    found = play(search, finalists(search, trials), lambda candidate, number: full.get(width(candidate.config), 0.02))
    assert all(trial.recovery == "full" for trial in found)
    return [(width(trial.config), trial.loss) for trial in found]


def fresh() -> Search:
    return search_of(FakeModel({"a": 10}, {"a": 1.0}), recipes=["some method"])


def test_finalists_go_on_to_dearer_ones_when_one_is_not_good_enough() -> None:
    search = fresh()
    assert finals(search, tried(search, LOSSES), {4: 0.0}) == [(3, 0.02), (4, 0.0)]
    assert finals(search, tried(search, LOSSES), {}) == [(3, 0.02), (4, 0.02), (5, 0.02)]


def test_finalists_go_on_to_cheaper_ones_when_one_is_good_enough() -> None:
    search = fresh()
    assert finals(search, tried(search, LOSSES), {3: 0.0, 2: 0.0}) == [(3, 0.0), (2, 0.0)]
    assert finals(search, tried(search, LOSSES), {3: 0.0}) == [(3, 0.0), (2, 0.02)]


def test_finalists_that_lose_more_than_cheaper_ones_are_left_out() -> None:
    search = fresh()
    losses = {2: 0.5, 3: 0.012, 4: 0.015, 5: 0.005}
    assert finals(search, tried(search, losses), {}) == [(3, 0.02), (5, 0.02)]


def test_plain_trials_are_no_finalists() -> None:
    search = fresh()
    assert finals(search, tried(search, LOSSES, "none"), {}) == []


def test_without_a_model_that_is_good_enough_the_nearest_are_tried() -> None:
    search = fresh()
    assert finals(search, tried(search, {2: 0.5, 3: 0.015}), {3: 0.0}) == [(3, 0.0)]
    assert finals(search, tried(search, {2: 0.5, 3: 0.3}), {}) == [(3, 0.02)]
