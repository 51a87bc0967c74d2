"""`espnet` 202611: a small random DAC, as ESPnet packs one for the hub."""

import sys
from pathlib import Path

import yaml
from espnet_dac import make
from safetensors.torch import save_file

folder = Path(sys.argv[1])
place = "exp/codec_train_dac_large_v1.4_raw_fs16000"
(folder / "exp").mkdir()
make(folder / place, code_dim=24)
packed = {
    "files": {"model_file": f"{place}/360epoch.pth"},
    "yaml_files": {"train_config": f"{place}/config.yaml"},
}
(folder / "meta.yaml").write_text(yaml.safe_dump(packed))
save_file({}, folder / "outputs.safetensors")
