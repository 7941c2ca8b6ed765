"""Saving: special files, modes, symbolic links, the leftovers of killed processes, threads."""

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import subbyte
from subbyte import CheckpointError
from subbyte.export.partial_file import replacing

MODEL = subbyte.quantize(nn.Sequential(nn.Linear(32, 32)), "w4:g16")


def save(path: Path) -> None:
    subbyte.save(MODEL, path)


def export(path: Path) -> None:
    subbyte.export_checkpoint(MODEL, path, format="compressed-tensors")


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def special(tmp_path: Path) -> Iterator[dict[str, Path]]:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        (tmp_path / "link").symlink_to("fifo")
        # A terminal of our own: no file can be created beside it, so that a save that goes wrong replaces no device.
        ends = os.openpty()
        yield {name: tmp_path / name for name in ("fifo", "socket", "link")} | {"device": Path(os.ttyname(ends[1]))}
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("name", ["fifo", "socket", "link", "device"])
def test_save_and_load_refuse_a_special_file(special: dict[str, Path], name: str) -> None:
    before = os.stat(special[name])
    kind = name if name in ("socket", "device") else "FIFO"
    message = rf"{special[name]} is a {kind}; a checkpoint is a regular file; name one$"
    with pytest.raises(CheckpointError, match=message):
        save(special[name])
    with pytest.raises(CheckpointError, match=message):
        subbyte.load(special[name], nn.Sequential(nn.Linear(32, 32)))
    with pytest.raises(CheckpointError, match="exists already"):
        export(special[name])
    assert os.stat(special[name]) == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_save_keeps_the_mode_of_an_existing_file(tmp_path: Path, mode: int) -> None:
    path, link = tmp_path / "model.safetensors", tmp_path / "link"
    path.write_text("")
    path.chmod(mode)
    link.symlink_to(path)
    for target in (path, link):
        save(target)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert link.is_symlink()


@pytest.mark.parametrize(("write", "rights"), [(save, 0o666), (export, 0o777)])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_gets_what_the_umask_allows(
    tmp_path: Path, write: Callable[[Path], None], rights: int, umask: int
) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == rights & ~umask
    for file in (tmp_path / "new").glob("*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_save_never_sets_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(mask: int) -> int:
        raise AssertionError("the umask is that of all threads")

    monkeypatch.setattr(os, "umask", refuse)
    save(tmp_path / "model.safetensors")
    export(tmp_path / "folder")


def test_replacing_keeps_a_partial_file_private(tmp_path: Path) -> None:
    with replacing(tmp_path / "model.safetensors") as partial:
        assert stat.S_IMODE(partial.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("write", [save, export])
def test_the_next_save_removes_what_a_killed_process_left(
    tmp_path: Path, write: Callable[[Path], None], ended: int
) -> None:
    with replacing(tmp_path / "any") as partial:
        own = partial.parent.name
    host = own.split("-")[1:-2]

    def leftover(process: int, *, of: list[str] = host) -> Path:
        return tmp_path / f".subbyte-{'-'.join(of)}-{process}-00ff.partial"

    kept = [leftover(os.getpid()), leftover(os.getppid()), leftover(1), leftover(ended, of=["elsewhere"])]
    kept += [tmp_path / ".subbyte-abc.partial", tmp_path / f"my-{ended}-00ff.partial"]
    for path in [leftover(ended), *kept]:
        path.mkdir()
        (path / "new").write_text("partial")
    write(tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"any", "new", *(path.name for path in kept)}


KILLED = """
import os, sys
from pathlib import Path
from subbyte.export.partial_file import replacing
with replacing(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_a_killed_save_leaves_one_partial_file_until_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "model.safetensors"], check=False, timeout=120)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    save(tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_threads_save_to_one_folder_at_a_time(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write(name: str) -> None:
        try:
            save(tmp_path / name)
        except BaseException as error:  # shown by the main thread
            failed.append(error)

    threads = [threading.Thread(target=write, args=(f"{index % 3}",)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
    x = torch.ones(1, 32)
    assert torch.equal(subbyte.load(tmp_path / "0", nn.Sequential(nn.Linear(32, 32)))(x), MODEL(x))
