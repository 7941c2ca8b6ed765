"""What a user asks of quantization-aware training, in the words of Intel Neural Compressor."""

from subbyte.config.post_training import Approach, PostTrainingQuantConfig
from subbyte.config.request import Request


class QuantizationAwareTrainingConfig(PostTrainingQuantConfig):
    """A PostTrainingQuantConfig whose ops are in the mode `quant_aware`, as a capability lists it for training.

    The fields, above all `op_type_dict` and `op_name_dict`, are read alike. What a capability does not list under
    `quant_aware` is as under `static`.
    """

    approach: Approach = "quant_aware"


def for_training(request: Request) -> Request:
    """A static request as one of ops that are trained."""
    if not isinstance(request, PostTrainingQuantConfig) or request.approach != "static":
        return request
    given = {name: getattr(request, name) for name in request.model_fields_set if name != "approach"}
    return QuantizationAwareTrainingConfig.model_construct(**given)
