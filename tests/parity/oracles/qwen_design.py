"""`qwen-tts` 0.1.1: as `qwen_lm`, of a checkpoint whose voices are told in words."""

import sys
from pathlib import Path

from qwen_lm import main

TALKER = {"spk_id": {}, "spk_is_dialect": {}}

main(Path(sys.argv[1]), {"tts_model_type": "voice_design", "talker_config": TALKER})
