"""CosyVoice 2's flow and vocoder: small random weights, mel frames as it streams them, and PCM.

Its own loop: everything before a hop is computed again with it, and only the last hop's frames are
taken; the rest of an utterance too, but (unlike there) in the mode of the hops before.
"""

import sys
from pathlib import Path

import conformer_encoder
import flow_decoder
import hift_vocoder
import torch
from cosyvoice.flow.flow import CausalMaskedDiffWithXvec
from safetensors.torch import load_file, save_file

CHUNK, AHEAD, FACTOR = 5, 3, 2


def stream(model: CausalMaskedDiffWithXvec, given: dict, tokens: torch.Tensor) -> torch.Tensor:
    """Mel frames `(1, n_mels, 2 * n)`, hop by hop."""
    n_done, n_tokens, mels = 0, tokens.shape[1], []
    hop = -given["prompt_token"].shape[1] % CHUNK or CHUNK
    while n_done < n_tokens:
        is_final = n_done + hop + AHEAD > n_tokens
        seen = tokens if is_final else tokens[:, : n_done + hop + AHEAD]
        mel, _ = model.inference(
            token=seen,
            token_len=torch.tensor([seen.shape[1]]),
            streaming=True,
            finalize=is_final,
            **given,
        )
        mels.append(mel[:, :, FACTOR * n_done :])
        n_done = n_tokens if is_final else n_done + hop
        hop = CHUNK
    return torch.cat(mels, dim=2)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    decoder = flow_decoder.make()
    encoder = conformer_encoder.make()
    torch.manual_seed(1)
    flow = CausalMaskedDiffWithXvec(
        input_size=conformer_encoder.SIZE,
        spk_embed_dim=16,
        vocab_size=50,
        encoder=encoder,
        decoder=decoder,
    ).eval()
    torch.save(flow.state_dict(), folder / "flow.pt")
    hift = hift_vocoder.make(24_000, n_mels=80)
    torch.save(hift.state_dict(), folder / "hift.pt")
    outputs = {}
    for row, n_prompt in enumerate(inputs["n_prompt"].tolist()):
        given = {
            "prompt_token": inputs["prompt"][:, :n_prompt],
            "prompt_token_len": torch.tensor([n_prompt]),
            "prompt_feat": inputs["mel"][:, : FACTOR * n_prompt],
            "prompt_feat_len": torch.tensor([FACTOR * n_prompt]),
            "embedding": inputs["embedding"],
        }
        for n_tokens in inputs["lengths"].tolist():
            with torch.no_grad():
                mel = stream(flow, given, inputs["tokens"][:, :n_tokens])
            outputs[f"mel_{row}_{n_tokens}"] = mel[0]
    torch.set_default_dtype(torch.float64)
    hift_vocoder.patch(hift, inputs["noise"], inputs["phases"])
    for name, mel in list(outputs.items()):
        with torch.no_grad():
            pcm = hift.inference(mel.unsqueeze(0).double())[0]
        outputs[name.replace("mel", "pcm")] = pcm[0].float()
    torch.set_default_dtype(torch.float32)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
