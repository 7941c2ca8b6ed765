"""Which formats there are."""

from subbyte.errors import CheckpointError, listing, nearest
from subbyte.export.formats.awq import Awq
from subbyte.export.formats.compressed_tensors import CompressedTensors
from subbyte.export.formats.form import Reader, Writer
from subbyte.export.formats.gguf import Gguf
from subbyte.export.formats.gptq import Gptq

WRITERS: dict[str, Writer] = {
    "compressed-tensors": CompressedTensors(),
    "gptq": Gptq("gptq"),
    "gptq_v2": Gptq("gptq_v2"),
    "gguf": Gguf(),
}
READERS: tuple[Reader, ...] = (CompressedTensors(), Gptq("gptq"), Gptq("gptq_v2"), Awq())


def writer(name: str) -> Writer:
    """The format of a name.

    Raises:
        CheckpointError: there is none, with the nearest spelling.
    """
    if not isinstance(name, str) or name not in WRITERS:
        raise CheckpointError(f"format {name!r} is unknown{nearest(str(name), WRITERS)} (known: {listing(WRITERS)})")
    return WRITERS[name]
