"""`silentcipher` 1.0.5: a small random checkpoint in its layout; signals marked, messages read.

The package leaves its batch norms in training, which makes them depend on the whole of a signal.
They are put to rest here, and what the package would have given is told beside it.
"""

import contextlib
import io
import sys
from argparse import Namespace
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file
from watermark_stubs import stub_watermark_libraries

stub_watermark_libraries()
from silentcipher.server import Model  # noqa: E402

HPARAMS = {
    "model_type": "44.1k",
    "SR": 44_100,
    "N_FFT": 256,
    "HOP_LENGTH": 128,
    "message_band_size": 64,
    "message_dim": 5,
    "message_len": 21,
    "message_sdr": 47,
    "n_messages": 1,
    "enc_n_layers": 3,
    "dec_c_n_layers": 4,
    "ensure_negative_message": True,
    "ensure_constrained_message": False,
    "frame_level_normalization": False,
    "utterance_level_normalization": True,
    "no_normalization": False,
}
SDR_DB = 36


class Made(Model):
    """Random weights in place of loaded ones."""

    def load_models(self, ckpt_dir: str) -> None:
        self.nets = (self.enc_c, self.dec_c, *self.dec_m)
        with torch.no_grad():
            for net in self.nets:
                for name, tensor in net.named_parameters():
                    if name.endswith("bias"):
                        tensor.normal_(std=0.2)
                for layer in net.modules():
                    if isinstance(layer, torch.nn.BatchNorm2d):
                        layer.momentum = None  # Plain averages: one pass is enough.


def main(folder: Path) -> None:
    inputs = load_file(folder / "inputs.safetensors")
    message = inputs.pop("message").tolist()
    torch.manual_seed(3)
    model = Made(Namespace(**HPARAMS, load_ckpt=""))
    outputs = {}
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        # As training would: averages of what its layers see.
        marked, _ = model.encode_wav(
            inputs["long"].numpy(), 44_100, message, SDR_DB, calc_sdr=False
        )
        model.decode_wav(marked, 44_100, phase_shift_decoding=False)
        kept = [{key: one.clone() for key, one in net.state_dict().items()} for net in model.nets]
        for name, signal in inputs.items():
            for mode in (True, False):
                for net, weights in zip(model.nets, kept, strict=True):
                    net.load_state_dict(weights)
                    net.train(mode)
                y, _ = model.encode_wav(signal.numpy(), 44_100, message, SDR_DB, calc_sdr=False)
                outputs[f"{name}.{'training' if mode else 'resting'}"] = torch.from_numpy(y)
        carrier, _ = model.stft.transform(outputs["long.resting"][None])
        outputs["logits"] = model.dec_m[0](carrier[:, None])[0, 0].T
    place = folder / "cipher"
    place.mkdir()
    (place / "hparams.yaml").write_text(yaml.safe_dump(HPARAMS))
    for name, weights in zip(("enc_c", "dec_c", "dec_m_0"), kept, strict=True):
        # A part of the published ones was saved by several GPUs.
        prefix = "module." if name == "dec_c" else ""
        held = {f"{prefix}{key}": tensor for key, tensor in weights.items()}
        torch.save(held, place / f"{name}.ckpt")
    save_file(
        {key: one.contiguous() for key, one in outputs.items()}, folder / "outputs.safetensors"
    )


main(Path(sys.argv[1]))
