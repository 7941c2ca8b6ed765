"""What a user asks of quantization-aware training, in the words of Intel Neural Compressor."""

from subbyte.config.post_training import Approach, PostTrainingQuantConfig


class QuantizationAwareTrainingConfig(PostTrainingQuantConfig):
    """A PostTrainingQuantConfig whose ops are in the mode `quant_aware`, as a capability lists it for training.

    The fields, above all `op_type_dict` and `op_name_dict`, are read alike. What a capability does not list under
    `quant_aware` is as under `static`.
    """

    approach: Approach = "quant_aware"
