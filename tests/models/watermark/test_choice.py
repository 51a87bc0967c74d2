"""Which model gets which mark, and what a folder of weights is."""

from __future__ import annotations

import shutil

import pytest

from models.errors import WatermarkError, WeightError
from models.registry import read_spec
from models.watermark.choice import CSM_MESSAGE, PUBLISHED, assigned
from models.watermark.loading import load_mark
from tests.models.watermark.tiny import MESSAGE, make_cipher_folder, make_perth_folder

SPECS = {name: read_spec(name) for name in ("toy-tone", "toy-delayed")}
SPECS["./folder"] = read_spec("toy-mixed")
SILENT = {"smollm2-135m": read_spec("smollm2-135m")}


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        ([], {}),
        (["a"], {"toy-tone": "a", "toy-delayed": "a", "./folder": "a"}),
        (["toy-tone=a"], {"toy-tone": "a"}),
        (["toy-tone=a", "b"], {"toy-tone": "a", "toy-delayed": "b", "./folder": "b"}),
        (
            ["b", "toy-mixed=org/name"],
            {"toy-tone": "b", "toy-delayed": "b", "./folder": "org/name"},
        ),
        (["./folder=a"], {"./folder": "a"}),
        (["toy-tone=with=sign"], {"toy-tone": "with=sign"}),
    ],
)
def test_one_for_all_or_for_each_that_is_named(asked, places):
    assert assigned(asked, SPECS | SILENT) == places


@pytest.mark.parametrize(
    ("asked", "specs", "shown"),
    [
        (["tone=a"], SPECS, "tone=a: tone is not served, but toy-tone, toy-delayed, toy-mixed"),
        (["a", "b"], SPECS, "toy-tone would be marked by a and by b; give one"),
        (["toy-tone=a", "toy-tone=b"], SPECS, "toy-tone would be marked by a and by b"),
        (["a"], SILENT, "--watermark a: no model that is served gives sound"),
        (["smollm2-135m=a"], SILENT, "smollm2-135m gives no sound that could be marked"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, specs, shown):
    with pytest.raises(WatermarkError, match=shown):
        assigned(asked, specs)


def test_the_kind_follows_from_the_files(tmp_path):
    cipher, perth = make_cipher_folder(tmp_path / "a"), make_perth_folder(tmp_path / "b")
    assert load_mark(cipher, MESSAGE).name == "SilentCipher"
    assert load_mark(perth, MESSAGE).name == "Perth"
    make_cipher_folder(tmp_path / "snapshot" / PUBLISHED)
    assert load_mark(tmp_path / "snapshot", MESSAGE).name == "SilentCipher"
    assert bytes.fromhex(CSM_MESSAGE) == MESSAGE


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(WeightError, match=r"--watermark: there is no folder .*nowhere"):
        load_mark(tmp_path / "nowhere", MESSAGE)
    with pytest.raises(WeightError, match=r"no watermark that is known.*SilentCipher: .*Perth"):
        load_mark(tmp_path, MESSAGE)
    folder = make_cipher_folder(tmp_path / "a")
    (folder / "dec_c.ckpt").unlink()
    with pytest.raises(WeightError, match=r"dec_c\.ckpt is missing"):
        load_mark(folder, MESSAGE)
    shutil.copy(folder / "enc_c.ckpt", folder / "dec_c.ckpt")
    (folder / "hparams.yaml").unlink()
    with pytest.raises(WeightError, match=r"hparams\.yaml is missing"):
        load_mark(folder, MESSAGE)
