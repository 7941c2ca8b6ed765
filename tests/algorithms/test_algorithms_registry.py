"""How recovery methods are named, ordered and extended."""

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import ConfigError, PostTrainingQuantConfig, RecoveryError, RecoveryMethod
from subbyte.algorithms import Stage, as_methods, registered_methods
from subbyte.algorithms.reconstruct import Reconstruct


class Named(RecoveryMethod):
    """Does nothing."""

    def apply(self, model: Any, unit: str, generator: torch.Generator) -> None:
        """Nothing."""


@subbyte.register_algorithm("test_early")
class Early(Named):
    """Of the first stage."""

    stage: ClassVar[Stage] = Stage.FLOAT
    strength: float = 1.0


@subbyte.register_algorithm("test_late")
class Late(Named):
    """Of the last stage; does what the next does."""

    stage: ClassVar[Stage] = Stage.CORRECTION
    excludes: ClassVar[frozenset[str]] = frozenset({"test_rival"})
    needs_data: ClassVar[bool] = False


@subbyte.register_algorithm("test_rival")
class Rival(Named):
    """Does what Late does."""

    stage: ClassVar[Stage] = Stage.CORRECTION


def test_forms_of_a_request() -> None:
    assert as_methods(None or []) == []
    assert as_methods("test_early") == [Early()]
    assert as_methods(["test_early", Late()]) == [Early(), Late()]
    assert as_methods({"test_early": {"strength": 2.0}, "test_late": True}) == [Early(strength=2.0), Late()]
    assert as_methods([{"test_early": None}, {"test_late": False}]) == [Early()]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["reconstuct"], "'reconstuct' is unknown; did you mean 'reconstruct'"),
        ([{"test_early": {"strenght": 1}}], "unknown option 'strenght'; did you mean 'strength'"),
        (
            [{"test_early": {"strength": "much"}}],
            "recovery method 'test_early': strength: input should be a valid number",
        ),
        ([{"reconstruct": {"steps": 0}}], "steps: input should be greater than 0"),
        ([{"test_early": 3}], "options are a mapping, or true or false, not 3"),
        ([7], "a method is a name"),
        (7, "a list of methods is expected"),
        (Reconstruct, r"Reconstruct is a class; write Reconstruct\(\)"),
        ([Reconstruct], r"Reconstruct is a class; write Reconstruct\(\)"),
        (["bias_correction", "batch_norm"], r"'batch_norm' .statistics. comes after 'bias_correction' .correction."),
        (["test_late", "test_early"], "'test_early' .float. comes after 'test_late' .correction., whose work it would"),
        (["test_late", "test_rival"], "'test_late' and 'test_rival' do the same in two ways"),
        (["test_early", "test_early"], "'test_early' is asked for twice"),
    ],
)
def test_bad_requests(asked: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_methods(asked)


def test_a_method_without_a_name_is_refused() -> None:
    class Nameless(Named):
        """Not registered."""

        stage: ClassVar[Stage] = Stage.FLOAT

    with pytest.raises(RecoveryError, match=r"Nameless has no name; put @subbyte.register_algorithm"):
        as_methods([Nameless()])


def test_names_are_taken_once() -> None:
    class Other(Named):
        """Another."""

        stage: ClassVar[Stage] = Stage.FLOAT

    with pytest.raises(ConfigError, match=r"'test_early' of a recovery method is taken"):
        subbyte.register_algorithm("test_early")(Other)
    with pytest.raises(ConfigError, match=r"must be a subclass of RecoveryMethod whose stage is a Stage"):
        subbyte.register_algorithm("no_stage")(Named)
    assert "test_early" in registered_methods()
    assert subbyte.register_algorithm("test_early")(Early) is Early


def test_a_method_of_ones_own_runs() -> None:
    @subbyte.register_algorithm("halve_weights")
    class HalveWeights(RecoveryMethod):
        """Weights halved, scales too."""

        stage: ClassVar[Stage] = Stage.ROUNDING
        needs_data: ClassVar[bool] = False

        def units(self, model: Any) -> list[str]:
            return list(model.ops)

        def apply(self, model: Any, unit: str, generator: torch.Generator) -> None:
            op = model.ops[unit]
            op.write_weight(op.weight / 2)
            op.calibrate()

    model, x = randomized(nn.Sequential(nn.Linear(6, 4, bias=False))).eval(), seeded((8, 6))
    plain = subbyte.quantize(model, "w4")
    halved = subbyte.quantize(model, "w4", recover=["halve_weights"])
    with torch.no_grad():
        assert torch.allclose(halved(x), plain(x) / 2, atol=1e-6)


class TestRecipes:
    def test_of_a_configuration(self) -> None:
        listed = PostTrainingQuantConfig(precision="w4", recipes=["test_early", {"test_late": {}}])
        mapped = PostTrainingQuantConfig(precision="w4", recipes={"test_early": True, "test_late": {}})
        assert listed == mapped
        assert as_methods(listed.recovery) == [Early(), Late()]

    def test_beside_those_of_the_ends(self) -> None:
        config = PostTrainingQuantConfig(recipes={"first_conv_or_matmul_quantization": False, "test_early": False})
        assert config.float_ends == ["first_conv_or_matmul_quantization"]
        assert config.recovery == []

    @pytest.mark.parametrize(
        ("recipes", "message"),
        [
            (["reconstuct"], "recipes: unknown 'reconstuct'; did you mean 'reconstruct'"),
            ({"test_early": "yes"}, "recipes: input should be a valid boolean or a mapping of options"),
            (["test_early", "test_early"], "recipes: 'test_early' is named twice"),
            ("test_early", "recipes: a mapping or a list of names is expected"),
        ],
    )
    def test_wrong_ones(self, recipes: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            PostTrainingQuantConfig(recipes=recipes)

    def test_run(self) -> None:
        model, x = randomized(ResidualNet()).eval(), seeded((16, 3, 6, 6))
        by_recipe = subbyte.quantize(model, {"precision": "w3a8", "recipes": [{"reconstruct": {"steps": 5}}]}, x)
        by_call = subbyte.quantize(model, "w3a8", x, recover=Reconstruct(steps=5))
        with torch.no_grad():
            assert torch.equal(by_recipe(x), by_call(x))

    def test_named_twice(self) -> None:
        with pytest.raises(ConfigError, match=r"named both by recover= and by the config's recipes"):
            subbyte.quantize(
                ResidualNet(),
                {"precision": "w4", "recipes": ["test_early"]},
                seeded((8, 3, 6, 6)),
                recover=["test_late"],
            )
