"""CosyVoice's upsampling conformer: small random weights in its layout, and its rows of tokens."""

import sys
from pathlib import Path

import torch
from cosyvoice_stubs import stub_cosyvoice_libraries
from safetensors.torch import load_file, save_file

stub_cosyvoice_libraries()
from cosyvoice.transformer.upsample_encoder import UpsampleConformerEncoder  # noqa: E402

SIZE = 512
"""The class knows no other."""


def make() -> UpsampleConformerEncoder:
    """The encoder, every weight drawn."""
    torch.manual_seed(3)
    model = UpsampleConformerEncoder(
        input_size=SIZE,
        output_size=SIZE,
        attention_heads=4,
        linear_units=64,
        num_blocks=2,
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        static_chunk_size=5,
        macaron_style=False,
        use_cnn_module=False,
    ).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(std=0.1)
            elif "pos_bias" in name:
                tensor.normal_(std=0.5)
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(std=1.0 / tensor[0].numel() ** 0.5)
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make()
    torch.save(model.state_dict(), folder / "encoder.pt")
    outputs = {}
    for row, n_tokens in enumerate(inputs["n_valid"].tolist()):
        tokens = inputs["tokens"][row : row + 1, :n_tokens]
        for name, is_chunked in (("chunked", True), ("whole", False)):
            with torch.no_grad():
                rows, _ = model(tokens, torch.tensor([n_tokens]), streaming=is_chunked)
            outputs[f"{name}{row}"] = rows[0]
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
