"""Models on the Hugging Face Hub: its own mixin and client, without a network."""

import inspect
import sys
import types

import pytest
import torch

import pstn
from pstn.io import ModelFileError
from pstn.nn import About
from shared_models import answers, moved


def test_the_hub_reads_the_model_card(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    names = ("a: b", '"quoted"', "---", "`tick`", "| pipe", "#", "{x}", "[y]", "é", "10")
    about = About(names, 1, (28, 28), data="my: digits", metrics={"accuracy": 0.875})
    folder = pstn.nn.mnist_pstn().save_pretrained(tmp_path, about=about)
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "pstn"
    assert card.data.pipeline_tag == "image-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.875, "my: digits")
    assert "26,662" in card.text
    assert "0.875" in card.text


def test_push_and_pull_by_the_hubs_client(monkeypatch, tmp_path):
    """The client is a stand-in that keeps repositories in a folder: there is no network here."""
    real = pytest.importorskip("huggingface_hub")
    # The real client takes what the stand-in is called with.
    api = real.HfApi
    inspect.signature(api.create_repo).bind(None, "me/digits", private=None, exist_ok=True)
    inspect.signature(api.upload_folder).bind(None, repo_id="me/digits", folder_path="f", commit_message="m")
    inspect.signature(real.hf_hub_download).bind("me/digits", "config.json", revision=None, local_files_only=False)
    inspect.signature(real.hf_hub_url).bind("me/digits", "config.json", revision=None)
    inspect.signature(real.get_hf_file_metadata).bind("https://example.org")
    assert issubclass(real.errors.HfHubHTTPError, Exception)

    class HfApi:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, private=None, exist_ok=False):
            (tmp_path / repo_id).mkdir(parents=True)
            return types.SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            import shutil

            shutil.copytree(folder_path, tmp_path / repo_id, dirs_exist_ok=True)

    class HTTPError(Exception):
        pass

    def url(repo_id, file, revision=None):
        return tmp_path / repo_id / file

    def metadata(found):
        if not found.exists():
            raise HTTPError("no such repository\nand more")

    def download(repo_id, file, revision=None, local_files_only=False):
        return str(url(repo_id, file))

    stand_in = types.SimpleNamespace(
        HfApi=HfApi, hf_hub_download=download, hf_hub_url=url, get_hf_file_metadata=metadata,
        errors=types.SimpleNamespace(HfHubHTTPError=HTTPError),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    model = moved(pstn.nn.mnist_pstn())
    model.push_to_hub("me/digits")
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(answers(pstn.from_pretrained("me/digits"), x), answers(model, x))
    with pytest.raises(ModelFileError, match=r"no folder me/other, nor .* on the Hugging Face Hub: no such repo.*$"):
        pstn.from_pretrained("me/other")


def unreachable_hub(kept):
    """A client without a network that has kept some files, and counts its questions."""
    asked = []

    def metadata(url):
        asked.append(url)
        raise ConnectionError("Name or service not known")

    def download(repo_id, file, revision=None, local_files_only=False):
        assert local_files_only  # or it would ask again and again
        if kept is None:
            raise FileNotFoundError(file)
        return str(kept / file)

    errors = types.SimpleNamespace(HfHubHTTPError=type("HfHubHTTPError", (Exception,), {}))
    stand_in = types.SimpleNamespace(
        hf_hub_download=download, hf_hub_url=lambda *_, **__: "url", get_hf_file_metadata=metadata, errors=errors
    )
    return stand_in, asked


def test_without_a_network_the_hub_is_asked_once(folder, monkeypatch):
    stand_in, asked = unreachable_hub(None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    with pytest.raises(ModelFileError, match=r"me/digits.*Name or service not known"):
        pstn.from_pretrained("me/digits")
    assert len(asked) == 1
    monkeypatch.setitem(sys.modules, "huggingface_hub", unreachable_hub(folder)[0])
    assert type(pstn.from_pretrained("me/digits")) is pstn.PSTN  # the client has kept it


def test_a_slip_in_a_folders_name_does_not_go_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stand_in, asked = unreachable_hub(None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelFileError, match="there is no folder runs/photos"):
        pstn.from_pretrained("runs/photos")
    assert asked == []
