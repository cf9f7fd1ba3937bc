"""Models on the Hugging Face Hub: `from_pretrained`, `save_pretrained`, `push_to_hub`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from huggingface_hub import ModelHubMixin, constants, get_session, hf_hub_download

from ..errors import InputError

if TYPE_CHECKING:
    from typing import Self

    from .localization_model import LocalizationModel

HUB_SECONDS = 5.0  # to wait for the hub before its cache has to do
CARD = """---
{{ card_data }}
---

An image classifier that was trained on labels alone and also tells where the object is, made with
[scm-fast](https://pypi.org/project/scm-fast).

```python
from scm_fast import LocalizationModel, Localizer

localizer = Localizer(LocalizationModel.from_pretrained("{{ repo_id | default("user/model", true) }}"))
for prediction in localizer.predict("photos"):
    print(prediction.name, prediction.classes[0].name, prediction.box)
```
"""


class OnHub(
    ModelHubMixin,
    library_name="scm-fast",
    pipeline_tag="image-classification",
    tags=["weakly-supervised-object-localization"],
    model_card_template=CARD,
):
    """Give `LocalizationModel` huggingface_hub's mixin; the files are those of `save_model`."""

    def _save_pretrained(self, save_directory: Path) -> None:
        from .checkpoint import save_model  # which imports the model's class

        save_model(cast("LocalizationModel", self), save_directory)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        image_size: int | tuple[int, int] | None = None,
    ) -> Self:
        """Return the model of a folder, or of a repository on the hub such as `user/birds`, in evaluation mode.

        image_size: as for `load_model`; the others are those of `huggingface_hub.hf_hub_download`.
        """
        from .checkpoint import CONFIG_FILE, load_model
        from .weights import WEIGHTS_FILE

        name = os.fspath(pretrained_model_name_or_path)
        if os.path.exists(name):
            return cast("Self", load_model(name, image_size))
        options: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "token": token}
        options |= {"force_download": force_download, "local_files_only": local_files_only}
        try:
            with hub_or_cache():
                config, _ = (hf_hub_download(name, file, **options) for file in (CONFIG_FILE, WEIGHTS_FILE))
        except (OSError, ValueError) as error:  # the hub's own errors are these
            reason = next((line for line in str(error).splitlines() if line), type(error).__name__)
            raise InputError(f"{name}: no such folder, and not to be had from the hub ({reason})") from error
        return cast("Self", load_model(Path(config).parent, image_size))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model with a card to a repository on the hub, which is made if it is not there.

        options: those of `huggingface_hub.ModelHubMixin.push_to_hub`, such as private and commit_message.
        """
        card = {"repo_id": repo_id, **(options.pop("model_card_kwargs", None) or {})}
        return super().push_to_hub(repo_id, model_card_kwargs=card, **options)


@contextlib.contextmanager
def hub_or_cache() -> Iterator[None]:
    """Let the hub's client look into its cache alone if the hub cannot be reached.

    By itself it would try again for a minute.
    """
    if constants.HF_HUB_OFFLINE or _hub_answers():
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _hub_answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception:  # of whatever HTTP library the client has
        return False
    return True
