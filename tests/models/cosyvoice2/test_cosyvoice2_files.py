"""CosyVoice 2: what a checkpoint must hold, and what is told of one that does not."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loadtest.bench.published_cosyvoice import YAML as PUBLISHED
from models.cosyvoice2.config import SPEECH, needs
from models.cosyvoice2.model import is_in, load, read_spec
from models.cosyvoice2.vocoder import vocoder_config
from models.errors import WeightError
from models.hub import WEIGHT_SUFFIXES
from models.hyperpyyaml import read_hyperpyyaml
from tests.models.cosyvoice2.tiny import YAML, make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cosyvoice2"))


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def test_the_facts_come_from_the_files(checkpoint):
    spec = read_spec(checkpoint)
    assert spec == load(checkpoint).spec
    assert is_in(checkpoint)
    assert spec.frame.samples_per_frame == 960
    assert spec.frame.frame_rate_hz == 25
    assert (spec.columns[0].ids, spec.columns[0].n_ids) == ((302, 302 + 6564), 6564)
    sampling = spec.phases[SPEECH].columns[0].sampling
    assert (sampling.top_p, sampling.top_k) == (0.8, 25)
    assert (sampling.redraw_window, sampling.redraw_count) == (10, 1)
    assert spec.streams_text({})
    assert not spec.streams_text({"reference_text": "so"})
    assert not spec.streams_text({"instructions": "slowly"})


def test_the_published_size_has_the_figures_of_the_docs(tmp_path):
    """`docs/models.md`: chunks, what is held back, and what a stream remembers."""
    (tmp_path / "cosyvoice2.yaml").write_text(PUBLISHED)
    config = vocoder_config(read_hyperpyyaml(tmp_path / "cosyvoice2.yaml"))
    codec = config.codec_spec()
    assert (codec.first_frames, codec.chunk_frames) == ((15, 40), (25, 50))
    assert codec.lookahead_frames == 9
    widths = {one.name: getattr(torch, one.dtype).itemsize for one in codec.state}
    n_bytes = {one.name: widths[one.name] * math.prod(one.shape) for one in codec.state}
    assert round(sum(n_bytes.values()) / 1e6) == 93
    assert round(n_bytes["flow_kept"] / 1e6) == 86


def test_of_the_hub_the_files_come_that_are_read(folder):
    wanted = needs(folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "cosyvoice2.yaml",
        *wanted.weights,
    }
    assert {Path(name).suffix for name in wanted.weights} <= WEIGHT_SUFFIXES
    assert [(part.folder, part.weights) for part in wanted.parts] == [("CosyVoice-BlankEN", ())]
    torch.save({}, folder / "spk2info.pt")
    assert needs(folder).weights == (*wanted.weights, "spk2info.pt")


def test_a_folder_without_the_file_is_another_s(tmp_path):
    assert not is_in(tmp_path)
    (tmp_path / "cosyvoice.yaml").write_text("llm: 3")
    assert not is_in(tmp_path)


@pytest.mark.parametrize(
    ("kind", "file", "shown"),
    [
        ("TransformerLM", "cosyvoice.yaml", "TransformerLM is CosyVoice 1"),
        ("TheNextLM", "cosyvoice3.yaml", "TheNextLM is another model"),
        ("CosyVoice3LM", "cosyvoice3.yaml", "CosyVoice3LM is CosyVoice 3"),
    ],
)
def test_others_of_the_house_are_refused_by_name(folder, kind, file, shown):
    (folder / "cosyvoice2.yaml").unlink()
    (folder / file).write_text(YAML.replace("Qwen2LM", kind))
    assert is_in(folder)
    with pytest.raises(WeightError, match=shown):
        read_spec(folder)


def test_an_early_copy_has_the_older_name_and_no_ratio(folder):
    (folder / "cosyvoice2.yaml").unlink()
    (folder / "cosyvoice.yaml").write_text(YAML.replace("    mix_ratio: [5, 15]\n", ""))
    assert load(folder).config.interleave.n_codes == 15


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("        win_size: 10\n", "", r"does not state llm\.sampling\.win_size"),
        ("ras_sampling", "nucleus_sampling", "nucleus_sampling"),
        ("mix_ratio: [5, 15]", "mix_ratio: [5]", "mix_ratio"),
        ("llm_input_size: 64", "llm_input_size: 65", "llm_input_size = 65, must be 64"),
        ("speech_token_size: 6561", "speech_token_size: 9", "speech_token_size = 9"),
        ("CausalMaskedDiffWithXvec", "CausalMaskedDiffWithDiT", "CausalMaskedDiffWithDiT"),
        ("CausalConditionalDecoder", "ConditionalDecoder", "class 'ConditionalDecoder'"),
        ("UpsampleConformerEncoder", "ConformerEncoder", "class 'ConformerEncoder'"),
        ("HiFTGenerator", "CausalHiFTGenerator", "class 'CausalHiFTGenerator'"),
        ("channels: [32]", "channels: [32, 32]", r"estimator\.channels"),
        ("    hop_size: 480\n", "    hop_size: 256\n", "upsample_rates and istft_params"),
        ("    win_size: 1920\n", "    win_size: 1024\n", "win_size = 1024"),
        ("'cosine'", "'linear'", "t_scheduler = 'linear'"),
        ("static_chunk_size: !ref <chunk_size> *", "static_chunk_size: !ref <ratio> *", "<ratio>"),
        ("static_chunk_size: !ref <chunk_size>\n", "static_chunk_size: 5\n", "static_chunk_size"),
        ("                inference_cfg_rate: 0.7\n", "", "inference_cfg_rate"),
        (
            "    resblock_dilation_sizes: [[1",
            "    resblock_dilation_sizes: [[x",
            "dilation_sizes.0",
        ),
        ("    num_mels: 80\n", "    num_mels: 40\n", r"flow\.output_size|output_size"),
        ("attention_heads: 4", "attention_heads: 0", r"encoder\.attention_heads = 0, must be 1 or"),
        ("num_heads: 2", "num_heads: -2", r"estimator\.num_heads = -2, must be 1 or more"),
        ("nb_harmonics: 8", "nb_harmonics: -1", r"hift\.nb_harmonics = -1, must be 1 or more"),
        ("inference_cfg_rate: 0.7", "inference_cfg_rate: .nan", r"inference_cfg_rate = nan"),
        ("\nchunk_size: 25", "\nchunk_size: 15", "chunks of 15 speech tokens .* must be 16 or"),
        ("pre_lookahead_len: 3", "pre_lookahead_len: 13", "looks 13 ahead .* must be 26 or more"),
        ("sizes: [16, 11, 7]", "sizes: [16, 11]", "upsample_kernel_sizes and .* different lengths"),
        (
            "    source_resblock_kernel_sizes: [7,",
            "    source_resblock_kernel_sizes: [",
            "of different",
        ),
        ("    resblock_kernel_sizes: [3,", "    resblock_kernel_sizes: [", "of different lengths"),
    ],
)
def test_what_is_absent_or_contradicts_is_named(folder, old, new, shown):
    assert old in YAML
    (folder / "cosyvoice2.yaml").write_text(YAML.replace(old, new))
    with pytest.raises(WeightError, match=shown):
        read_spec(folder)


def test_the_lm_s_own_config_is_read_too(folder):
    path = folder / "CosyVoice-BlankEN" / "config.json"
    values = json.loads(path.read_text())
    for key, value, shown in (
        ("model_type", "llama", "model_type = 'llama'"),
        ("rms_norm_eps", None, "rms_norm_eps"),
        ("num_attention_heads", 0, "num_attention_heads = 0, must be 1 or more"),
    ):
        path.write_text(json.dumps({**values, key: value}))
        with pytest.raises(WeightError, match=shown):
            read_spec(folder)
    path.unlink()
    with pytest.raises(WeightError, match=r"config\.json is missing"):
        read_spec(folder)


def test_a_tokenizer_with_more_tokens_than_rows_is_named(folder):
    path = folder / "CosyVoice-BlankEN" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 270}))
    with pytest.raises(WeightError, match="vocab_size is 270, and there are 276 tokens"):
        load(folder)


Change = Callable[[dict[str, torch.Tensor]], object]


@pytest.mark.parametrize(
    ("file", "change", "shown"),
    [
        ("llm.pt", lambda t: t.pop("llm_decoder.bias"), r"llm_decoder\.bias is missing"),
        ("llm.pt", lambda t: t.pop("llm_embedding.weight"), r"llm_embedding\.weight is missing"),
        (
            "llm.pt",
            lambda t: t.update({"speech_embedding.weight": torch.zeros(6561, 64)}),
            r"speech_embedding\.weight is \(6561, 64\), expected \(6564, 64\)",
        ),
        (
            "llm.pt",
            lambda t: t.pop("llm.model.model.layers.1.self_attn.q_proj.bias"),
            r"lacks llm\.model\.model\.layers\.1\.self_attn\.q_proj\.bias",
        ),
        ("llm.pt", lambda t: t.update({"epoch": torch.ones(1)}), "epoch"),
        ("llm.pt", lambda t: t.update({"epoch": 3}), "epoch is of type int"),
        (
            "llm.pt",
            lambda t: t.update({"llm_embedding.weight": torch.ones(2, 64, dtype=torch.int8)}),
            r"llm_embedding\.weight is torch\.int8, expected floats",
        ),
        (
            "hift.pt",
            lambda t: t.update({"conv_pre.bias": torch.ones(32, dtype=torch.int8)}),
            r"conv_pre\.bias is torch\.int8",
        ),
        ("flow.pt", lambda t: t.pop("encoder_proj.bias"), r"encoder_proj\.bias"),
        ("flow.pt", lambda t: t.update({"more": torch.ones(1)}), "unexpected: more"),
        ("hift.pt", lambda t: t.pop("conv_pre.bias"), r"conv_pre\.bias"),
        (
            "hift.pt",
            lambda t: t.pop("conv_post.parametrizations.weight.original1"),
            r"conv_post\.parametrizations",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, file, change: Change, shown):
    tensors = torch.load(folder / file, weights_only=True)
    change(tensors)
    torch.save(tensors, folder / file)
    with pytest.raises(WeightError, match=shown):
        load(folder)


@pytest.mark.parametrize(
    "file",
    ["llm.pt", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v2.onnx"],
)
def test_a_missing_file_is_named(folder, file):
    (folder / file).unlink()
    with pytest.raises(WeightError, match=file.replace(".", r"\.")):
        load(folder)
