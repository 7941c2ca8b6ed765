# ruff: noqa: E501 (in tables, a case is a line)
"""Reading capability files: the seeds' snippet, merging, and every error with its line."""

from pathlib import Path

import pytest

from subbyte.adaptor.pytorch.modules import register_module
from subbyte.adaptor.pytorch.modules.linear import LinearHandler
from subbyte.capability import Capability, built_in_capabilities, load_capability
from subbyte.dtypes import dtype, registered_dtypes
from subbyte.errors import CapabilityError

# As the seed documents print it.
SNIPPET = """
    int4: {
        'static': {
            'Conv2d': {
                'weight': {
                    'dtype': ['int4'],
                    'scheme': ['sym'],
                    'granularity': ['per_channel'],
                    'algorithm': ['minmax']},
                'activation': {
                    'dtype': ['uint4'],
                    'scheme': ['sym'],
                    'granularity': ['per_tensor'],
                    'algorithm': ['minmax']},
            },
        }
    }
"""
WEIGHT = "weight: {dtype: [int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}"
MINIMAL = f"capabilities:\n    int4: {{static: {{Linear: {{{WEIGHT}}}}}}}\n"


def write(folder: Path, text: str, name: str = "chip.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> Capability:
    return load_capability(write(folder, text))


def refused(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(CapabilityError) as caught:
        load_capability(path)
    return str(caught.value).replace(str(folder) + "/", "")


def test_the_snippet_stands_alone(tmp_path: Path) -> None:
    capability = load(tmp_path, "capabilities:\n    fp32: ['*']\n" + SNIPPET)
    assert capability.default == "int4"
    assert capability.floats == {"fp32": ("*",)}
    entry = capability.op("int4", "static", "Conv2d")
    assert entry is not None
    assert entry.weight is not None
    assert entry.activation is not None
    assert entry.weight.dtype == ("int4",)
    assert entry.activation.dtype == ("uint4",)
    assert capability.op("int4", "static", "Linear") is None


def test_the_snippet_lies_over_the_built_in(tmp_path: Path) -> None:
    base = load_capability()
    over = load(tmp_path, "extends: pytorch_cpu\ncapabilities:\n" + SNIPPET)
    conv = over.op("int4", "static", "Conv2d")
    assert conv is not None
    assert conv.weight is not None
    assert conv.weight.granularity == ("per_channel",)  # a list replaces a list
    assert conv.weight.scale_format == ("fp32", "fp16", "bf16", "pow2")  # what is not given stays
    for op_type in base.op_types() - {"Conv2d"}:
        for section in base.sections:
            for mode in base.modes(op_type):
                assert over.op(section, mode, op_type) == base.op(section, mode, op_type)


def test_the_snippet_can_be_pasted_into_the_built_in(tmp_path: Path) -> None:
    text = built_in_capabilities()["pytorch_cpu"].read_text()
    line = "    fp32: ['*']\n"
    assert text.count(line) == 1
    pasted = load(tmp_path, text.replace(line, line + SNIPPET))
    assert pasted.sections == load_capability().sections  # the built-in's int4 comes later and says as much


def test_a_section_given_twice_is_merged_later_over_earlier(tmp_path: Path) -> None:
    again = SNIPPET.replace("'Conv2d'", "'Linear'") + SNIPPET.replace("['minmax']}", "['mse']}")
    capability = load(tmp_path, "capabilities:\n" + SNIPPET + again)
    conv, linear = (capability.op("int4", "static", name) for name in ("Conv2d", "Linear"))
    assert conv is not None
    assert conv.weight is not None
    assert conv.weight.algorithm == ("mse",)
    assert linear is not None
    assert linear.weight is not None
    assert linear.weight.algorithm == ("minmax",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "default: int4\ndefault: int4\n" + MINIMAL,
            "chip.yaml:2: the key 'default' is given twice, first at",
        ),
        (
            "capabilities:\n  int4:\n    static: {}\n    static: {}\n",
            "chip.yaml:4: the key 'static' is given twice",
        ),
    ],
)
def test_a_key_given_twice_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_anchors_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = f"""
capabilities:
    int4:
        static:
            Linear: &op
                {WEIGHT}
                activation: &in {{dtype: [uint4], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}}
            Conv2d: *op
        dynamic:
            Linear: {{<<: *op, activation: {{<<: *in, granularity: [per_token]}}}}
"""
    capability = load(tmp_path, text)
    assert capability.op("int4", "static", "Conv2d") == capability.op("int4", "static", "Linear")
    dynamic = capability.op("int4", "dynamic", "Linear")
    assert dynamic is not None
    assert dynamic.activation is not None
    assert dynamic.weight is not None
    assert dynamic.activation.granularity == ("per_token",)
    assert dynamic.activation.dtype == ("uint4",)


