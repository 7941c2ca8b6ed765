"""Capability files written to do harm: each is refused with a short message, and none of its data types stays."""

import os
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import subbyte
from subbyte import CapabilityError, ConfigError
from subbyte.capability import load_capability
from subbyte.config.request import as_request
from subbyte.dtypes import registered_dtypes

WEIGHT = "{dtype: [int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}"
VALID = (
    f"dtypes: {{hostile: {{values: [0, 1, 5]}}}}\ncapabilities:\n  int4: {{static: {{Linear: {{weight: {WEIGHT}}}}}}}\n"
)
BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
NESTED_BOMB = (
    "strict: [&a [x], "
    + ", ".join(f"&{b} [{'*' + ', *'.join(a * 9)}]" for a, b in zip("abcdef", "bcdefg", strict=True))
    + "]\n"
)
MERGES = f"a: &a {{{', '.join(f'k{i}: 1' for i in range(1000))}}}\nb:\n" + "- {<<: *a}\n" * 200
DEEP_ALIASES = "".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else 'x'}]\n" for i in range(400))


def refused(folder: Path, text: str) -> str:
    """The message of a refusal, which is bounded and leaves nothing behind."""
    (folder / "chip.yaml").write_text(text)
    before = registered_dtypes()
    with pytest.raises(CapabilityError) as raised:
        load_capability(folder / "chip.yaml")
    assert registered_dtypes() == before
    assert len(str(raised.value)) < 1000 + 3 * len(str(folder))
    return str(raised.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "chip.yaml:6: a file may hold 100,000 values"),
        (NESTED_BOMB, "chip.yaml:1: a file may hold 100,000 values"),
        (MERGES, "chip.yaml:1: a file may merge 100,000 keys"),
        (DEEP_ALIASES, "50 levels"),
        ("strict: " + "[" * 60 + "]" * 60 + "\n", "chip.yaml:1: a file may hold 100,000 values and 50 levels"),
        ("strict: !!int 1.5\n", "chip.yaml:1: '1.5' is no integer"),
        ("strict: !!int ''\n", "chip.yaml:1: '' is no integer"),
        ("strict: !!float x\n", "chip.yaml:1: 'x' is no number"),
        ("strict: !!bool x\n", "chip.yaml:1: 'x' is no boolean"),
        (f"strict: {'9' * 5000}\n", "is no integer"),
        (f"strict: 0x{'f' * 5000}\n", "chip.yaml:1: an integer must fit in 64 bits"),
        ("strict: !!timestamp x\n", "chip.yaml:1: a value of the YAML type 'timestamp'"),
        ("strict: 2020-01-01\n", "chip.yaml:1: a value of the YAML type 'timestamp'"),
        ("strict: !!binary '?'\n", "chip.yaml:1: a value of the YAML type 'binary'"),
        ("strict: !!set {a, b}\n", "chip.yaml:1: a value of the YAML type 'set'"),
        ("strict: !!omap [a: 1]\n", "chip.yaml:1: a value of the YAML type 'omap'"),
        ("strict: !!python/object/apply:os.abort []\n", "chip.yaml:1: a value of the YAML type 'python/object"),
        ("!!timestamp x: 3\n", "chip.yaml:1: a value of the YAML type 'timestamp'"),
        ("[1, 2]: 3\n", "chip.yaml:1: a key must be a name"),
        (f"strict: {'x' * 20_000}\n", "chip.yaml:1: a value may have 10,000 characters, got 20,000"),
        (f"{'x' * 900}: 1\n", "chip.yaml:1: a key may have 200 characters"),
        ('"\\e[2Jx": 1\n', r"none of them a control character, got '\x1b[2Jx'"),
        ('strict: "\\e[2Jx"\n', r"chip.yaml:1: strict: expected true or false, found '\x1b[2Jx'"),
        ('version: {name: "\\e[31mred"}\n', r"chip.yaml:1: version: name: expected a name of at most 200 characters"),
        (f"version: {{name: {'x' * 201}}}\n", "expected a name of at most 200 characters"),
        ("strict: \x1b[2J\n", "not readable as YAML"),
        ("strict: \0\n", "not readable as YAML"),
        ('strict: "\\UFFFFFFFF"\n', "chip.yaml: not readable as YAML: it has an escape"),
        ('strict: "\\U00110000"\n', "chip.yaml: not readable as YAML: it has an escape"),
        (f"%YAML 1.{'9' * 5000}\n---\n", "chip.yaml: not readable as YAML: it has an escape"),
        ("#" * 300_000 + "\n", "larger than 262,144 bytes"),
        (f"strict: *{'x' * 20_000}\n", "chip.yaml:1: not readable as YAML: found undefined alias"),
        (f"extends: {'x' * 5000}\n", "chip.yaml:1: extends: no capability file"),
        (f"extends: {'x' * 5000}.yaml\n", "chip.yaml:1: extends: no capability file"),
        ('extends: "a\\0.yaml"\n', "chip.yaml:1: extends: no capability file"),
        (f"fusions: [[{', '.join('x' * 100 for _ in range(900))}]]\n", "chip.yaml:1: unknown op type"),
        ("constraints: [{where: {name: '(' }, precision: int4}]\n", "chip.yaml:1: name '(': it is no regular"),
        ("constraints: [{where: {name: '(?R)'}, precision: int4}]\n", "chip.yaml:1: name '(?R)': it is no regular"),
        (f"constraints: [{{where: {{name: '{'(' * 900}'}}, precision: int4}}]\n", "it is no regular expression"),
        (f"constraints: [{{where: {{name: '{'x' * 2000}'}}, precision: int4}}]\n", "1,000 characters, got 2,000"),
        ("constraints: [{where: {name: '((a{1000}){1000}){1000}'}, precision: int4}]\n", "may be 100,000, got"),
    ],
)  # fmt: skip
def test_hostile_file_is_refused_with_a_short_message(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text + VALID)


