"""CosyVoice's flow as a whole: small random weights in its layout, and its mel frames of tokens."""

import sys
from pathlib import Path

import conformer_encoder
import flow_decoder
import torch
from cosyvoice.flow.flow import CausalMaskedDiffWithXvec
from safetensors.torch import load_file, save_file

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    decoder = flow_decoder.make()
    encoder = conformer_encoder.make()
    torch.manual_seed(1)
    model = CausalMaskedDiffWithXvec(
        input_size=conformer_encoder.SIZE,
        spk_embed_dim=16,
        vocab_size=50,
        encoder=encoder,
        decoder=decoder,
    ).eval()
    torch.save(model.state_dict(), folder / "flow.pt")
    prompt, tokens = inputs["prompt"], inputs["tokens"]
    given = {
        "prompt_token": prompt,
        "prompt_token_len": torch.tensor([prompt.shape[1]]),
        "prompt_feat": inputs["mel"],
        "prompt_feat_len": torch.tensor([inputs["mel"].shape[1]]),
        "embedding": inputs["embedding"],
    }
    outputs = {}
    for name, n_tokens, is_chunked, is_final in (
        ("chunked", 17, True, True),
        ("whole", 17, False, True),
        ("early", 13, True, False),
    ):
        with torch.no_grad():
            mel, _ = model.inference(
                token=tokens[:, :n_tokens],
                token_len=torch.tensor([n_tokens]),
                streaming=is_chunked,
                finalize=is_final,
                **given,
            )
        outputs[name] = mel[0]
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
