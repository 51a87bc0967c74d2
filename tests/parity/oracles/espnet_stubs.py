"""Empty stand-ins for libraries that ESPnet imports and its codec and speech LM do not use."""

from stubs import stub_libraries

NAMES = (
    "humanfriendly",
    "joblib",
    "librosa",
    "liger_kernel",
    "liger_kernel.ops",
    "liger_kernel.ops.fused_linear_cross_entropy",
    "torch_complex",
    "torch_complex.tensor",
    "torchaudio",
)


def stub_espnet_libraries() -> None:
    """Call before the first import of `espnet2`."""
    stub_libraries(NAMES)
