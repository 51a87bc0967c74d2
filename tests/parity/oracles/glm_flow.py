"""CosyVoice's first flow and its vocoder: small random weights in their layout, and mel frames.

The encoder sees tokens by blocks (`static_chunk_size`, which makes the mask of GLM-4-Voice's
`create_grid_mask`), the regulator repeats rows (`nearest`, as GLM-4-Voice has it).
"""

import itertools
import math
import sys
from pathlib import Path

import torch
from cosyvoice_stubs import stub_cosyvoice_libraries
from safetensors.torch import load_file, save_file

stub_cosyvoice_libraries()
import hift_vocoder  # noqa: E402
from cosyvoice.flow.decoder import ConditionalDecoder  # noqa: E402
from cosyvoice.flow.flow import MaskedDiffWithXvec  # noqa: E402
from cosyvoice.flow.flow_matching import ConditionalCFM  # noqa: E402
from cosyvoice.flow.length_regulator import InterpolateRegulator  # noqa: E402
from cosyvoice.transformer.encoder import ConformerEncoder  # noqa: E402
from flow_decoder import N_MELS, SETTINGS  # noqa: E402

N_TOKENS, SIZE, SPEAKER, BLOCK = 64, 24, 12, 10
YAML = f"""
__set_seed1: !apply:random.seed [1986]
sample_rate: 22050
spk_embed_dim: {SPEAKER}
flow: !new:cosyvoice.flow.flow.MaskedDiffWithXvec
    input_size: {SIZE}
    output_size: {N_MELS}
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: {N_TOKENS}
    input_frame_rate: 12.5
    only_mask_loss: True
    encoder: !new:cosyvoice.transformer.encoder.BlockConformerEncoder
        output_size: {SIZE}
        attention_heads: 2
        linear_units: 32
        num_blocks: 2
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'block_rel_selfattn'
        block_size: {BLOCK}
        input_size: {SIZE}
        use_cnn_module: False
        macaron_style: False
    length_regulator: !new:cosyvoice.flow.length_regulator.InterpolateRegulator
        channels: {N_MELS}
        sampling_ratios: [1, 1, 1, 1]
    decoder: !new:cosyvoice.flow.flow_matching.ConditionalCFM
        in_channels: 240
        n_spks: 1
        spk_emb_dim: {N_MELS}
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: 'euler'
                t_scheduler: 'cosine'
                training_cfg_rate: 0.2
                inference_cfg_rate: 0.7
                reg_loss_type: 'l1'
        estimator: !new:cosyvoice.flow.decoder.ConditionalDecoder
            in_channels: {4 * N_MELS}
            out_channels: {N_MELS}
            channels: [16, 16]
            dropout: 0
            attention_head_dim: 8
            n_blocks: 1
            num_mid_blocks: 2
            num_heads: 2
            act_fn: 'gelu'
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: {N_MELS}
    base_channels: 32
    nb_harmonics: 8
    sampling_rate: !ref <sample_rate>
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 8]
    upsample_kernel_sizes: [16, 16]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: {N_MELS}
        cond_channels: 16
"""


def make() -> MaskedDiffWithXvec:
    """The flow, every weight drawn."""
    encoder = ConformerEncoder(
        input_size=SIZE,
        output_size=SIZE,
        attention_heads=2,
        linear_units=32,
        num_blocks=2,
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        static_chunk_size=BLOCK,
        macaron_style=False,
        use_cnn_module=False,
    )
    estimator = ConditionalDecoder(
        in_channels=4 * N_MELS,
        out_channels=N_MELS,
        channels=[16, 16],
        dropout=0.0,
        attention_head_dim=8,
        n_blocks=1,
        num_mid_blocks=2,
        num_heads=2,
        act_fn="gelu",
    )
    model = MaskedDiffWithXvec(
        input_size=SIZE,
        output_size=N_MELS,
        spk_embed_dim=SPEAKER,
        vocab_size=N_TOKENS,
        input_frame_rate=12.5,
        encoder=encoder,
        length_regulator=InterpolateRegulator(channels=N_MELS, sampling_ratios=[1] * 4),
        decoder=ConditionalCFM(
            in_channels=3 * N_MELS,
            cfm_params=SETTINGS,
            n_spks=1,
            spk_emb_dim=N_MELS,
            estimator=estimator,
        ),
    ).eval()
    torch.manual_seed(9)
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
    for layer in encoder.encoders:
        # That of GLM-4-Voice.
        layer.norm_ff.eps = layer.norm_mha.eps = 1e-5
    return model


@torch.no_grad()
def solve(
    model: MaskedDiffWithXvec,
    tokens: torch.Tensor,
    source: torch.Tensor,
    known: torch.Tensor,
    noise: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Rows of tokens `(n,)`, what the flow follows from, and its mel frames, of one utterance.

    `source` `(m,)` names the token of each frame; where it is that of the reference's own
    interpolation, this is `MaskedDiffWithXvec.inference` of GLM-4-Voice.
    """
    rows, _ = model.encoder(model.input_embedding(tokens[None]), torch.tensor([len(tokens)]))
    repeated = model.encoder_proj(rows)[:, source]
    mu = model.length_regulator.model(repeated.transpose(1, 2))
    embedding = torch.nn.functional.normalize(torch.zeros(1, SPEAKER), dim=1)
    torch.randn_like = lambda x: noise[None, :, : x.shape[2]]
    mel, _ = model.decoder(
        mu=mu.clone(),
        mask=torch.ones(1, 1, len(source)),
        n_timesteps=10,
        spks=model.spk_embed_affine_layer(embedding),
        cond=known[None],
    )
    return {"rows": rows[0], "mu": mu[0], "mel": mel[0]}


def stream(
    model: MaskedDiffWithXvec, tokens: torch.Tensor, ends: list[int], noise: torch.Tensor
) -> torch.Tensor:
    """Mel frames of a stream whose calls end at `ends`: each runs all tokens so far.

    The frames before the last five tokens of the call before are known, those of these tokens are
    solved again and faded in.
    """
    mel = torch.zeros(N_MELS, 0)
    for before, end in itertools.pairwise(ends):
        n, n_solved = frames_of(end), frames_of(before)
        n_known = frames_of(max(before - 5, 0))
        known = torch.zeros(N_MELS, n)
        known[:, :n_known] = mel[:, :n_known]
        source = torch.arange(n) * 64 // 441
        new = solve(model, tokens[:end], source, known, noise)["mel"]
        share = (torch.arange(n_known, n_solved) - n_known + 0.5) / max(n_solved - n_known, 1)
        faded = mel[:, n_known:] * (1 - share) + new[:, n_known:n_solved] * share
        mel = torch.cat([mel[:, :n_known], faded, new[:, n_solved:]], dim=1)
    return mel


def frames_of(n_tokens: int) -> int:
    """Mel frames of 256 samples that begin within so many tokens of 1764."""
    return math.ceil(n_tokens * 441 / 64)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make()
    outputs = {}
    if inputs:
        for n in range(len([name for name in inputs if name.startswith("tokens")])):
            names = ("tokens", "source", "known", "noise")
            found = solve(model, *(inputs[f"{name}{n}"] for name in names))
            outputs |= {f"{name}{n}": tensor for name, tensor in found.items()}
        if "ends" in inputs:
            ends = inputs["ends"].tolist()
            outputs["stream"] = stream(model, inputs["all"], ends, inputs["noise"])
    else:
        torch.save(model.state_dict(), folder / "flow.pt")
        torch.save(hift_vocoder.make(22_050, N_MELS).state_dict(), folder / "hift.pt")
        (folder / "config.yaml").write_text(YAML)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
