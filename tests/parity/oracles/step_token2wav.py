"""Step-Audio 2's token2wav: small random weights in its layout, and what it makes of codes.

Without inputs it makes the folder `token2wav`. With `prompt` (n,), `mel` (2 n, n_mels), `speaker`,
`tokens<n>` (m,), `flow_noise` (n_mels, T), `noise` and `phases` of the vocoder: `mel<n>`, frames of
a chunk of 12 codes and chunks of 25 that remember those before, and `pcm<n>` of them. Of the prompt
`n_prompt<n>` codes are taken, if that is given.

Of what is remembered the prompt and the last `n_last` frames are kept, as `Token2wav.stream` means
to. (What it keeps is something else, since new keys stand before old ones there: the newest of as
many frames as the prompt has, and the end of the prompt; and of the encoder's first layers the
beginning. Its noise, too, is the same for each chunk from then on; here it goes on.)
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from step_dit import DiT, draw
from stepaudio2.cosyvoice2.flow.flow import CausalMaskedDiffWithXvec
from stepaudio2.cosyvoice2.flow.flow_matching import CausalConditionalCFM
from stepaudio2.cosyvoice2.transformer.upsample_encoder_v2 import UpsampleConformerEncoderV2
from stepaudio2.flashcosyvoice.modules.hifigan import ConvRNNF0Predictor, HiFTGenerator

N_MELS, SIZE, N_BLOCKS, N_UP_BLOCKS, SILENCE, AHEAD = 16, 32, 2, 2, 4218, 3
FIRST, CHUNK = 12, 25
ENCODER = {
    "input_size": SIZE,
    "output_size": SIZE,
    "input_layer": "linear",
    "pre_lookahead_len": AHEAD,
    "num_blocks": N_BLOCKS,
    "num_up_blocks": N_UP_BLOCKS,
    "up_stride": 2,
    "up_scale_factor": 2,
    "attention_heads": 4,
    "pos_enc_layer_type": "rel_pos_espnet",
    "selfattention_layer_type": "rel_selfattn",
    "key_bias": True,
    "linear_units": 48,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "normalize_before": True,
}
ESTIMATOR = {
    "in_channels": 4 * N_MELS,
    "out_channels": N_MELS,
    "mlp_ratio": 4.0,
    "depth": 2,
    "num_heads": 2,
    "head_dim": 8,
    "hidden_size": SIZE,
}
FLOW = {
    "input_size": SIZE,
    "output_size": N_MELS,
    "spk_embed_dim": 192,
    "output_type": "mel",
    "vocab_size": 6561,
}
N_STEPS = 10


def make_flow() -> CausalMaskedDiffWithXvec:
    """Codes to mel frames, every weight drawn."""
    encoder = UpsampleConformerEncoderV2(**ENCODER)
    decoder = CausalConditionalCFM(DiT(**ESTIMATOR), inference_cfg_rate=0.7)
    model = CausalMaskedDiffWithXvec(**FLOW, encoder=encoder, decoder=decoder).eval()
    torch.manual_seed(23)
    draw(model)
    # The published sizes are written into them.
    depth, heads, channels = (ESTIMATOR[key] for key in ("depth", "num_heads", "head_dim"))
    n_most = 1200
    estimator = model.decoder.estimator
    estimator.att_cache_buffer = torch.zeros(depth, 2, heads, n_most, 2 * channels)
    estimator.cnn_cache_buffer = torch.zeros(depth, 2, 2 * SIZE, 2)
    decoder.att_cache_buffer = torch.zeros(N_STEPS, depth, 2, heads, n_most, 2 * channels)
    decoder.cnn_cache_buffer = torch.zeros(N_STEPS, depth, 2, 2 * SIZE, 2)
    return model


def make_hift() -> HiFTGenerator:
    """A vocoder whose pitch wanders between no voice and some 300 Hz."""
    torch.manual_seed(5)
    predictor = ConvRNNF0Predictor(in_channels=N_MELS, cond_channels=16)
    model = HiFTGenerator(in_channels=N_MELS, base_channels=32, f0_predictor=predictor).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("alpha"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith("original0"):
                tensor.fill_(1.0) if name.startswith("conv_post") else tensor.uniform_(0.4, 0.8)
            elif name.startswith("m_source"):
                tensor.normal_()
            elif name.startswith("source_downs"):
                tensor.normal_(std=0.05)
        model.f0_predictor.classifier.weight.normal_(std=600.0)
        model.f0_predictor.classifier.bias.fill_(20.0)
    return model


def as_yaml(values: dict, indent: int) -> str:
    """Lines of a mapping."""
    return "".join(f"{' ' * indent}{key}: {value!s}\n" for key, value in values.items())


def make(folder: Path) -> None:
    """The folder as it is published, but for what hears a voice."""
    place = folder / "token2wav"
    place.mkdir()
    torch.save(make_flow().state_dict(), place / "flow.pt")
    torch.save(
        {f"generator.{k}": v for k, v in make_hift().state_dict().items()}, place / "hift.pt"
    )
    (place / "flow.yaml").write_text(
        "flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec\n"
        + as_yaml(FLOW, 2)
        + "  encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2\n"
        + as_yaml(ENCODER, 4)
        + "  decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM\n"
        + "    inference_cfg_rate: 0.7\n"
        + "    estimator: !new:cosyvoice2.flow.decoder_dit.DiT\n"
        + as_yaml(ESTIMATOR, 6)
    )


class Streamed:
    """One stream of codes.

    Args:
        inputs: see above.
        n_prompt: codes of the prompt.
    """

    def __init__(self, inputs: dict[str, torch.Tensor], n_prompt: int) -> None:
        self.flow = make_flow()
        self.noise, self.n_last = inputs["flow_noise"], int(inputs["n_last"])
        self.prompt, self.n_prompt, self.time = inputs["prompt"][:n_prompt], 2 * n_prompt, 0
        self.mel = inputs["mel"][: self.n_prompt].unsqueeze(0)
        self.speaker = inputs["speaker"].unsqueeze(0)

    def run(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mel frames `(n_mels, 2 m)`."""
        padded = torch.cat([self.prompt, torch.full((AHEAD,), SILENCE)])
        self._draw(0, self.n_prompt)
        cache = self.flow.setup_cache(
            padded.unsqueeze(0), self.mel, self.speaker, n_timesteps=N_STEPS
        )
        self.time, given = self.n_prompt, []
        self._keep(cache)
        first, size = 0, FIRST
        while first < len(tokens):
            part = tokens[first : first + size + AHEAD]
            is_last = len(part) <= size
            assert is_last or len(part) == size + AHEAD, "the reference has no such chunk"
            self._draw(cache["estimator_att_cache"].shape[4], 2 * CHUNK)
            mel, cache = self.flow.inference_chunk(
                token=part.unsqueeze(0),
                spk=self.speaker,
                cache=cache,
                last_chunk=is_last,
                n_timesteps=N_STEPS,
            )
            self.time += mel.shape[2]
            given.append(mel[0].clone())
            cache = self._trimmed(cache)
            first, size = first + size, CHUNK
        return torch.cat(given, dim=1)

    def _draw(self, offset: int, n: int) -> None:
        """Noise goes on by time, wherever the reference looks for it."""
        held = torch.zeros(1, N_MELS, offset + n)
        held[0, :, offset:] = self.noise[:, self.time : self.time + n]
        self.flow.decoder.rand_noise = held

    def _keep(self, cache: dict[str, torch.Tensor]) -> None:
        """The prompt's part of what is remembered; views of buffers are copied."""
        for name in ("estimator_att_cache", "estimator_cnn_cache"):
            cache[name] = cache[name].clone()
        self.prompt_att = cache["estimator_att_cache"]
        encoder = cache["conformer_att_cache"]
        self.prompt_first = encoder[:N_BLOCKS, :, :, : self.n_prompt // 2]
        self.prompt_second = encoder[N_BLOCKS:]

    def _trimmed(self, cache: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        att = cache["estimator_att_cache"].clone()
        # New ones stand first, those of the prompt last.
        recent = att[:, :, :, :, : att.shape[4] - self.n_prompt][:, :, :, :, : self.n_last]
        cache["estimator_att_cache"] = torch.cat([recent, self.prompt_att], dim=4)
        cache["estimator_cnn_cache"] = cache["estimator_cnn_cache"].clone()
        encoder = cache["conformer_att_cache"]
        half = self.n_prompt // 2
        first = encoder[:N_BLOCKS, :, :, half : encoder.shape[3] // 2][:, :, :, -self.n_last // 2 :]
        second = encoder[N_BLOCKS:, :, :, self.n_prompt :][:, :, :, -self.n_last :]
        both = torch.cat([self.prompt_first, first], dim=3).repeat(1, 1, 1, 2, 1)
        cache["conformer_att_cache"] = torch.cat(
            [both, torch.cat([self.prompt_second, second], dim=3)]
        )
        return cache


def spoken(mel: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """PCM of mel frames `(n_mels, n)`, in float64, with noise and first phases as given."""
    import torch as library

    model = make_hift().double()
    model.stft_window = model.stft_window.double()
    noise, phases = inputs["noise"].double(), inputs["phases"].double()

    def randn_like(x: torch.Tensor) -> torch.Tensor:
        # The noise that is not used has one channel.
        if x.shape[2] != len(phases):
            return torch.zeros_like(x)
        return noise[torch.arange(x.shape[1]) % len(noise)].expand_as(x)

    library.randn_like = randn_like
    library.rand = lambda *shape, device: phases.expand(*shape).clone()
    library.FloatTensor = lambda values: torch.tensor(values, dtype=torch.float64)
    return model(mel.double().unsqueeze(0))[0][0].float()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if inputs:
        streams = {name.removeprefix("tokens") for name in inputs if name.startswith("tokens")}
        for name in streams:
            n_prompt = inputs.get(f"n_prompt{name}", torch.tensor(len(inputs["prompt"])))
            stream = Streamed(inputs, int(n_prompt))
            outputs[f"mel{name}"] = stream.run(inputs[f"tokens{name}"])
        spoken_by = {f"pcm{name}": spoken(outputs[f"mel{name}"], inputs) for name in streams}
        outputs |= spoken_by
    else:
        make(folder)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
