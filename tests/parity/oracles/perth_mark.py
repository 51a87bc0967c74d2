"""`resemble-perth` 1.0.1 with the weights that come in its package: signals marked, marks found."""

import contextlib
import io
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from watermark_stubs import stub_watermark_libraries

stub_watermark_libraries()
import perth  # noqa: E402
from perth.perth_net.perth_net_implicit.perth_watermarker import (  # noqa: E402
    PerthImplicitWatermarker,
)

PLACE = Path(perth.__file__).parent / "perth_net" / "pretrained"
RATE_HZ = 32_000


def main(folder: Path) -> None:
    """Signals at 32 kHz: those under `found.` are looked into, others are marked first."""
    inputs = load_file(folder / "inputs.safetensors")
    with contextlib.redirect_stdout(io.StringIO()):
        marker = PerthImplicitWatermarker(models_dir=PLACE)
    outputs = {}
    with torch.no_grad():
        for name, signal in inputs.items():
            heard = signal.numpy()
            if not name.startswith("found."):
                heard = marker.apply_watermark(heard, sample_rate=RATE_HZ)
                outputs[name] = torch.from_numpy(heard)
            found = marker.get_watermark(heard, sample_rate=RATE_HZ, round=False)
            outputs[f"{name}.found"] = torch.from_numpy(found.reshape(1))
    save_file(
        {key: one.contiguous() for key, one in outputs.items()}, folder / "outputs.safetensors"
    )


main(Path(sys.argv[1]))