def test_quant_aware_is_static_unless_given(tmp_path: Path) -> None:
    capability = load(tmp_path, MINIMAL)
    assert capability.op("int4", "quant_aware", "Linear") == capability.op("int4", "static", "Linear")
    own = WEIGHT.replace("minmax", "mse")
    text = f"capabilities:\n    int4: {{static: {{Linear: {{{WEIGHT}}}}}, quant_aware: {{Linear: {{{own}}}}}}}\n"
    trained = load(tmp_path, text).op("int4", "quant_aware", "Linear")
    assert trained is not None
    assert trained.weight is not None
    assert trained.weight.algorithm == ("mse",)


def test_null_removes_and_a_null_that_removes_nothing_is_refused(tmp_path: Path) -> None:
    text = "extends: pytorch_cpu\ncapabilities:\n  int4: null\n  int8: {static: {add: null}}\n"
    capability = load(tmp_path, text)
    assert "int4" not in capability.sections
    assert capability.op("int8", "static", "add") is None
    assert capability.op("int8", "static", "mul") is not None
    message = refused(tmp_path, text.replace("int4: null", "int44: null"))
    assert message.startswith("chip.yaml:3: 'int44' has no value")
    assert "did you mean 'int4'?" in message
    assert "chip.yaml:2: 'int4' has no value" in refused(tmp_path, "capabilities:\n  int4:\n")


def test_extends_a_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "version: {name: base}\n" + MINIMAL, "base.yaml")
    over = f"extends: base.yaml\nversion: {{name: over}}\ncapabilities:\n  int4: {{static: {{Conv2d: {{{WEIGHT}}}}}}}\n"
    capability = load(tmp_path, over)
    assert capability.name == "over"
    assert capability.op_types() == {"Linear", "Conv2d"}


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "extends: chip.yaml\n" + MINIMAL, "base.yaml")
    message = refused(tmp_path, "extends: base.yaml\n" + MINIMAL)
    assert "goes in a circle: chip.yaml -> base.yaml -> chip.yaml" in message


def test_extends_nothing_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, "extends: pytorch_gpu\n" + MINIMAL)
    assert message.startswith("chip.yaml:1: extends: no capability file")
    assert "did you mean 'pytorch_cpu'?" in message


def test_a_dictionary_serves(tmp_path: Path) -> None:
    lists = {"dtype": ["int4"], "scheme": ["sym"], "granularity": ["per_channel"], "algorithm": ["minmax"]}
    given = {"capabilities": {"int4": {"static": {"Linear": {"weight": lists}}}}}
    assert load_capability(given).sections == load(tmp_path, MINIMAL).sections
    overlay = load_capability({"extends": "pytorch_cpu", "default": "int4"})
    assert overlay.default == "int4"
    with pytest.raises(CapabilityError, match=r"capability dictionary: unknown key 'weigth' in int4, static, Linear"):
        load_capability({"capabilities": {"int4": {"static": {"Linear": {"weigth": lists}}}}})
    with pytest.raises(CapabilityError, match="a key must be a name, not 4"):
        load_capability({"capabilities": {4: {}}})


def test_own_data_types_are_registered(tmp_path: Path) -> None:
    own = "dtypes:\n  loadert3: {bits: 3, signed: true, narrow: true}\n"
    capability = load(tmp_path, own + MINIMAL.replace("int4", "loadert3"))
    assert (dtype("loadert3").qmin, dtype("loadert3").qmax) == (-3, 3)
    assert capability.dtypes == {"loadert3": dtype("loadert3")}
    load(tmp_path, own + MINIMAL)  # again: nothing changes
    taken = refused(tmp_path, "dtypes:\n  loadert3: {bits: 2, signed: true}\n" + MINIMAL)
    assert taken.startswith("chip.yaml:2: data type 'loadert3': the name is taken")
    assert "a data type cannot change within a process; choose another name, or restart Python" in taken


def test_a_file_that_is_refused_leaves_no_data_type_behind(tmp_path: Path) -> None:
    types = "dtypes:\n  loadert4: {bits: 3, signed: true}\n  loadert5: {bits: 2, signed: true}\n"
    refused(tmp_path, types + MINIMAL.replace("Linear", "Linaer"))
    refused(tmp_path, types + "  loadert6: {bits: 3, signd: true}\n" + MINIMAL)
    assert not {"loadert4", "loadert5"} & registered_dtypes().keys()
    load(tmp_path, types.replace("bits: 3", "bits: 4") + MINIMAL)
    assert dtype("loadert4").bits == 4


