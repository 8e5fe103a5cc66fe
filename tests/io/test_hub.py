"""Models on the Hugging Face Hub: its own mixin and client, without a network."""

import inspect
import shutil
import sys
import types

import pytest
import torch

import pstn
from pstn.io import ModelFileError
from pstn.nn import ModelMetadata
from shared_models import answers, moved


def test_the_hub_reads_the_model_card(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    names = ("a: b", '"quoted"', "---", "`tick`", "| pipe", "#", "{x}", "[y]", "é", "10")
    about = ModelMetadata(names, 1, (28, 28), data="my: digits", metrics={"accuracy": 0.875})
    folder = pstn.nn.mnist_pstn().save_pretrained(tmp_path, about=about)
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "pstn"
    assert card.data.pipeline_tag == "image-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.875, "my: digits")
    assert "26,662" in card.text
    assert "0.875" in card.text


class HTTPError(Exception):
    """What the Hub's client raises where the Hub answers that there is no such thing."""


class Hub:
    """A stand-in for the Hub's client that keeps repositories in a folder: there is no network here."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []

    def HfApi(self, token=None):
        return self

    def create_repo(self, repo_id, private=None, exist_ok=False):
        return types.SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.folder / repo_id)

    def hf_hub_download(self, repo_id, file, revision=None):
        self.asked.append(file)
        if not (self.folder / repo_id / file).exists():
            raise HTTPError("no such repository\nand more")
        return str(self.folder / repo_id / file)


def test_the_real_client_takes_what_the_stand_in_does():
    real = pytest.importorskip("huggingface_hub")
    assert {"repo_id", "revision"} <= set(inspect.signature(real.hf_hub_download).parameters)
    for name in ("create_repo", "upload_folder"):
        ours = inspect.signature(getattr(Hub(None), name)).parameters
        assert set(ours) <= set(inspect.signature(getattr(real.HfApi, name)).parameters)


def test_push_and_pull_by_the_hubs_client(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path))
    model, x = moved(pstn.nn.mnist_pstn()), torch.rand(2, 1, 28, 28)
    model.push_to_hub("me/digits")
    assert torch.equal(answers(pstn.from_pretrained("me/digits"), x), answers(model, x))
    with pytest.raises(ModelFileError, match=r"me/other.*: no such repository$"):
        pstn.from_pretrained("me/other")


def test_a_slip_in_a_folders_name_does_not_go_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub = Hub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelFileError, match="there is no folder runs/photos"):
        pstn.from_pretrained("runs/photos")
    assert hub.asked == []
