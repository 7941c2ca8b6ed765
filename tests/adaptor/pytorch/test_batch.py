"""Batches of calibration data: how many samples of one are used."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure
from torch.utils.data import IterableDataset, TensorDataset

import subbyte
from subbyte import CalibrationError
from subbyte.adaptor.pytorch.batch import Batch, batches

X, MASK = torch.randn(4, 3), torch.ones(4)


@pytest.mark.parametrize(
    "batch", [X, (X, MASK), {"x": X, "mask": MASK}, ([X, {"deep": MASK}], 2.5, None), (X, torch.tensor(7))]
)
def test_a_batch_is_cut_to_its_first_samples(batch: Any) -> None:
    cut = Batch.of(batch).first(3)
    whole = Batch.of(batch)
    assert cut.samples == 3
    assert tree_structure((cut.args, cut.kwargs)) == tree_structure((whole.args, whole.kwargs))
    for ours, given in zip(*(tree_leaves((each.args, each.kwargs)) for each in (cut, whole)), strict=True):
        if isinstance(given, torch.Tensor) and given.ndim:
            assert torch.equal(ours, given[:3])
        else:
            assert ours is given


@pytest.mark.parametrize("batch", [(X, torch.randn(3, 3)), (X, torch.arange(3)[None]), (X, object()), ()])
def test_a_batch_whose_tensors_differ_in_length_stays_whole(batch: tuple[Any, ...]) -> None:
    assert Batch.of(batch).first(1) == Batch.of(batch)


def test_batches_stop_at_the_limit() -> None:
    stream = [X, X, X]
    assert [batch.samples for batch in batches(stream)] == [4, 4, 4]
    assert [batch.samples for batch in batches(stream, 5)] == [4, 1]
    assert [batch.samples for batch in batches(stream, 8)] == [4, 4]
    assert [batch.samples for batch in batches([X[:0], X], 3)] == [3]
    assert [batch.samples for batch in batches(X, 100)] == [4]


def test_a_dataset_is_to_be_wrapped_in_a_loader() -> None:
    dataset = TensorDataset(X, MASK)
    for run in (
        lambda: subbyte.quantize(nn.Linear(3, 2), "w4a8", dataset),
        lambda: subbyte.quantization.fit(nn.Linear(3, 2), {}, calib_dataloader=dataset),
    ):
        with pytest.raises(CalibrationError, match=r"not a TensorDataset, .* wrap it in a torch.utils.data.DataLoader"):
            run()


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([X, X])


def test_an_iterable_dataset_is_a_stream_of_batches() -> None:
    assert [batch.samples for batch in batches(Stream())] == [4, 4]


def test_a_label_that_forward_does_not_take() -> None:
    with pytest.raises(CalibrationError, match=r"positional arguments, here 2: .* or use subbyte.quantization.fit"):
        Batch.of((X, MASK)).run(nn.Linear(3, 2))
    for batch in (X[:, :2], (X[:, :2],), {}):
        with pytest.raises(CalibrationError, match="give batches as the model's forward takes them"):
            Batch.of(batch).run(nn.Linear(3, 2))
    with pytest.raises(CalibrationError, match="give batches as the model's forward takes them"):
        Batch.of((X, MASK[:, None, None])).run(nn.Bilinear(3, 2, 1))


def test_batch_run_names_the_arguments_when_a_dict_has_a_wrong_key() -> None:
    with pytest.raises(CalibrationError, match=r"'inputs'; did you mean 'input'\? \(its arguments: input\)"):
        Batch.of({"inputs": X}).run(nn.Linear(3, 2))
    with pytest.raises(CalibrationError, match=r"keyword arguments .*'inputs'; did you mean 'input'\?"):
        subbyte.quantize(nn.Linear(3, 2), "w4a8", [{"inputs": X}])


@pytest.mark.parametrize("run", [subbyte.quantize, subbyte.prepare, subbyte.prepare_qat])
def test_calls_refuse_a_tuple_of_tensors_as_data(run: Any) -> None:
    with pytest.raises(CalibrationError, match=r"tuple of 2 tensors of shapes \(4, 3\), \(4,\).*\[\(x, y\)\].*\[x\]"):
        run(nn.Linear(3, 2), "w4a8", (X, MASK))


def test_parts_of_one_tensor_are_batches() -> None:
    assert [batch.samples for batch in batches(torch.randn(10, 3).split(4))] == [4, 4, 2]
    tokens = torch.arange(40).reshape(4, 10)
    for other in ((X, X.clone()), (tokens[:, :-1], tokens[:, 1:]), (tokens[:, :5], tokens[:, 5:])):
        with pytest.raises(CalibrationError, match="tuple of 2 tensors"):
            list(batches(other))


def test_fit_refuses_a_tuple_of_tensors_as_data() -> None:
    with pytest.raises(CalibrationError, match=r"tuple of 2 tensors"):
        subbyte.quantization.fit(nn.Linear(3, 2), subbyte.PostTrainingQuantConfig(), (X, MASK))


@pytest.mark.parametrize("labels", [torch.tensor([1, 0, 2, 1]), torch.tensor([[1], [0]]), MASK])
def test_batches_refuse_labels_beside_inputs_in_a_list(labels: torch.Tensor) -> None:
    with pytest.raises(CalibrationError, match=r"calibration batch 1 is a .*\[\(x, y\)\].*\[x\]"):
        list(batches([X, labels]))


@pytest.mark.parametrize(
    "data",
    [[X, X[:2]], [X, X.half()], [X, torch.randn(4, 5)], [X, (MASK,)], [(X,), (MASK,)], [(X, MASK)], ((X,), (X,))],
)
def test_batches_take_batches_of_one_kind(data: Any) -> None:
    assert len(list(batches(data))) == len(data)