def test_read_yaml_refuses_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "chip.yaml").write_bytes(b"# caf\xe9\n" + VALID.encode())
    with pytest.raises(CapabilityError, match=r"chip\.yaml:1: cannot be read \(not UTF-8\)"):
        load_capability(tmp_path / "chip.yaml")


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing", "too long"])
def test_read_yaml_refuses_what_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" * 5000 if kind == "too long" else "a")
    path = path.with_name(path.name + ".yaml")
    if kind == "fifo":
        os.mkfifo(path)
        assert stat.S_ISFIFO(path.stat().st_mode)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(CapabilityError, match="no capability file") as raised:
        load_capability(path)
    with pytest.raises(ConfigError, match="cannot be read") as of_request:
        as_request(str(path))
    assert max(len(str(raised.value)), len(str(of_request.value))) < 600 + len(str(tmp_path))
    assert "chip.yaml:1: extends: no capability file" in refused(tmp_path, f"extends: {path.name}\n" + VALID)


@pytest.mark.parametrize(
    "secret",
    [
        "root:x:0:0:secret\n- a: [\n", "secret\n", "- secret\n", "password: secret\n", "secret: 1\n",
        "secret: *secret\n", "a: 'secret\n", "%secret\n", "@secret", "<<: secret\n", "x: !secret y\n",
        "x: !!int secret\n", "secret: 1\nsecret: 2\n", "? [secret]\n: 1\n",
        '"secret\\e": 1\n', "!secret!a b\n", "&secret",
    ],
)  # fmt: skip
def test_a_file_that_is_no_capability_is_not_quoted_when_extended(tmp_path: Path, secret: str) -> None:
    (tmp_path / "base.yaml").write_text(secret)
    message = refused(tmp_path, "extends: base.yaml\n" + VALID)
    assert message.startswith("base.yaml:")
    assert "secret" not in message


def test_extends_takes_only_files_named_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(VALID)
    assert refused(tmp_path, "extends: passwd\n").startswith("chip.yaml:1: extends: no capability file 'passwd'")


def test_extends_is_relative_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chips").mkdir()
    (tmp_path / "base.yml").write_text(VALID)
    (tmp_path / "chips" / "chip.yaml").write_text("extends: ../base.yml\nversion: {name: mine}\n")
    monkeypatch.chdir("/")
    assert load_capability(tmp_path / "chips" / "chip.yaml").name == "mine"


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "((a{1,1000}){1,1000}){1,1000}b"])
def test_constraints_pattern_is_bounded_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr("subbyte.spec.patterns._BUDGET", 0.1)
    chip = tmp_path / "chip.yaml"
    chip.write_text(f"extends: pytorch_cpu\nconstraints:\n- {{where: {{name: '{pattern}'}}, precision: int8}}\n")
    model = nn.Sequential()
    model.add_module("a" * 90 + "c", nn.Linear(4, 4))
    with pytest.raises(CapabilityError, match=r"chip\.yaml:3: name .* takes longer than 0\.1 seconds"):
        subbyte.quantize(model, "w4a8", torch.randn(64, 4), capability=chip)