def test_an_op_type_of_the_users_own_may_be_named(tmp_path: Path) -> None:
    text = MINIMAL.replace("Linear", "LoaderLinear")
    refused(tmp_path, text)
    handler = type("Handler", (LinearHandler,), {"op_type": "LoaderLinear"})()
    register_module("nowhere.LoaderLinear", handler)
    assert load(tmp_path, text).op_types() == {"LoaderLinear"}
    assert load(tmp_path, "fusions: [[Linear, MaxPool2d, relu]]\n" + MINIMAL).fusions


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{bits: 3, signd: true}", "unknown key 'signd'; did you mean 'signed'?"),
        ("{values: [1, 1]}", "a value stands twice"),
        ("{bits: 40, signed: true}", "bits must be 1..8"),
        ("3", "expected {bits:"),
        ("{bits: 16}", "bits must be 1..8, not 16; the float types are fp32, bf16, fp16"),
        ("{values: '12'}", "values must be a list of numbers, not '12'"),
        ("{values: [true, false]}", "values must be numbers, and True is none"),
        ("{bits: 3, signed: true, algorithm: minmx}", "algorithm 'minmx' is unknown; did you mean 'minmax'?"),
    ],
)
def test_a_bad_data_type_names_its_line(tmp_path: Path, entry: str, message: str) -> None:
    text = refused(tmp_path, f"# a comment\ndtypes:\n  loaderbad: {entry}\n{MINIMAL}")
    assert text.startswith("chip.yaml:3: data type 'loaderbad': ")
    assert message in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capabilites:\n  int4: {}\n", "chip.yaml:1: unknown key 'capabilites'; did you mean 'capabilities'? (allowed: "),
        (MINIMAL.replace("static", "statc"), "chip.yaml:2: unknown key 'statc' in section 'int4'; did you mean 'static'?"),
        (MINIMAL.replace("weight", "wieght"), "chip.yaml:2: unknown key 'wieght' in int4, static, Linear"),
        (MINIMAL.replace("scheme", "schema"), "chip.yaml:2: unknown key 'schema' in int4, static, Linear, weight"),
        (MINIMAL.replace("[int4]", "[int44]"), "chip.yaml:2: unknown dtype 'int44' in int4, static, Linear, weight; did"),
        (MINIMAL.replace("[int4]", "[fp32]"), "chip.yaml:2: unknown dtype 'fp32'"),
        (MINIMAL.replace("[sym]", "[symm]"), "chip.yaml:2: unknown scheme 'symm'"),
        (MINIMAL.replace("[minmax]", "[minimax]"), "unknown algorithm 'minimax' in int4, static, Linear, weight; did you mean"),
        (MINIMAL.replace("per_channel", "per_chanel"), "unknown granularity 'per_chanel'"),
        (MINIMAL.replace("per_channel", "per_group"), "the first granularity is the default: give a size"),
        (MINIMAL.replace("per_channel", "per_channel(3)"), "takes no size"),
        (MINIMAL.replace("[sym]", "['*']"), "the first scheme is the default and cannot be '*'"),
        (MINIMAL.replace("[sym]", "[]"), "chip.yaml:2: scheme: expected a list of names, found []"),
        (MINIMAL.replace("[sym]", "[3]"), "scheme: expected a list of names, found [3]"),
        (MINIMAL.replace("scheme: [sym], ", ""), "the key 'scheme' is missing"),
        (MINIMAL.replace(WEIGHT, "accumulator: int32"), "it needs a weight or an activation"),
        (MINIMAL.replace(WEIGHT, WEIGHT + ", accumulator: int31"), "unknown accumulator 'int31'; did you mean 'int32'?"),
        (MINIMAL.replace("algorithm: [minmax]", "algorithm: [minmax], scale_format: [pow3]"), "unknown scale_format 'pow3'"),
        ("default: int8\n" + MINIMAL, "chip.yaml:1: unknown section 'int8' as default; did you mean 'int4'?"),
        (MINIMAL + MINIMAL.split("\n")[1].replace("int4:", "w4:"), "chip.yaml:1: the key 'default' is missing"),
        ("fusions: [[Linear, 3]]\n" + MINIMAL, "chip.yaml:1: fusions: expected lists of op types"),
        ("strict: maybe\n" + MINIMAL, "chip.yaml:1: strict: expected true or false, found 'maybe'"),
        ("fusions: [[]]\n" + MINIMAL, "chip.yaml:1: fusions: expected lists of op types"),
        (MINIMAL.replace("Linear", "Linaer"), "chip.yaml:2: unknown op type 'Linaer' in int4, static; did you mean 'Linear'? (known: Conv1D, "),
        ("fusions: [[Linear, Relu]]\n" + MINIMAL, "chip.yaml:1: unknown op type 'Relu' in fusions; did you mean 'ReLU'?"),
        ("capabilities:\n  bf16: [Linear, Conv2D]\n", "chip.yaml:2: unknown op type 'Conv2D' in section 'bf16'; did you mean 'Conv2d'?"),
        (MINIMAL.replace("[minmax]", "[minmax, percentile(abc)]"), "chip.yaml:2: int4, static, Linear, weight: algorithm 'percentile(abc)' is unknown; did you mean 'percentile'?"),
        (MINIMAL.replace("[minmax]", "[minmax(3)]"), "chip.yaml:2: int4, static, Linear, weight: algorithm 'minmax(3)': minmax takes no argument"),
        (MINIMAL.replace("[int4]", "[int4(2)]"), "chip.yaml:2: unknown dtype 'int4(2)' in int4, static, Linear, weight; did you mean 'int4'?"),
        ("version: {nam: x}\n" + MINIMAL, "chip.yaml:1: unknown key 'nam' in version; did you mean 'name'?"),
        ("version: {name: 3}\n" + MINIMAL, "chip.yaml:1: version: name: expected a name of at most 200"),
        ("constraints: {}\n" + MINIMAL, "chip.yaml:1: constraints: expected a list"),
        (MINIMAL.replace(WEIGHT, WEIGHT + ", accumulator: [int32]"), "unknown accumulator ['int32']"),
        ("version: 3\n" + MINIMAL, "chip.yaml:1: version: expected a mapping"),
        ("capabilities:\n  fp3: ['*']\n", "chip.yaml:2: section 'fp3': expected {mode: {op type: ...}}"),
        ("extends: 3\n" + MINIMAL, "chip.yaml:1: extends: expected"),
        ("version: {name: x}\n", "it needs capabilities"),
        ("capabilities:\n  4: {}\n", "chip.yaml:2: a key must be a name, not 4"),
        ("", "chip.yaml:1: expected a mapping"),
        ("[1, 2]", "chip.yaml:1: expected a mapping"),
        ("a: {b: [1\nc: 2", "not readable as YAML"),
        ("a: 1\n\tb: 2", "chip.yaml:2: not readable as YAML"),
        ("a: &x [*x]", "an alias stands inside the value that it names"),
        ("a: *x", "chip.yaml:1: not readable as YAML"),
        ("a: !thing 3", "chip.yaml:1: a value of the YAML type '!thing' is not supported"),
        ("a: {<<: 3}", "<< merges a mapping"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_spelling(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


CONSTRAINT = MINIMAL + "constraints:\n  - "


def test_constraints_are_read(tmp_path: Path) -> None:
    text = (
        CONSTRAINT + "{where: {position: [first, last], op: Linear, name: 'a.*', depthwise: true}, precision: w4a8}\n"
    )
    (constraint,) = load(tmp_path, text).constraints
    assert constraint.position == ("first", "last")
    assert (constraint.op, constraint.name, constraint.depthwise) == (("Linear",), ("a.*",), True)
    assert constraint.precision == "w4a8"
    assert constraint.place.line == 4


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            "{where: {position: [frist]}, precision: int4}",
            "unknown position 'frist' in where; did you mean 'first'?",
        ),
        ("{where: {op: Lineer}, precision: int4}", "unknown op 'Lineer' in where; did you mean 'Linear'?"),
        ("{where: {name: '('}, precision: int4}", "is no regular expression"),
        ("{where: {depthwise: 1}, precision: int4}", "depthwise: expected true or false"),
        ("{where: {opp: Linear}, precision: int4}", "unknown key 'opp' in where; did you mean 'op'?"),
        (
            "{wher: {op: Linear}, precision: int4}",
            "unknown key 'wher' in a constraint; did you mean 'where'?",
        ),
        ("{where: {op: Linear}}", "a constraint needs 'precision'"),
        ("{precision: int4}", "a constraint needs 'where'"),
        ("{where: {op: Linear}, precision: innt4}", "unknown precision 'innt4'; did you mean 'int4'?"),
        ("{where: {op: Linear}, precision: 4}", "precision: expected a name"),
        ("3", "constraints: expected a list"),
    ],
)
def test_a_bad_constraint_names_its_line(tmp_path: Path, constraint: str, message: str) -> None:
    text = refused(tmp_path, CONSTRAINT + constraint)
    assert message in text
    assert text.startswith("chip.yaml:")


def test_what_is_no_capability_is_refused(tmp_path: Path) -> None:
    capability = load_capability("pytorch_cpu")
    assert load_capability(capability) is capability
    with pytest.raises(CapabilityError, match=r"did you mean 'pytorch_cpu'\?"):
        load_capability("pytorch_cpuu")
    with pytest.raises(CapabilityError, match="not int"):
        load_capability(3)  # type: ignore[arg-type]
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CapabilityError, match="cannot be read"):
        load_capability(binary)
